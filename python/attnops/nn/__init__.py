"""Modules of models: position encodings, attention layers and what they keep."""

from attnops.nn.gated_linear_attention import GatedLinearAttention
from attnops.nn.linear_attention import LinearAttention
from attnops.nn.lrpe import Lrpe
from attnops.nn.rope import Rope
from attnops.nn.tensor_product_attention import TensorProductAttention
from attnops.nn.tpa_cache import TPACache

__all__ = [
    "GatedLinearAttention",
    "LinearAttention",
    "Lrpe",
    "Rope",
    "TPACache",
    "TensorProductAttention",
]
