"""flao with bad arguments: an exception that names the operator and the argument."""

import re
from collections.abc import Callable

import pytest
import torch

import attnops

ERRORS = (ValueError, RuntimeError)
SHAPES = {"q": (2, 3, 4, 6), "k": (2, 3, 5, 6), "v": (2, 3, 5, 7), "g": (2, 3, 4, 7)}


def ones(**changed: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Good arguments, but for those whose shapes are given."""
    return {name: torch.ones(shape) for name, shape in (SHAPES | changed).items()}


BAD_SHAPES = {
    "q with three axes": ("q", {"q": (3, 4, 6)}),
    "k with five axes": ("k", {"k": (1, 2, 3, 5, 6)}),
    "batches of k": ("k", {"k": (1, 3, 5, 6)}),
    "heads of v": ("v", {"v": (2, 1, 5, 7)}),
    "features of k": ("k", {"k": (2, 3, 5, 7)}),
    "tokens of v": ("v", {"v": (2, 3, 4, 7)}),
    "tokens of g": ("g", {"g": (2, 3, 5, 7)}),
    "features of g": ("g", {"g": (2, 3, 4, 6)}),
}


def error_of(call: Callable[[], object], argument: str) -> str:
    """The first line of the error that the call raises, which names what is wrong."""
    with pytest.raises(ERRORS) as caught:
        call()
    text = str(caught.value).splitlines()[0]
    assert "flao" in text
    assert re.search(rf"\b{argument}\b", text), text
    return text


@pytest.mark.parametrize("keep", ["none", "kv_qkv"])
@pytest.mark.parametrize(("argument", "changed"), BAD_SHAPES.values(), ids=BAD_SHAPES)
def test_shapes(argument, changed, keep):
    """The text is the same with and without data."""
    args = ones(**changed)
    text = error_of(lambda: attnops.flao(**args, keep=keep), argument)
    meta = {name: x.to("meta") for name, x in args.items()}
    assert error_of(lambda: attnops.flao(**meta, keep=keep), argument) == text
    args["q"].requires_grad_()
    error_of(lambda: attnops.flao(**args, keep=keep), argument)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16], ids=str)
def test_types(name, dtype):
    args = ones()
    args[name] = args[name].to(dtype)
    blamed = "k" if name == "q" and dtype == torch.bfloat16 else name
    text = error_of(lambda: attnops.flao(**args), blamed)
    meta = {n: x.to("meta") for n, x in args.items()}
    assert text == error_of(lambda: attnops.flao(**meta), blamed)


@pytest.mark.parametrize("keep", ["", "KV", "qkv", "all"])
def test_keep(keep):
    error_of(lambda: attnops.flao(**ones(), keep=keep), "keep")


@pytest.mark.parametrize(
    ("position", "argument", "value"),
    [
        (4, "d_out", torch.ones(2, 3, 4, 6)),
        (4, "d_out", torch.ones(2, 3, 4, 7).bfloat16()),
        (5, "kv", torch.ones(2, 3, 7, 6)),
        (5, "kv", torch.ones(2, 3, 6, 7).bfloat16()),
        (6, "qkv", torch.ones(2, 3, 7, 4)),
        (6, "qkv", torch.ones(2, 3, 4, 7).half()),
    ],
)
def test_backward(position, argument, value):
    args = [*ones().values(), torch.ones(2, 3, 4, 7), None, None]
    args[position] = value
    error_of(lambda: torch.ops.attnops.flao_backward(*args), argument)
