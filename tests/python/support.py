"""What the tests of several operators share: errors, saved tensors, finite differences."""

import re
from collections.abc import Callable

import pytest
import torch

# Named options are numbers in the operators' schemas: those of the C++ enumerations.
ACT = {"none": 0, "relu": 1, "sigmoid": 2, "silu": 3, "softmax": 4}
LRPE = {"none": 0, "cosine": 1, "rotate": 2}
SPLIT = {"auto": 0, "b": 1, "bh": 2, "bn": 3}
KEEP = {"none": 0, "kv": 1, "kv_qkv": 2}


def error_of(operator: str, call: Callable[[], object], argument: str) -> str:
    """The first line of the error that the call raises, which names what is wrong."""
    with pytest.raises((ValueError, RuntimeError)) as caught:
        call()
    text = str(caught.value).splitlines()[0]
    assert f"{operator}: " in text, text
    assert re.search(rf"\b{argument}\b", text), text
    return text


def assert_batches_are_independent(
    operator: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, out_features: int
) -> None:
    """The same bits for a batch alone and among others, whose angles it shares then."""

    def passes(part: torch.Tensor, d_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = part.detach().requires_grad_()
        out = operator(part)
        return out.detach(), torch.autograd.grad(out, part, d_out)[0]

    d_out = torch.randn(*x.shape[:-1], out_features).to(x.dtype)
    together = passes(x, d_out)
    for b in range(x.shape[0]):
        alone = passes(x[b : b + 1], d_out[b : b + 1])
        for result, expected in zip(alone, together, strict=True):
            assert torch.equal(result[0], expected[b])


def saved_elements(call: Callable[[], object]) -> int:
    """How many elements the call keeps for its backward."""
    saved = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        saved += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return saved


def central_differences(
    loss: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """The gradient of a double-precision loss, one element of x at a time.

    step² of truncation and 2⁻⁵³/step of cancellation are both far below float32's roundoff.
    """
    step = 1e-5
    differences = torch.empty(x.numel(), dtype=torch.float64)
    for i in range(x.numel()):
        ends = []
        for sign in (1, -1):
            moved = x.detach().double().flatten()
            moved[i] += sign * step
            ends.append(loss(moved.view(x.shape)))
        differences[i] = (ends[0] - ends[1]) / (2 * step)
    return differences.view(x.shape)
