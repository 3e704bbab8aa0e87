"""rope as a part of PyTorch: opcheck, torch.compile, second derivatives, learned theta."""

import pytest
import torch

import attnops
from rope_cases import rotate, theta_of
from tolerances import ROTATION, THETA_GRADIENT

OPTIONS = (None, None, 7, None, False, None, False, 1.0, 0)


def make(n: int = 5, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return torch.randn(2, n, 4, 8).to(dtype), torch.randn(2, n, 2, 8).to(dtype), theta_of(4)[None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck(dtype):
    q, k, theta = make(dtype=dtype)
    ops = torch.ops.attnops
    torch.library.opcheck(ops.rope.default, (q.requires_grad_(), k, theta, None, *OPTIONS))
    theta.requires_grad_()
    torch.library.opcheck(ops.rope.default, (q, k, theta, None, *OPTIONS))
    q, k, theta = (t.detach() for t in (q, k, theta))
    positions = torch.randint(0, 9, (2, 5))
    table = torch.randn(16, 8)
    for arguments in (
        (theta, None, *OPTIONS),
        (None, table, positions, None, 0, 8, True, None, False, 2.0, 0),
    ):
        torch.library.opcheck(ops.rope_forward.default, (q, k, *arguments))
        torch.library.opcheck(ops.rope_backward.default, (q, k, *arguments))
        torch.library.opcheck(ops.rope_.default, (q.clone(), k.clone(), *arguments))
    torch.library.opcheck(ops.rope_dtheta.default, (q, k, q, k, theta, *OPTIONS))
    torch.library.opcheck(ops.lrpe_rotate_dtheta.default, (q, theta, q, 7, 3, None))


@pytest.mark.parametrize("grad", [False, True])
def test_compiled(grad):
    """In one graph, for positions and lengths that change."""

    def block(q, k, theta, positions):
        q, k = attnops.rope(2 * q, k + 1, theta, positions=positions)
        return q + k.repeat_interleave(2, 2)

    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for n in (5, 1, 9):
        q, k, theta = make(n)
        positions = torch.randint(0, 100, (2, n))
        leaves = (q.requires_grad_(grad), k.requires_grad_(grad), theta.requires_grad_(grad))
        out, expected = compiled(*leaves, positions), block(*leaves, positions)
        torch.testing.assert_close(out, expected)
        if grad:
            d_out = torch.randn_like(out)
            for actual, wanted in zip(
                torch.autograd.grad(out, leaves, d_out),
                torch.autograd.grad(expected, leaves, d_out),
                strict=True,
            ):
                torch.testing.assert_close(actual, wanted)


def test_compiled_in_place():
    def block(q, k, theta):
        q, k = q + 1, k + 1
        attnops.rope(q, k, theta, offset=3, inplace=True)
        return q, k

    torch._dynamo.reset()
    with torch.no_grad():
        inputs = make()
        for actual, wanted in zip(
            torch.compile(block, fullgraph=True)(*inputs), block(*inputs), strict=True
        ):
            torch.testing.assert_close(actual, wanted)


def test_second_derivative():
    """The rotation is linear in q and k; theta's second derivative does not exist."""
    q, k, theta = make()
    q.requires_grad_()
    out = attnops.rope(q, k, theta)[0]
    d_out = torch.randn_like(out).requires_grad_()
    (dq,) = torch.autograd.grad(out, q, d_out, create_graph=True)
    weight = torch.randn_like(dq)
    (d_d_out,) = torch.autograd.grad(dq, d_out, weight)
    expected = rotate(weight.double(), theta.double(), torch.arange(5).expand(1, 2, 5))
    torch.testing.assert_close(d_d_out.double(), expected, **ROTATION)
    theta.requires_grad_()
    for operator in (lambda: attnops.rope(q, k, theta)[0], lambda: attnops.lrpe_rotate(q, theta)):
        out = operator()
        dq, d_theta = torch.autograd.grad(out, (q, theta), d_out, create_graph=True)
        with pytest.raises(NotImplementedError, match="no second derivative"):
            torch.autograd.grad(d_theta.sum(), q, retain_graph=True)
        with pytest.raises(NotImplementedError, match="no second derivative with respect to theta"):
            torch.autograd.grad(dq.sum(), theta)


def test_what_has_no_gradient_says_so():
    q, k, theta = make()
    with pytest.raises(ValueError, match="rope: cos_sin must not require grad"):
        attnops.rope(q, k, cos_sin=torch.randn(9, 8, requires_grad=True))
    theta.requires_grad_()
    with pytest.raises(ValueError, match="lrpe_table: theta must not require grad"):
        attnops.lrpe_table(theta, (5,), 4)


def test_nothing_is_kept_without_a_gradient():
    q, k, theta = make()
    assert attnops.rope(q, k, theta)[0].grad_fn is None
    q.requires_grad_()
    with torch.no_grad():
        assert attnops.rope(q, k, theta)[0].grad_fn is None
    out = attnops.rope(q, k, theta)[0]
    assert all(t is None for t in out.grad_fn.saved_tensors[:2])  # q and k are for theta alone


def test_torch_func():
    """The gradient of eager mode, and no tangent of zero."""
    q, k, theta = make()
    learned = theta.clone().requires_grad_()
    attnops.rope(q, k, learned)[0].sum().backward()
    actual = torch.func.grad(lambda theta: attnops.rope(q, k, theta)[0].sum())(theta)
    assert torch.equal(actual, learned.grad)
    with pytest.raises(NotImplementedError, match="rope: q has a tangent"):
        torch.func.jvp(lambda q: attnops.rope(q, k, theta), (q,), (q,))


@pytest.mark.parametrize("offset", [0, 1_000_000])
def test_learned_theta_of_the_others(offset):
    """md_lrpe_cosine and flao_fal against double precision."""
    theta = (torch.rand(3, 8) * 1e-3).requires_grad_()
    exact = theta.detach().double().requires_grad_()
    x, v, g = (torch.randn(2, 3, 11, 8) for _ in range(3))

    def encode(y: torch.Tensor, start: int) -> torch.Tensor:
        angle = (start + torch.arange(11).double())[:, None] * exact[:, None, :]
        encoded = torch.cat([y * angle.cos(), y * angle.sin()], -1)
        encoded.retain_grad()
        return encoded

    def magnitude(encoded: torch.Tensor, start: int) -> torch.Tensor:
        (o1, o2), (d1, d2) = (t.detach().abs().chunk(2, -1) for t in (encoded, encoded.grad))
        position = (start + torch.arange(11).double())[:, None]
        return (position * (o1 * d2 + o2 * d1 + o1 * d1 + o2 * d2)).sum((0, 2))

    out = attnops.md_lrpe_cosine(x, theta, (11,), offset=offset, act="silu")
    d_out = torch.randn_like(out)
    (actual,) = torch.autograd.grad(out, theta, d_out)
    expected = encode(torch.nn.functional.silu(x.double()), offset)
    expected.backward(d_out.double())
    _assert_near(actual, exact.grad, magnitude(expected, offset))

    exact.grad = None
    out = attnops.flao_fal(x, x, v, g, theta=theta, offset=offset)
    d_out = torch.randn_like(out)
    (actual,) = torch.autograd.grad(out, theta, d_out)
    q, k = encode(x.double(), offset), encode(x.double(), 0)
    (g.double() * (q @ (k.transpose(-1, -2) @ v.double()))).backward(d_out.double())
    _assert_near(actual, exact.grad, magnitude(q, offset) + magnitude(k, 0))


def _assert_near(actual: torch.Tensor, expected: torch.Tensor, magnitude: torch.Tensor) -> None:
    assert actual.dtype == torch.float32
    assert ((actual - expected).abs() <= THETA_GRADIENT * magnitude).all()
