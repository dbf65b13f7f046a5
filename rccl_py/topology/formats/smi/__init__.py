"""The text of nvidia-smi, rocm-smi and amd-smi about links between devices."""
