"""What people see of results and machines: tables, files, texts, pictures, HTML.

Nothing here prints or is loaded before it is asked for.
"""
