"""The SIMD target in use, the precision of products, and the memory kept for results."""

from dataclasses import dataclass, fields
from importlib.metadata import version

import torch

from attnops import _choices

_ops = torch.ops.attnops


def supported_targets() -> list[str]:
    """Names of the compiled SIMD targets that this CPU has, best first.

    Examples
    --------
    >>> import attnops
    >>> attnops.get_target() in attnops.supported_targets()
    True
    """
    return _ops.supported_targets().split()


def compiled_targets() -> list[str]:
    """Names of all compiled SIMD targets, best first.

    Examples
    --------
    >>> import attnops
    >>> set(attnops.supported_targets()) <= set(attnops.compiled_targets())
    True
    """
    return _ops.compiled_targets().split()


def get_target() -> str:
    """Name of the SIMD target in use.

    Examples
    --------
    >>> import attnops
    >>> attnops.get_target() in attnops.compiled_targets()
    True
    """
    return _ops.get_target()


def set_target(name: str) -> None:
    """Force a SIMD target by its name.

    Parameters
    ----------
    name : str
        One of supported_targets(); an empty name goes back to ATTNOPS_TARGET or, without it, the
        best.

    Examples
    --------
    >>> import attnops
    >>> attnops.set_target(attnops.supported_targets()[-1])
    >>> attnops.set_target("")
    """
    _ops.set_target(name)


def get_precision() -> str:
    """The precision of calls that do not name one.

    Examples
    --------
    >>> import attnops
    >>> attnops.get_precision()
    'auto'
    """
    return _choices.PRECISIONS[_ops.get_precision()]


def set_precision(name: str) -> None:
    """Set the precision of calls that do not name one, in the whole process.

    Parameters
    ----------
    name : {"highest", "high", "medium", "auto"}
        `highest` multiplies float32, `high` keeps at least 16 significant bits of an intermediate,
        `medium` rounds it to bfloat16 as PyTorch does, and `auto` is `medium` for bfloat16 tensors
        where the CPU has instructions for it, else `highest`. ATTNOPS_PRECISION sets it from
        outside.

    Examples
    --------
    >>> import attnops
    >>> attnops.set_precision("highest")
    >>> attnops.get_precision()
    'highest'
    >>> attnops.set_precision("auto")
    """
    _ops.set_precision(_choices.number("set_precision", "name", _choices.PRECISIONS, name))


def effective_precision(dtype: torch.dtype, precision: str | None = None) -> str:
    """What a call with tensors of this type runs as on this CPU: highest, high or medium.

    Parameters
    ----------
    dtype : torch.dtype
    precision : str, optional
        Of the call; that of set_precision unless given.

    Examples
    --------
    >>> import torch, attnops
    >>> attnops.effective_precision(torch.float32)
    'highest'
    """
    number = _choices.precision("effective_precision", precision)
    if dtype != torch.bfloat16:
        return "highest"
    return _choices.PRECISIONS[_ops.effective_precision(number)]


def empty_cache() -> None:
    """Give the memory that is kept for later results back to the system.

    Examples
    --------
    >>> import attnops
    >>> attnops.empty_cache()
    """
    _ops.empty_cache()


@dataclass(frozen=True)
class Info:
    """What attnops runs with; printed, a line for each field."""

    version: str
    torch: str
    target: str  # of SIMD, in use
    targets: tuple[str, ...]  # all that this CPU has, best first
    threads: int
    precision: str  # of calls that do not name one
    bfloat16_products: bool  # whether the CPU has instructions for them

    def __str__(self) -> str:
        width = max(len(field.name) for field in fields(self))
        return "\n".join(
            f"{field.name:{width}}  {_shown(getattr(self, field.name))}" for field in fields(self)
        )


def _shown(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


def info() -> Info:
    """The versions, the SIMD target, the threads and the precision in use.

    Examples
    --------
    >>> import attnops
    >>> attnops.info().target in attnops.supported_targets()
    True
    >>> print(attnops.info())  # doctest: +ELLIPSIS
    version            ...
    """
    return Info(
        version=version("attnops"),
        torch=torch.__version__,
        target=get_target(),
        targets=tuple(supported_targets()),
        threads=torch.get_num_threads(),
        precision=get_precision(),
        bfloat16_products=effective_precision(torch.bfloat16, "medium") == "medium",
    )
