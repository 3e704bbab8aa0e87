"""Modules of models: attention layers and what they keep."""

from attnops.nn.tensor_product_attention import TensorProductAttention
from attnops.nn.tpa_cache import TPACache

__all__ = ["TPACache", "TensorProductAttention"]
