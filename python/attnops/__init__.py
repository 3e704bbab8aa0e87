"""attnops: fused attention operators for CPUs, with autograd and torch.compile."""

from attnops import (
    _library,  # noqa: F401  (first: the modules below need its operators)
    machine,
)
from attnops.flao import flao
from attnops.flao_fal import flao_fal
from attnops.linear_attention import linear_attention
from attnops.lrpe_rotate import lrpe_rotate
from attnops.md_lrpe_cosine import lrpe_table, md_lrpe_cosine
from attnops.rope import rope
from attnops.runtime import (
    compiled_targets,
    effective_precision,
    empty_cache,
    get_precision,
    get_target,
    set_precision,
    set_target,
    supported_targets,
)
from attnops.tpa import tpa
from attnops.tpa_decode import tpa_decode

__version__ = "0.1.0"

__all__ = [
    "compiled_targets",
    "effective_precision",
    "empty_cache",
    "flao",
    "flao_fal",
    "get_precision",
    "get_target",
    "linear_attention",
    "lrpe_rotate",
    "lrpe_table",
    "machine",
    "md_lrpe_cosine",
    "rope",
    "set_precision",
    "set_target",
    "supported_targets",
    "tpa",
    "tpa_decode",
]
