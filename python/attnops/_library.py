"""Loads the operators: afterwards they are torch.ops.attnops.*"""

from pathlib import Path

try:
    import torch
except ModuleNotFoundError:
    raise ImportError(
        "attnops needs PyTorch 2.11 or newer, which is not installed; run: pip install torch",
        name="torch",
    ) from None

torch.ops.load_library(Path(__file__).with_name("libattnops_torch.so"))
