"""Other libraries' names over this library's communicators.

Owns nothing itself; each module below is to be imported by name (``rccl_py.compat.mpi``), so that
who uses one of them does not load the others.
"""
