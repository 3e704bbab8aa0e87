"""attnops: fused attention operators for CPUs, with autograd and torch.compile."""

from attnops import (
    _library,  # noqa: F401  (first: the modules below need its operators)
    machine,
)
from attnops.flao import flao
from attnops.lrpe_rotate import lrpe_rotate
from attnops.runtime import (
    compiled_targets,
    empty_cache,
    get_target,
    set_target,
    supported_targets,
)
from attnops.tpa_decode import tpa_decode

__version__ = "0.1.0"

__all__ = [
    "compiled_targets",
    "empty_cache",
    "flao",
    "get_target",
    "lrpe_rotate",
    "machine",
    "set_target",
    "supported_targets",
    "tpa_decode",
]
