"""What lrpe_rotate and rope have in common: arguments, checks and the warning of a 16-bit theta."""

import warnings
from collections.abc import Sequence
from math import isfinite
from numbers import Integral

import torch
from torch import Tensor

from attnops import _checks, _choices

_LIMIT = 256  # positions from which a bfloat16 theta is off by half a radian
_AXES = ("(B,N,H,D)", "(B,H,N,D)")
_warned = False


def split_offset(op: str, offset: int | Tensor) -> tuple[int, Tensor | None]:
    """The offset of all batches and, if it is a tensor, those of each."""
    if type(offset) is int:  # nearly always, and an isinstance of Tensor is slow for what is none
        return offset, None
    if isinstance(offset, Tensor):
        return 0, offset
    if not isinstance(offset, int | torch.SymInt | Integral):
        _checks.fail(
            op, f"offset must be an integer or a tensor; it is {_checks.described(offset)}"
        )
    return offset, None


def warn_of_16_bits(
    op: str,
    theta: Tensor | None,
    tokens: int,
    offset: int = 0,
    ids: Tensor | None = None,
) -> None:
    """Once: the angles of a theta that was rounded to 16 bits are lost at positions beyond 256.

    `ids` are positions, or offsets of tokens that are counted from there.
    """
    global _warned
    if (
        theta is None
        or theta.dtype == torch.float32
        or torch.compiler.is_compiling()
        or theta.is_meta
    ):
        return
    if _warned or (abs(offset) + tokens <= _LIMIT and ids is None):
        return
    if ids is not None and (ids.numel() == 0 or int(ids.abs().max()) + tokens <= _LIMIT):
        return
    _warned = True
    warnings.warn(
        f"{op}: theta is {_checks.type_name(theta)} and positions go beyond {_LIMIT}: its rounding "
        "makes the angles there wrong by radians. Keep theta in float32: make it anew after the "
        "model is converted, since theta.float() does not bring back what was rounded.",
        stacklevel=3,
    )


def sequence_axis(layout: int, axes: int) -> int:
    """The axis of the tokens."""
    return 1 if axes == 3 or layout == _choices.BNHD else 2


def check_types(
    op: str,
    positions: Tensor | None,
    offsets: Tensor | None,
    sections: Sequence[int] | None,
    layout: int,
) -> None:
    """The checks of the binding, in its order."""
    for name, value in (("positions", positions), ("offset", offsets)):
        if value is not None and value.dtype not in (torch.int32, torch.int64):
            _checks.fail(op, f"{name} must be int32 or int64; it is {_checks.type_name(value)}")
    if sections is not None:
        _checks.sizes(op, "sections", sections)
    _choices.check(op, "layout", _choices.LAYOUTS, layout)


def axes_of(layout: int) -> str:
    """The names of a tensor's axes."""
    return _AXES[layout]


def rotated(op: str, x_name: str, features: int, rotary_dim: int | None) -> int:
    """The number of rotated features."""
    if features % 2 != 0:
        _checks.fail(op, f"{x_name} must have an even number of features; it has {features}")
    value = features if rotary_dim is None else rotary_dim
    if value % 2 != 0 or value < 0 or value > features:
        _checks.fail(op, f"rotary_dim must be even and from 0 to {features}; it is {value}")
    return value


def check(
    op: str,
    batches: int,
    tokens: int,
    pairs: int,
    offset: int,
    positions: Tensor | None,
    offsets: Tensor | None,
    sections: Sequence[int] | None,
    sections_interleaved: bool,
    scale: float,
) -> None:
    """The checks of the kernel but for the values of positions."""
    _checks.offset(op, offset)
    # A compiled graph does not depend on the offset: it is looked at last.
    if (positions is not None or offsets is not None) and offset != 0:
        _checks.fail(op, f"offset must be 0 with positions; it is {offset}")
    if positions is not None and offsets is not None:
        _checks.fail(op, "offset must be 0 with positions; it is a tensor")
    if not isfinite(scale):
        _checks.fail(op, f"scale must be finite; it is {scale}")
    _check_sections(op, pairs, positions, sections, sections_interleaved)
    if positions is not None:
        _check_positions(op, batches, tokens, positions, len(sections or ()))
    if offsets is not None and offsets.shape != (batches,):
        _checks.fail(
            op, f"offset must have the shape ({batches}); its shape is {_checks.shape(offsets)}"
        )


def _check_sections(
    op: str,
    pairs: int,
    positions: Tensor | None,
    sections: Sequence[int] | None,
    sections_interleaved: bool,
) -> None:
    if not sections:
        if sections_interleaved:
            _checks.fail(op, "sections_interleaved must be false without sections; it is true")
        return
    if positions is None:
        _checks.fail(op, "sections need positions (sections, B, N); there are none")
    for size in sections:
        if not 0 <= size <= pairs:
            _checks.fail(op, f"sections must have sizes from 0 to {pairs}; one is {size}")
    if sum(sections) != pairs:
        _checks.fail(
            op, f"sections must have the sum {pairs}, the rotated pairs; it is {sum(sections)}"
        )


def _check_positions(op: str, batches: int, tokens: int, positions: Tensor, sections: int) -> None:
    shape = positions.shape
    if sections > 0:
        if shape != (sections, batches, tokens):
            _checks.fail(
                op,
                f"positions must have the shape ({sections}, {batches}, {tokens}) "
                f"(sections, B, N); its shape is {_checks.shape(positions)}",
            )
    elif shape not in ((tokens,), (batches, tokens)):
        _checks.fail(
            op,
            f"positions must have the shape ({tokens}) or ({batches}, {tokens}); "
            f"its shape is {_checks.shape(positions)}",
        )
