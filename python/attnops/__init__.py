"""attnops: fused attention operators for CPUs, with autograd and torch.compile."""

from importlib.metadata import version as _version

# First: it says if torch is missing, and the modules below need its operators.
from attnops import _library  # noqa: F401

# isort: split
from attnops import _flops, _transforms, machine  # noqa: F401  (_flops registers formulas)
from attnops.flao import flao
from attnops.flao_fal import flao_fal
from attnops.flao_halves import flao_fal_kv, flao_fal_out, flao_kv, flao_out
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
    info,
    set_precision,
    set_target,
    supported_targets,
)
from attnops.tpa import tpa
from attnops.tpa_decode import tpa_decode

for _function in (
    flao,
    flao_fal,
    flao_fal_kv,
    flao_fal_out,
    flao_kv,
    flao_out,
    linear_attention,
    lrpe_rotate,
    lrpe_table,
    md_lrpe_cosine,
    rope,
    tpa,
    tpa_decode,
):
    _transforms.refuse_script(_function)

__version__ = _version("attnops")  # that of pyproject.toml

__all__ = [
    "compiled_targets",
    "effective_precision",
    "empty_cache",
    "flao",
    "flao_fal",
    "flao_fal_kv",
    "flao_fal_out",
    "flao_kv",
    "flao_out",
    "get_precision",
    "get_target",
    "info",
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
