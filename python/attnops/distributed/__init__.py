"""The operators on sequences and caches that are spread over the ranks of a process group.

Functions of the same names as those of attnops take `group=`: each rank passes its shard, a stretch
of the sequence in rank order, and gets its shard of the result. `sizes=` are the tokens of every
rank's shard; without it the ranks tell each other, in one small exchange of their shapes, which
also finds shapes that do not fit together. With sizes that exchange stays, as a check, unless
set_checks(False); under torch.compile there is none, and sizes must be given.

A gradient is that of the sum of the ranks' losses. A tensor that every rank has, such as theta,
gets the share of the rank's own tokens: the sum over the ranks is its gradient.

On one rank each is the plain operator. The collectives are functional ones, so that
torch.compile(fullgraph=True) takes a function whole.
"""

from attnops.distributed import _rules  # noqa: F401  (registers them)
from attnops.distributed._encodings import lrpe_rotate, md_lrpe_cosine, rope
from attnops.distributed._gated import flao, flao_fal
from attnops.distributed._group import set_checks
from attnops.distributed._linear_attention import linear_attention
from attnops.distributed._tpa import tpa, tpa_decode

__all__ = [
    "flao",
    "flao_fal",
    "linear_attention",
    "lrpe_rotate",
    "md_lrpe_cosine",
    "rope",
    "set_checks",
    "tpa",
    "tpa_decode",
]
