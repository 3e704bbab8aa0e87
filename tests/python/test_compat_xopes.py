"""attnops.compat.xopes, called as upstream's tests call it, beside the formulas in float64."""

import itertools

import pytest
import torch
from torch.nn import functional as F

from attnops.compat import xopes
from tolerances import UPSTREAM

TYPES = [torch.float32, torch.float16, torch.bfloat16]
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)
ACTS = [("none", None), ("relu", None), ("sigmoid", None), ("silu", None), ("softmax", -1)]
FUNCTIONS = {"relu": F.relu, "sigmoid": torch.sigmoid, "silu": F.silu}


def activated(x: torch.Tensor, act: str, dim: int | None) -> torch.Tensor:
    x = x.double()
    if act == "none":
        return x
    return x.softmax(dim) if act == "softmax" else FUNCTIONS[act](x)


def leaf(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def assert_same(actual, expected, inputs, dtype) -> None:
    """Values and gradients, with upstream's tolerances."""
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), expected, **UPSTREAM[dtype])
    d_out = torch.randn_like(actual)
    actual = torch.autograd.grad(actual, inputs, d_out)
    expected = torch.autograd.grad(expected, inputs, d_out.double(), retain_graph=True)
    for result, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(result.double(), wanted.double(), **UPSTREAM[dtype])


def cosine(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    return torch.cat([x * angles.cos(), x * angles.sin()], -1)


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


@each_type
@pytest.mark.parametrize(("act", "dim"), [*ACTS, ("softmax", 1)])
@pytest.mark.parametrize("rows", ["(H,D)", "(H,1)", "(1,D)", "no heads"])
def test_lrpe_cosine(dtype, act, dim, rows):
    b, n, h, d, offset = 2, 33, 3, 16, 4
    x = leaf(b, n, d, dtype=dtype) if rows == "no heads" else leaf(b, n, h, d, dtype=dtype)
    shape = {"(H,D)": (h, d), "(H,1)": (h, 1), "(1,D)": (1, d), "no heads": (1, d)}[rows]
    theta = torch.randn(shape)
    angles = (offset + torch.arange(n))[:, None, None] * theta.double()
    angles = angles[:, 0] if rows == "no heads" else angles
    expected = cosine(activated(x, act, dim), angles)
    actual = xopes.lrpe_fn(x, theta, offset=offset, act=act, dim=dim, lrpe_type="cosine")
    assert_same(actual, expected, [x], dtype)
    same = xopes.lrpe_cosine_fn(x, theta, offset=offset, act=act, dim=dim)
    assert torch.equal(same, actual)


@each_type
@pytest.mark.parametrize(("act", "dim"), [*ACTS, ("softmax", 1)])
@pytest.mark.parametrize("rows", ["(H,D/2)", "(H,1)", "(1,D/2)", "no heads"])
def test_lrpe_rotate(dtype, act, dim, rows):
    b, n, h, d, offset = 2, 33, 3, 16, 4
    x = leaf(b, n, d, dtype=dtype) if rows == "no heads" else leaf(b, n, h, d, dtype=dtype)
    half = d // 2
    shape = {"(H,D/2)": (h, half), "(H,1)": (h, 1), "(1,D/2)": (1, half), "no heads": (1, half)}
    theta = torch.randn(shape[rows])
    angles = (offset + torch.arange(n))[:, None, None] * theta.double()
    angles = angles[:, 0] if rows == "no heads" else angles
    expected = rotated(activated(x, act, dim), angles)
    actual = xopes.lrpe_fn(x, theta, offset=offset, act=act, dim=dim, lrpe_type="rotate")
    assert_same(actual, expected, [x], dtype)
    same = xopes.lrpe_rotate_fn(x, theta, offset=offset, act=act, dim=dim, BLOCK=64)
    assert torch.equal(same, actual)


@each_type
@pytest.mark.parametrize("shape", [None, (20,), (4, 5), (2, 2, 5)], ids=str)
@pytest.mark.parametrize("l", [0, 3])
def test_lrpe_cosine_md(dtype, shape, l):
    b, h, d = 2, 3, 12
    grid = (20,) if shape is None else shape
    x = leaf(b, h, l + 20, d, dtype=dtype)
    each = -(-d // len(grid))
    theta = torch.randn(h, each)
    index = torch.tensor(list(itertools.product(*map(range, grid))))
    features = torch.arange(d)
    angles = index[:, features // each] * theta.double()[:, None, features % each]
    angles = torch.cat([torch.zeros(h, l, d), angles], 1)
    expected = cosine(activated(x, "silu", None), angles)
    for function in (
        xopes.lrpe_cosine_md_fn,
        xopes.lrpe_cosine_md_triton,
        xopes.lrpe_cosine_md_cache_triton,
        xopes.lrpe_cosine_md_torch,
    ):
        actual = function(x, theta, shape=shape, l=l, act="silu")
        assert_same(actual, expected, [x], dtype)


@each_type
def test_flao_non_causal(dtype):
    b, h, n, m, d, e = 2, 3, 20, 30, 8, 16
    q, k = leaf(b, h, n, d, dtype=dtype), leaf(b, h, m, d, dtype=dtype)
    v, g = leaf(b, h, m, e, dtype=dtype), leaf(b, h, n, e, dtype=dtype)
    # Upstream's sizes of products: results of order 1.
    with torch.no_grad():
        for x in (q, k, v):
            x.mul_(0.3)
    expected = g.double() * (q.double() @ (k.double().mT @ v.double()))
    assert_same(xopes.flao_non_causal_fn(q, k, v, g), expected, [q, k, v, g], dtype)


@each_type
@pytest.mark.parametrize("lrpe_type", ["cosine", "rotate", None])
@pytest.mark.parametrize("name", ["flao_fal_non_causal_fn", "flao_fal_non_causal_torch"])
def test_flao_fal_non_causal(dtype, lrpe_type, name):
    b, h, n, d, e, offset = 2, 3, 20, 8, 16, 5
    q, k = leaf(b, h, n, d, dtype=dtype), leaf(b, h, n, d, dtype=dtype)
    v, g = leaf(b, h, n, e, dtype=dtype), leaf(b, h, n, e, dtype=dtype)
    with torch.no_grad():
        for x in (q, k, v):
            x.mul_(0.3)
    theta = None if lrpe_type is None else torch.randn(h, d if lrpe_type == "cosine" else d // 2)
    encode = {"cosine": cosine, "rotate": rotated, None: lambda x, _: x}[lrpe_type]
    angles = 0 if theta is None else torch.arange(n)[:, None] * theta.double()[:, None]
    moved = 0 if theta is None else angles + offset * theta.double()[:, None]
    queries = encode(activated(q, "silu", None), moved)
    keys = encode(activated(k, "softmax", -2), angles)
    values, gates = activated(v, "relu", None), activated(g, "sigmoid", None)
    expected = gates * (queries @ (keys.mT @ values))
    actual = getattr(xopes, name)(
        q,
        k,
        v,
        g,
        q_act="silu",
        k_act="softmax",
        k_act_dim=-2,
        v_act="relu",
        g_act="sigmoid",
        theta=theta,
        lrpe_type=lrpe_type or "cosine",
        offset=offset,
    )
    assert_same(actual, expected, [q, k, v, g], dtype)


@each_type
@pytest.mark.parametrize(
    "name",
    ["fn", "torch", "naive_torch", "parallel_b_triton", "parallel_bh_triton", "parallel_bn_triton"],
)
@pytest.mark.parametrize("scales", [False, True])
def test_tpa_decode(dtype, name, scales):
    b, m, h, r, d, e = 2, 40, 3, 4, 16, 8
    aq, ak, av = (leaf(*shape, dtype=dtype) for shape in ((b, 1, h, r), (b, m, h), (b, m, h)))
    bq, bk, bv = (leaf(*shape, dtype=dtype) for shape in ((b, 1, r, d), (b, m, d), (b, m, e)))
    given = {"scale": 0.2, "scale_q": 0.5, "scale_k": 0.7, "scale_v": 2.0} if scales else {}
    scale, scale_q, scale_k, scale_v = given.values() if given else (d**-0.5, 1 / r, 1, 1)
    q = scale_q * aq.double() @ bq.double()
    k = scale_k * ak.double().unsqueeze(3) * bk.double().unsqueeze(2)
    v = scale_v * av.double().unsqueeze(3) * bv.double().unsqueeze(2)
    weights = (scale * torch.einsum("bnhd,bmhd->bhnm", q, k)).softmax(-1)
    expected = torch.einsum("bhnm,bmhe->bnhe", weights, v)
    inputs = [aq, ak, av, bq, bk, bv]
    function = getattr(xopes, f"tpa_decode_{name}")
    assert_same(function(*inputs, **given), expected, inputs, dtype)
    with torch.no_grad():
        actual = function(*inputs, **given)
    torch.testing.assert_close(actual.double(), expected.detach(), **UPSTREAM[dtype])


def lightning(q, k, v, decay_k, decay_v, state):
    """The recurrence; decays (B,N,H,D) and (B,N,H,E)."""
    outs = []
    for t in range(q.shape[1]):
        state = state * decay_k[:, t, :, :, None].exp() * decay_v[:, t, :, None].exp()
        state = state + k[:, t, :, :, None] * v[:, t, :, None]
        outs.append((q[:, t, :, None] @ state).squeeze(2))
    return torch.stack(outs, 1), state


LIGHTNING = {
    "no decay": ("constant", ()),
    "constant": ("constant", ("ld",)),
    "scalar": ("scalar", ("ld",)),
    "vector of k": ("vector", ("ldk",)),
    "vector of v": ("vector", ("ldv",)),
    "vector of both": ("vector", ("ldk", "ldv")),
    "without k": ("vector", ("ldk", "no k")),
    "without v": ("vector", ("ldv", "no v")),
    "without both": ("vector", ("ldk", "ldv", "no k", "no v")),
}


@each_type
@pytest.mark.parametrize("case", LIGHTNING)
@pytest.mark.parametrize("initial", [None, 3, 4])
def test_lightning_attn(dtype, case, initial):
    b, n, h, d, e = 2, 20, 3, 8, 6
    decay_type, given = LIGHTNING[case]
    q, k, v = (leaf(b, n, h, size, dtype=dtype) for size in (d, d, e))
    with torch.no_grad():
        for x in (q, k, v):
            x.mul_(0.3)
    shapes = {
        "ld": (h,) if decay_type == "constant" else (b, n, h),
        "ldk": (b, n, h, d),
        "ldv": (b, n, h, e),
    }
    decays = {
        name: F.logsigmoid(torch.randn(shape)).to(dtype).requires_grad_()
        for name, shape in shapes.items()
        if name in given
    }
    # In float64, as they are after their rounding.
    exact = {name: value.double() for name, value in decays.items()}
    zeros_k, zeros_v = torch.zeros(b, n, h, d).double(), torch.zeros(b, n, h, e).double()
    decay_k, decay_v = exact.get("ldk", zeros_k), exact.get("ldv", zeros_v)
    if "ld" in exact:
        decay_k = zeros_k + exact["ld"][..., None]
    keys = 1 - decay_k.exp() if "no k" in given else k.double()
    values = 1 - decay_v.exp() if "no v" in given else v.double()
    start = torch.zeros(b, h, d, e)
    state = None
    if initial is not None:
        state = torch.randn((b, h, d, e)[4 - initial :])
        start = state.expand(b, h, d, e)
    expected, last = lightning(q.double(), keys, values, decay_k, decay_v, start.double())
    actual, new_state = xopes.lightning_attn_func(
        q,
        None if "no k" in given else k,
        None if "no v" in given else v,
        **decays,
        initial_state=state,
        decay_type=decay_type,
        save_states=False,
        use_chunk_loop=True,
    )
    torch.testing.assert_close(new_state.double(), last, **UPSTREAM[dtype])
    inputs = [q, *(x for x, name in ((k, "no k"), (v, "no v")) if name not in given)]
    if dtype == torch.float32:  # sums of many rounded terms otherwise, to be rounded again
        inputs += decays.values()
    assert_same(actual, expected, inputs, dtype)


def test_lightning_attn_of_packed_sequences():
    q, k, v = (torch.randn(1, 12, 3, 8) for _ in range(3))
    ends = torch.tensor([0, 5, 12])
    ld, state = -torch.rand(3), torch.randn(3, 8, 8)
    o, states = xopes.lightning_attn_func(q, k, v, ld, initial_state=state, cu_seqlens=ends)
    for i, part in enumerate((slice(0, 5), slice(5, 12))):
        alone, last = xopes.lightning_attn_func(
            q[:, part], k[:, part], v[:, part], ld, initial_state=state
        )
        torch.testing.assert_close(o[:, part], alone)
        torch.testing.assert_close(states[i : i + 1], last)


Q = torch.randn(2, 5, 3, 8)
ERRORS = {
    "positional": lambda: xopes.lightning_attn_func(Q, Q, Q, decay_type="positional"),
    "element": lambda: xopes.lightning_attn_func(Q, Q, Q, decay_type="element"),
    "other": lambda: xopes.lightning_attn_func(Q, Q, Q, decay_type="other"),
    "ld": lambda: xopes.lightning_attn_func(Q, Q, Q, decay_type="scalar"),
    "ldk": lambda: xopes.lightning_attn_func(Q, Q, Q, decay_type="vector"),
    "vector": lambda: xopes.lightning_attn_func(Q, Q, Q, ldk=-Q.abs()),
    "v": lambda: xopes.lightning_attn_func(Q, Q),
    "lrpe_type": lambda: xopes.lrpe_fn(Q, Q[0, 0], lrpe_type="sine"),
    "x": lambda: xopes.lrpe_fn(Q[0, 0], Q[0, 0]),
    "dim": lambda: xopes.lrpe_fn(Q, Q[0, 0], act="softmax", dim=2),
    "cu_seqlens": lambda: xopes.tpa_decode_fn(*[Q] * 6, cu_seqlens=torch.tensor([0, 1])),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    with pytest.raises((ValueError, NotImplementedError), match=rf"\b{name}\b") as caught:
        ERRORS[name]()
    missing = name in ("positional", "element", "cu_seqlens")
    assert (caught.type is NotImplementedError) == missing
