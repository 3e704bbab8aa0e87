"""attnops-bench: what each operator costs on this machine, next to PyTorch and to its limit."""
