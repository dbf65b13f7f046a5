"""Files that describe machines, one module a format: what each text means as a Topology.

load.py asks the table here which format a file has. New format: one module, one row.
"""
