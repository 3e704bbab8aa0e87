"""rope and lrpe_rotate with positions and pairs of every kind, against the formula."""

import warnings

import pytest
import torch

import attnops
from attnops import _rotary
from rope_cases import PAIRS, POSITIONS, B, D, H, K, N, rotate, sections_of, theta_of
from tolerances import ROTATION, ROTATION_GRADIENT, THETA_GRADIENT, assert_near_double

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def make(dtype: torch.dtype, heads: int = H) -> torch.Tensor:
    return torch.randn(B, N, heads, D).to(dtype)


def in_layout(x: torch.Tensor, layout: str) -> torch.Tensor:
    """A tensor (B,N,H,D) in the layout, or back."""
    return x if layout == "bnhd" else x.transpose(1, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["bnhd", "bhnd"])
@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize(("given", "positions"), POSITIONS.values(), ids=POSITIONS)
def test_rope_and_its_gradients(given, positions, pairs, layout, dtype):
    """Forward and backward of q, k and theta."""
    theta = theta_of(pairs.get("rotary_dim", D) // 2).requires_grad_()
    leaves = [make(dtype, heads).requires_grad_() for heads in (H, K)]
    outs = attnops.rope(
        *(in_layout(x, layout) for x in leaves), theta, layout=layout, **given, **pairs
    )
    outs = [in_layout(out, layout) for out in outs]
    d_outs = [torch.randn(x.shape).to(dtype) for x in leaves]
    *gradients, d_theta = torch.autograd.grad(outs, (*leaves, theta), d_outs)

    exact = [x.detach().double().requires_grad_() for x in leaves]
    exact_theta = theta.detach().double().requires_grad_()
    expected = [rotate(x, exact_theta[None], positions, **pairs) for x in exact]
    *expected_gradients, expected_theta = torch.autograd.grad(
        expected, (*exact, exact_theta), [d.double() for d in d_outs]
    )
    for actual, wanted, of in zip(outs, expected, leaves, strict=True):
        assert_near_double(actual, wanted, dtype, scale=of)
    for actual, wanted, of in zip(gradients, expected_gradients, d_outs, strict=True):
        assert_near_double(actual, wanted, dtype, scale=of)
    assert d_theta.dtype == torch.float32
    size = sum(
        (x.detach().double().abs().sum() * d.double().abs().max())
        for x, d in zip(leaves, d_outs, strict=True)
    )
    assert (d_theta - expected_theta).abs().max() <= THETA_GRADIENT * float(size) * N


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("sections_interleaved", [False, True])
@pytest.mark.parametrize("operator", ["rope", "lrpe_rotate"])
def test_sections(operator, sections_interleaved, interleaved):
    sections = sections_of(D)
    positions = torch.randint(0, 100, (3, B, N))
    options = {
        "sections": sections,
        "sections_interleaved": sections_interleaved,
        "interleaved": interleaved,
    }
    theta, x = theta_of(D // 2), make(torch.float32)
    if operator == "rope":
        out, _ = attnops.rope(x, x[:, :, :K], theta, positions=positions, **options)
    else:
        out = attnops.lrpe_rotate(x, theta[None], positions=positions, **options)
    expected = rotate(x.double(), theta.double()[None], positions, **options)
    assert_near_double(out, expected, torch.float32, scale=x)


@pytest.mark.parametrize("act", ["none", "silu", "softmax"])
@pytest.mark.parametrize("heads", [1, H], ids=["one theta", "one a head"])
@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
def test_lrpe_rotate_and_its_gradients(pairs, heads, act):
    """With activations too: theta's gradient is that of the formula."""
    theta = (
        theta_of(pairs.get("rotary_dim", D) // 2)[None] * torch.rand(heads, 1)
    ).requires_grad_()
    x = make(torch.float32).requires_grad_()
    given, positions = POSITIONS["of batches"]
    dim = {"dim": 1} if act == "softmax" else {}
    out = attnops.lrpe_rotate(x, theta, act=act, **dim, **given, **pairs)
    d_out = torch.randn_like(out)
    dx, d_theta = torch.autograd.grad(out, (x, theta), d_out)

    exact = x.detach().double().requires_grad_()
    exact_theta = theta.detach().double().requires_grad_()
    y = {"none": exact, "silu": torch.nn.functional.silu(exact), "softmax": exact.softmax(1)}[act]
    expected = rotate(y, exact_theta, positions, **pairs)
    expected_dx, expected_theta = torch.autograd.grad(
        expected, (exact, exact_theta), d_out.double()
    )
    torch.testing.assert_close(out.double(), expected, **ROTATION)
    torch.testing.assert_close(dx.double(), expected_dx, **ROTATION_GRADIENT)
    scale = (y.detach().abs().sum() * d_out.abs().max()).item() * N
    assert (d_theta - expected_theta).abs().max() <= THETA_GRADIENT * scale


@pytest.mark.parametrize("table_type", [torch.float32, torch.bfloat16], ids=str)
def test_cos_sin_of_the_caller(table_type):
    """The numbers of the caller's table, whatever they are."""
    q, k = make(torch.bfloat16), make(torch.bfloat16, K)
    cos_sin = torch.randn(64, D).to(table_type)
    positions = torch.randint(0, 64, (B, N))
    cos, sin = cos_sin.double()[positions][:, :, None].chunk(2, -1)
    for x, out in zip(
        (q, k), attnops.rope(q, k, cos_sin=cos_sin, positions=positions), strict=True
    ):
        u, v = x.double().chunk(2, -1)
        expected = torch.cat([u * cos - v * sin, u * sin + v * cos], -1)
        assert_near_double(out, expected, torch.bfloat16, scale=4 * x)
    for bad in (64, -1):
        positions[1, 3] = bad
        with pytest.raises(
            (ValueError, RuntimeError), match="rope: positions must be from 0 to 63"
        ):
            attnops.rope(q, k, cos_sin=cos_sin, positions=positions)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inplace(dtype):
    q, k, theta = make(dtype), make(dtype, K), theta_of(D // 2)
    expected = attnops.rope(q, k, theta, offset=5)
    version = q._version
    results = attnops.rope(q, k, theta, offset=5, inplace=True)
    assert results[0] is q
    assert results[1] is k
    assert torch.equal(q, expected[0])
    assert torch.equal(k, expected[1])
    assert q._version > version
    with pytest.raises((ValueError, RuntimeError), match="rope: the last axis"):
        attnops.rope(q.transpose(2, 3), q.transpose(2, 3), theta[:2], inplace=True)


def test_inplace_with_gradients():
    x, theta = torch.randn(2, 5, 3, 8, requires_grad=True), theta_of(4)
    q, k = x * 2, x * 3
    results = attnops.rope(q, k, theta, inplace=True)
    assert results[0] is q
    expected = attnops.rope(x * 2, x * 3, theta)
    weights = torch.randn(2, *q.shape)
    actual = torch.autograd.grad((torch.stack([q, k]) * weights).sum(), x)[0]
    wanted = torch.autograd.grad((torch.stack(expected) * weights).sum(), x)[0]
    torch.testing.assert_close(actual, wanted)


def test_prefill_and_decode_give_the_same_bits():
    q, k = make(torch.bfloat16), make(torch.bfloat16, K)
    theta = theta_of(D // 2)
    whole = attnops.rope(q, k, theta, offset=1000)
    for t in range(N):
        step = slice(t, t + 1)
        for given in ({"offset": 1000 + t}, {"positions": torch.full((B, 1), 1000 + t)}):
            part = attnops.rope(q[:, step], k[:, step], theta, **given)
            for result, expected in zip(part, whole, strict=True):
                assert torch.equal(result, expected[:, step])


def test_a_16_bit_theta_warns_once(monkeypatch):
    monkeypatch.setattr(_rotary, "_warned", False)
    x = torch.randn(1, 8, 2, 16).bfloat16()
    theta = theta_of(8)[None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attnops.lrpe_rotate(x, theta, 300)
        attnops.lrpe_rotate(x, theta.bfloat16(), 200)
        attnops.rope(x, x, theta.bfloat16(), positions=torch.arange(200, 208))
    with pytest.warns(UserWarning, match="rope: theta is bfloat16 .* Keep theta in float32"):
        attnops.rope(x, x, theta.bfloat16(), positions=torch.arange(300, 308))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attnops.lrpe_rotate(x, theta.bfloat16(), 300)
    for call in (
        lambda: attnops.lrpe_rotate(x, theta.bfloat16(), torch.tensor([300])),
        lambda: attnops.md_lrpe_cosine(x, theta[:, :1].expand(1, 16).bfloat16(), (2,), offset=300),
        lambda: attnops.flao_fal(x, x, x, x, theta=theta_of(16)[None].bfloat16(), offset=300),
    ):
        monkeypatch.setattr(_rotary, "_warned", False)
        with pytest.warns(UserWarning, match="theta is bfloat16"):
            call()


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("rope: positions must be int32 or int64; it is float32", {"positions": torch.ones(N)}),
        ("rope: positions must have the shape", {"positions": torch.ones(N - 1).long()}),
        ("rope: offset must have the shape", {"offset": torch.ones(N).long()}),
        (
            "rope: offset must be 0 with positions; it is 3",
            {"positions": torch.arange(N), "offset": 3},
        ),
        ("rope: rotary_dim must be even", {"rotary_dim": 7}),
        ("rope: sections need positions", {"sections": (4, 4, 4)}),
        (
            "rope: sections must have the sum 12",
            {"sections": (4, 4, 3), "positions": torch.ones(3, B, N).long()},
        ),
        ("rope: sections_interleaved must be false", {"sections_interleaved": True}),
        ("rope: scale must be finite", {"scale": float("inf")}),
        (
            "rope: exactly one of theta and cos_sin must be given; both are",
            {"cos_sin": torch.ones(9, D)},
        ),
        ("rope: exactly one of theta and cos_sin must be given; neither is", {"theta": None}),
        ("rope: theta has 3 heads; q has 1", {"theta": torch.ones(3, 12)}),
        ("rope: theta has 13 angles a head; q has 12 pairs", {"theta": torch.ones(13)}),
        ("rope: cos_sin has 8 columns; 24 features", {"theta": None, "cos_sin": torch.ones(50, 8)}),
        ("rope: offset must be from 0 to -12", {"theta": None, "cos_sin": torch.ones(9, D)}),
        ("rope: k has 2 batches; q has 3", {"k": torch.ones(2, N, K, D)}),
        ("rope: q must have 4 axes", {"q": torch.ones(B, N, D)}),
    ],
)
def test_errors(text, options):
    """The same text for tensors with data and without."""
    arguments = {
        "q": torch.ones(B, N, H, D),
        "k": torch.ones(B, N, K, D),
        "theta": theta_of(D // 2),
    }
    arguments |= options

    def message(call) -> str:
        with pytest.raises((ValueError, RuntimeError)) as caught:
            call()
        return str(caught.value).splitlines()[0]

    real = message(lambda: attnops.rope(**arguments))
    meta = {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    assert text in real
    assert message(lambda: attnops.rope(**meta)) == real


def test_layout_must_be_known():
    with pytest.raises(ValueError, match="rope: layout must be one of bnhd, bhnd"):
        attnops.rope(make(torch.float32), make(torch.float32), theta_of(12), layout="nbhd")
