"""flao_fal with bad arguments: an exception that names the operator and the argument."""

from functools import partial

import pytest
import torch

import attnops
import support

error_of = partial(support.error_of, "flao_fal")


def ones(*shape: int) -> torch.Tensor:
    """A tensor whose values do not matter."""
    return torch.ones(shape)


INPUTS = {
    "q": ones(2, 3, 4, 6),
    "k": ones(2, 3, 5, 6),
    "v": ones(2, 3, 5, 7),
    "g": ones(2, 3, 4, 7),
}
# A grid of 2×3 behind one token.
GRID = {
    "q": ones(2, 3, 7, 6),
    "k": ones(2, 3, 7, 6),
    "v": ones(2, 3, 7, 7),
    "g": ones(2, 3, 7, 7),
    "shape": (2, 3),
    "l": 1,
}
COSINE = INPUTS | {"theta": ones(3, 6)}
ROTATE = INPUTS | {"theta": ones(3, 3), "lrpe": "rotate"}
COSINE_GRID = GRID | {"theta": ones(3, 3)}
ROTATE_GRID = GRID | {"theta": ones(3, 2), "lrpe": "rotate"}
GOOD = {
    "no encoding": INPUTS,
    "cosine": COSINE,
    "rotate": ROTATE,
    "cosine in a grid": COSINE_GRID,
    "rotate in a grid": ROTATE_GRID,
    "cosine with an offset": COSINE | {"offset": 2**31},
    "rotate, one angle": ROTATE | {"theta": ones(3, 1), "offset": -(2**31)},
    "cosine with one axis": GRID | {"theta": ones(1, 6), "shape": (6,), "offset": 3},
    "all tokens without a position": COSINE | {"l": 4},
}

# The argument that must be named, and the call's arguments.
BAD = {
    "q with three axes": ("q", COSINE | {"q": ones(3, 4, 6)}),
    "k with five axes": ("k", COSINE | {"k": ones(1, 2, 3, 5, 6)}),
    "batches of k": ("k", COSINE | {"k": ones(1, 3, 5, 6)}),
    "heads of v": ("v", COSINE | {"v": ones(2, 1, 5, 7)}),
    "features of k": ("k", COSINE | {"k": ones(2, 3, 5, 7)}),
    "tokens of v": ("v", COSINE | {"v": ones(2, 3, 4, 7)}),
    "tokens of g": ("g", COSINE | {"g": ones(2, 3, 5, 7)}),
    "features of g": ("g", COSINE | {"g": ones(2, 3, 4, 6)}),
    "theta with one axis": ("theta", COSINE | {"theta": ones(6)}),
    "theta with three axes": ("theta", COSINE | {"theta": ones(1, 3, 6)}),
    "theta with too few heads": ("theta", COSINE | {"theta": ones(2, 6)}),
    "theta with too many heads": ("theta", ROTATE | {"theta": ones(4, 3)}),
    "theta of less precision": ("theta", COSINE | {"theta": ones(3, 6).half()}),
    "cosine with too few angles": ("theta", COSINE | {"theta": ones(3, 5)}),
    "cosine with too few angles in a grid": ("theta", COSINE_GRID | {"theta": ones(3, 2)}),
    "rotate with too many angles": ("theta", ROTATE | {"theta": ones(3, 4)}),
    "rotate with no angles": ("theta", ROTATE | {"theta": ones(3, 0)}),
    "rotate with too few angles in a grid": ("theta", ROTATE_GRID | {"theta": ones(3, 1)}),
    "rotate with odd features": (
        "q",
        ROTATE | {"q": ones(2, 3, 4, 5), "k": ones(2, 3, 5, 5), "theta": ones(3, 2)},
    ),
    "rotate without theta": ("theta", ROTATE | {"theta": None}),
    "an offset without theta": ("theta", INPUTS | {"offset": 1}),
    "l without theta": ("theta", INPUTS | {"l": 1}),
    "a shape without theta": ("theta", GRID),
    "theta without an encoding": ("theta", COSINE | {"lrpe": "none"}),
    "a shape without an encoding": ("shape", GRID | {"lrpe": "none", "l": 0}),
    "an offset without an encoding": ("offset", INPUTS | {"lrpe": "none", "offset": 1}),
    "l without an encoding": ("l", INPUTS | {"lrpe": "none", "l": 1}),
    "an unknown encoding": ("lrpe", COSINE | {"lrpe": "sine"}),
    "a shape of too few tokens": ("q", COSINE_GRID | {"shape": (2, 2)}),
    "a shape of too many tokens": ("q", ROTATE_GRID | {"shape": (2, 4)}),
    "a shape that does not fit k": (
        "k",
        COSINE | {"shape": (4,)},
    ),
    "no axes": ("shape", COSINE | {"shape": ()}),
    "nine axes": ("shape", COSINE_GRID | {"shape": (2, 3, *(1,) * 7)}),
    "a negative size": ("shape", COSINE_GRID | {"shape": (-2, -3)}),
    "a huge size": ("shape", COSINE_GRID | {"shape": (2**40, 0)}),
    "a negative l": ("l", COSINE | {"l": -1}),
    "a negative l in a grid": ("l", COSINE_GRID | {"l": -1}),
    "l beyond the tokens": ("l", COSINE | {"l": 5}),
    "l beyond the tokens of k": (
        "l",
        COSINE | {"q": ones(2, 3, 7, 6), "g": ones(2, 3, 7, 7), "l": 6},
    ),
    "an l that does not fit": ("l", ROTATE_GRID | {"l": 2}),
    "an offset in a grid": ("offset", COSINE_GRID | {"offset": 1}),
    "an offset too large": ("offset", ROTATE | {"offset": 2**31 + 1}),
    "an unknown policy": ("keep", COSINE | {"keep": "qkv"}),
} | {
    f"{name}: {what}": (f"{name}_{argument}", COSINE | {f"{name}_{k}": v for k, v in acts.items()})
    for name in "qkvg"
    for what, argument, acts in [
        ("an unknown activation", "act", {"act": "tanh"}),
        ("softmax without dim", "dim", {"act": "softmax"}),
        ("dim without an activation", "dim", {"dim": -1}),
        ("dim with another activation", "dim", {"act": "silu", "dim": -1}),
        ("softmax over the batch", "dim", {"act": "softmax", "dim": 0}),
        ("softmax over the heads", "dim", {"act": "softmax", "dim": -3}),
        ("dim after the last", "dim", {"act": "softmax", "dim": 4}),
        ("dim before the first", "dim", {"act": "softmax", "dim": -5}),
    ]
}


def meta(options: dict) -> dict:
    """The arguments with tensors that have no data."""
    return {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in options.items()}


@pytest.mark.parametrize("options", GOOD.values(), ids=GOOD)
def test_good(options):
    out = attnops.flao_fal(**options)
    assert out.shape == attnops.flao_fal(**meta(options)).shape == options["g"].shape


@pytest.mark.parametrize(("argument", "options"), BAD.values(), ids=BAD)
def test_bad(argument, options):
    """The text is the same with and without data, and when a gradient is needed."""
    text = error_of(lambda: attnops.flao_fal(**options), argument)
    assert error_of(lambda: attnops.flao_fal(**meta(options)), argument) == text
    needing = options | {"q": options["q"].clone().requires_grad_()}
    assert error_of(lambda: attnops.flao_fal(**needing), argument) == text


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "theta"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16], ids=str)
def test_types(name, dtype):
    options = COSINE | {name: COSINE[name].to(dtype)}
    blamed = "k" if name == "q" and dtype == torch.bfloat16 else name
    text = error_of(lambda: attnops.flao_fal(**options), blamed)
    assert text == error_of(lambda: attnops.flao_fal(**meta(options)), blamed)


NO_ACTS = (support.ACT["none"], None) * 4


@pytest.mark.parametrize(
    ("position", "argument", "value"),
    [
        (4, "d_out", ones(2, 3, 4, 6)),
        (4, "d_out", ones(2, 3, 4, 7).bfloat16()),
        (5, "kv", ones(2, 3, 6, 7)),
        (5, "kv", ones(2, 3, 12, 7).bfloat16()),
        (6, "qkv", ones(2, 3, 7, 4)),
        (6, "qkv", ones(2, 3, 4, 7).half()),
        (7, "theta", None),
    ],
)
def test_backward(position, argument, value):
    args = [*INPUTS.values(), ones(2, 3, 4, 7), None, None, ones(3, 6)]
    args[position] = value
    backward = torch.ops.attnops.flao_fal_backward
    error_of(lambda: backward(*args, *NO_ACTS, support.LRPE["cosine"], None, 0, 0), argument)


def test_the_next_call_works():
    error_of(lambda: attnops.flao_fal(**COSINE, g_act="tanh"), "g_act")
    assert torch.equal(attnops.flao_fal(**INPUTS), torch.full((2, 3, 4, 7), 30.0))
