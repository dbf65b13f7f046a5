"""Transports: run a schedule on real buffers, in this process or across processes.

Both give the same bits: they run the same rows in the same order.
"""
