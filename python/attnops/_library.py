"""Loads the operators: afterwards they are torch.ops.attnops.*"""

from pathlib import Path

import torch

torch.ops.load_library(Path(__file__).with_name("libattnops_torch.so"))
