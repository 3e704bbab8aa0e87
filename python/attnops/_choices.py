"""Options with a few named choices: names for users, numbers for the operators.

The numbers are those of the C++ enumerations, which have the order of the names here. A string in a
schema would be copied at every call, and torch 2.13's stable header never frees the copy.
"""

ACTIVATIONS = ("none", "relu", "sigmoid", "silu", "softmax")  # Activation::Kind
LRPES = ("none", "cosine", "rotate")  # Lrpe
SPLITS = ("auto", "b", "bh", "bn")  # TpaSplit
PRECISIONS = ("auto", "highest", "high", "medium")  # Precision
LAYOUTS = ("bnhd", "bhnd")  # Layout
KEEPS = ("none", "kv", "kv_qkv")  # Keep of python/csrc/linear_attention.cc
CAUSAL_KEEPS = ("none", "states")  # Keep of python/csrc/causal_linear_attention.cc

NONE = 0  # of activations, encodings and what is kept
SOFTMAX = ACTIVATIONS.index("softmax")
COSINE = LRPES.index("cosine")
ROTATE = LRPES.index("rotate")
BNHD = LAYOUTS.index("bnhd")
KV_QKV = KEEPS.index("kv_qkv")


def number(op: str, argument: str, names: tuple[str, ...], name: str) -> int:
    """The number of a choice that is given by its name."""
    if name not in names:
        shown = f'"{name}"' if isinstance(name, str) else repr(name)
        raise ValueError(f"{op}: {argument} must be one of {', '.join(names)}; it is {shown}")
    return names.index(name)


def precision(op: str, name: str | None) -> int | None:
    """The number of a precision; None is the default of the process."""
    return None if name is None else number(op, "precision", PRECISIONS, name)


def check_precision(op: str, value: int | None) -> None:
    if value is not None:
        check(op, "precision", PRECISIONS, value)


def check(op: str, argument: str, names: tuple[str, ...], value: int) -> None:
    """A number that is one of the choices, as the kernels check it."""
    if not 0 <= value < len(names):
        last = len(names) - 1
        raise ValueError(f"{op}: {argument} must be a number from 0 to {last}; it is {value}")
