"""NCCL/RCCL topology XML and graph XML, read and written."""
