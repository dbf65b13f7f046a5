"""RCCL-like collectives over a simulated fabric: real data, modelled time.

import rccl_py as rccl
"""
