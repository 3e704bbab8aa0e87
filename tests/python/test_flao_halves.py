"""flao_kv and flao_out, and the halves of flao_fal: values, gradients, what torch asks for."""

from itertools import pairwise

import pytest
import torch

import attnops
import flao_cases
import reference
from flao_cases import DTYPES
from tolerances import assert_close, sums

_CUTS = (0, 3, 11, 11, 40, 50)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), [(5, 7), (0, 5), (5, 0), (300, 1500)])
def test_halves_against_reference(dtype: torch.dtype, n: int, m: int) -> None:
    args, d_out = flao_cases.make_case(n=n, m=m, dtype=dtype)
    q, k, v, g = args
    kv = attnops.flao_kv(k, v, precision="highest")
    assert kv.dtype == torch.float32
    out = attnops.flao_out(q, kv, g, precision="highest")
    (d, e) = q.shape[-1], v.shape[-1]
    assert_close(out, reference.flao(*args), dtype, arithmetic=sums(m, d))
    expected = reference.flao_backward(*args, d_out)
    terms = [(m, e), (n, e), (n, d), (m, d)]
    for actual, wanted, counts in zip(
        torch.autograd.grad(out, args, d_out), expected, terms, strict=True
    ):
        assert_close(actual, wanted, dtype, arithmetic=sums(*counts))


@pytest.mark.parametrize("dtype", DTYPES)
def test_halves_are_flao_bit_for_bit(dtype: torch.dtype) -> None:
    args, d_out = flao_cases.make_case(n=70, m=90, dtype=dtype)
    q, k, v, g = args
    whole = attnops.flao(*args, keep="kv")
    halves = attnops.flao_out(q, attnops.flao_kv(k, v), g)
    assert torch.equal(whole, halves)
    for a, b in zip(
        torch.autograd.grad(whole, args, d_out),
        torch.autograd.grad(halves, args, d_out),
        strict=True,
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("lrpe", "features", "shape", "l"),
    [
        ("none", 16, None, 0),
        ("cosine", 16, None, 7),
        ("rotate", 32, None, 5),
        ("cosine", 16, (6, 8), 2),
        ("rotate", 32, (4, 3, 4), 2),
    ],
)
def test_parts_of_a_sequence_are_the_whole(lrpe, features, shape, l) -> None:
    """Against flao_fal, in both passes, with theta's gradient."""
    theta = None if lrpe == "none" else torch.rand(3, 16, requires_grad=True)
    encoding = {"theta": theta, "lrpe": lrpe, "shape": shape, "l": l}
    shapes = ((2, 3, 50, features),) * 2 + ((2, 3, 50, 24),) * 2
    q, k, v, g = (torch.randn(s, requires_grad=True) for s in shapes)
    acts = {"q": ("silu", None), "k": ("softmax", -1), "v": ("sigmoid", None), "g": ("relu", None)}
    whole = attnops.flao_fal(q, k, v, g, *(x for act in acts.values() for x in act), **encoding)
    kv = sum(
        attnops.flao_fal_kv(k[:, :, a:b], v[:, :, a:b], *acts["k"], *acts["v"], **encoding, start=a)
        for a, b in pairwise(_CUTS)
    )
    parts = [
        attnops.flao_fal_out(
            q[:, :, a:b], kv, g[:, :, a:b], *acts["q"], *acts["g"], **encoding, start=a
        )
        for a, b in pairwise(_CUTS)
    ]
    inputs = [q, k, v, g] + ([] if theta is None else [theta])
    d_out = torch.randn_like(whole)
    found = (torch.cat(parts, 2), *torch.autograd.grad(torch.cat(parts, 2), inputs, d_out))
    expected = (whole, *torch.autograd.grad(whole, inputs, d_out))
    for a, b in zip(found, expected, strict=True):
        # Sums of the same terms in another order.
        torch.testing.assert_close(
            a, b, rtol=0, atol=sums(50, 64) * 4 * b.detach().abs().max().item()
        )


def test_torch_asks() -> None:
    (q, k, v, g), _ = flao_cases.make_case(n=4, m=5)
    kv = torch.randn(2, 3, 8, 6, requires_grad=True)
    theta = torch.rand(3, 8, requires_grad=True)
    ops = torch.ops.attnops
    torch.library.opcheck(ops.flao_kv.default, (k, v, None))
    torch.library.opcheck(ops.flao_out.default, (q, kv, g, None))
    stages = (3, None, 1, None, 1, None, 2, 1, 3, None)
    torch.library.opcheck(ops.flao_fal_kv.default, (k, v, theta, *stages))
    wide = torch.randn(2, 3, 16, 6, requires_grad=True)
    torch.library.opcheck(ops.flao_fal_out.default, (q, wide, g, theta, *stages))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda k, v: attnops.flao_kv(k, v[:, :, 1:]), "flao_kv: v has 6 tokens; k has 7"),
        (
            lambda k, v: attnops.flao_out(k, torch.zeros(2, 3, 6, 8), v),
            r"flao_out: kv must have the shape \(2, 3, 8, 6\); it has \(2, 3, 6, 8\)",
        ),
        (
            lambda k, v: attnops.flao_out(k, torch.zeros(2, 3, 8, 6).bfloat16(), v),
            "flao_out: kv must be float32; it is bfloat16",
        ),
        (
            lambda k, v: attnops.flao_fal_kv(k, v, theta=torch.ones(1, 8), start=-1),
            "flao_fal_kv: start must not be negative; it is -1",
        ),
        (
            lambda k, v: attnops.flao_fal_kv(k, v, lrpe="rotate"),
            r"flao_fal_kv: theta is missing; the encoding \(lrpe\) needs it",
        ),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bad_input(call, text: str, device: str) -> None:
    with torch.device(device):
        k, v = torch.zeros(2, 3, 7, 8), torch.zeros(2, 3, 7, 6)
        with pytest.raises(ValueError, match=text):
            call(k, v)
