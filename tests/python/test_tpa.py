"""tpa, tpa_decode with ranks, and the layer and the cache of attnops.nn, against plain PyTorch."""

import pytest
import torch
from torch import nn

import attnops
from attnops.nn import TensorProductAttention, TPACache
from attnops_bench.operators._tpa_torch import int8_error
from support import central_differences, error_of
from tolerances import ROUNDOFF, TPA_LAYER, TPA_LAYER_GRADIENT, assert_layers_close

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAMES = ("aq", "ak", "av", "bq", "bk", "bv")


def factors(b=2, n=5, m=7, h=3, ranks=(3, 2, 2), d=8, e=6, dtype=torch.float32):
    """aq, ak, av, bq, bk and bv by name."""
    rq, rk, rv = ranks
    shapes = [(b, n, h, rq), (b, m, h, rk), (b, m, h, rv), (b, n, rq, d), (b, m, rk, d)]
    shapes.append((b, m, rv, e))
    torch.manual_seed(7)
    tensors = [torch.randn(shape).to(dtype) for shape in shapes]
    return dict(zip(NAMES, tensors, strict=True))


def materialised(aq, ak, av, bq, bk, bv, causal=True, q=None):
    """With K and V in memory."""
    q = torch.einsum("bnhr,bnrd->bhnd", aq, bq) / aq.shape[3] if q is None else q.transpose(1, 2)
    k = torch.einsum("bmhr,bmrd->bhmd", ak, bk) / ak.shape[3]
    v = torch.einsum("bmhr,bmrd->bhmd", av, bv) / av.shape[3]
    s = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        n, m = s.shape[-2:]
        s = s.masked_fill(torch.ones(n, m, dtype=torch.bool).triu(1 + m - n), float("-inf"))
    return (s.softmax(-1) @ v).transpose(1, 2), s.logsumexp(-1)


def close(actual, expected, dtype, units=64):
    """Within some units of the type, relative to the largest number of the result."""
    error = (actual.detach().double() - expected.detach()).abs().max()
    assert error <= units * ROUNDOFF[dtype] * expected.abs().max()


def doubles(args):
    return {name: x.double() for name, x in args.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_both_passes(dtype, causal):
    args = factors(dtype=dtype)
    exact = {name: x.double().requires_grad_() for name, x in args.items()}
    args = {name: x.requires_grad_() for name, x in args.items()}
    out = attnops.tpa(**args, causal=causal)
    expected, _ = materialised(**exact, causal=causal)
    close(out, expected, dtype)
    d_out = torch.randn(out.shape).to(dtype)
    gradients = torch.autograd.grad(out, list(args.values()), d_out)
    wanted = torch.autograd.grad(expected, list(exact.values()), d_out.double())
    for gradient, right in zip(gradients, wanted, strict=True):
        close(gradient, right, dtype, 256)


def test_full_queries():
    args = factors()
    q = torch.randn(2, 5, 3, 8, requires_grad=True)
    out = attnops.tpa(None, args["ak"], args["av"], None, args["bk"], args["bv"], q=q)
    expected, _ = materialised(**doubles(args), q=q.double())
    close(out, expected, torch.float32)
    (gradient,) = torch.autograd.grad(out.sum(), q)
    (right,) = torch.autograd.grad(expected.sum(), q)
    close(gradient, right, torch.float32, 256)


def test_finite_differences():
    args = factors(b=1, n=2, m=3, h=2, d=4, e=3)
    for name in NAMES:
        x = args[name].requires_grad_()
        (gradient,) = torch.autograd.grad(attnops.tpa(**args).square().sum(), x)

        def loss(moved, name=name):
            return materialised(**doubles(args) | {name: moved})[0].square().sum()

        close(gradient, central_differences(loss, x), torch.float32, 512)
        args[name] = x.detach()


def test_opcheck():
    args = {name: x.requires_grad_() for name, x in factors().items()}
    rest = (None, True, None, None, None, None, None)
    torch.library.opcheck(torch.ops.attnops.tpa.default, (*args.values(), *rest))
    one = factors(n=1)
    lengths = torch.tensor([3, 7])
    rest = (None, None, None, None, None, 0, lengths, None, None)
    one = {name: x.requires_grad_() for name, x in one.items()}
    torch.library.opcheck(torch.ops.attnops.tpa_decode_ranks.default, (*one.values(), *rest))


def test_compiled():
    def block(aq, ak, av, bq, bk, bv):
        return attnops.tpa(2 * aq, ak, av, bq, bk, bv) + 1

    torch._dynamo.reset()
    args = factors()
    torch.testing.assert_close(torch.compile(block, fullgraph=True)(**args), block(**args))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decode_with_lengths_and_lse(dtype):
    args = factors(b=3, n=1, m=40, h=17, ranks=(6, 2, 2), d=16, dtype=dtype)
    lengths = torch.tensor([40, 0, 13])
    out, lse = attnops.tpa_decode(**args, lengths=lengths, return_lse=True)
    for b, length in enumerate(lengths.tolist()):
        one = {
            name: x[b : b + 1, : length if name[1] != "q" else 1].double()
            for name, x in args.items()
        }
        if length == 0:
            assert torch.equal(out[b], torch.zeros_like(out[b]))
            assert lse[b].isneginf().all()
            continue
        expected, logs = materialised(**one, causal=False)
        close(out[b : b + 1], expected, dtype)
        close(lse[b : b + 1], logs, torch.float32)


@pytest.mark.parametrize("rank_1", [True, False])
def test_decode_has_a_gradient(rank_1):
    args = factors(n=1, ranks=(3, 1, 1) if rank_1 else (3, 2, 2))
    given = dict(args)
    if rank_1:
        given |= {"ak": args["ak"][..., 0], "av": args["av"][..., 0]}
        given |= {"bk": args["bk"][:, :, 0], "bv": args["bv"][:, :, 0]}
    given = {name: x.detach().requires_grad_() for name, x in given.items()}
    out = attnops.tpa_decode(**given)
    exact = {name: x.double().requires_grad_() for name, x in args.items()}
    expected, _ = materialised(**exact, causal=False)
    close(out, expected, torch.float32)
    gradients = torch.autograd.grad(out.sum(), list(given.values()))
    wanted = torch.autograd.grad(expected.sum(), list(exact.values()))
    for gradient, right in zip(gradients, wanted, strict=True):
        close(gradient, right.reshape(gradient.shape), torch.float32, 256)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_decode_with_lengths_has_a_gradient(dtype, paged, full):
    """Against autograd on the tokens of each sequence; what lies behind them is not read."""
    args = factors(b=3, n=1, m=9, dtype=dtype)
    lengths = torch.tensor([9, 0, 4])
    options = {"lengths": lengths}
    if full:
        args |= {"aq": None, "bq": None, "q": torch.randn(3, 1, 3, 8).to(dtype)}
    keys = {name: args[name].clone() for name in ("ak", "av", "bk", "bv")}
    if paged:
        # Sequence 2 begins with a page of sequence 0; places without a page have any number.
        pages = torch.tensor([[4, 0, 2], [-1, 99, 7], [4, 3, -5]])
        options["page_table"] = pages
        for name, x in keys.items():
            pool = torch.full((5, 3, *x.shape[2:]), float("nan"), dtype=dtype)
            pool[pages[0]] = x[0].unflatten(0, (3, 3))
            pool[3, :1] = x[2, 3:4]
            x[2, :3] = x[0, :3]
            args[name] = pool
    else:
        for name, length in ((n, k) for n in keys for k in enumerate(lengths.tolist())):
            args[name][length[0], length[1] :] = float("nan")
    args = {name: None if x is None else x.requires_grad_() for name, x in args.items()}
    out = attnops.tpa_decode(**args, **options)
    given = {name: x for name, x in args.items() if x is not None}
    d_out = torch.randn(out.shape).to(dtype)
    gradients = dict(zip(given, torch.autograd.grad(out, given.values(), d_out), strict=True))

    exact = {name: x.double().requires_grad_() for name, x in keys.items()}
    query = {n: x.detach().double().requires_grad_() for n, x in given.items() if n[-1] == "q"}
    outs = []
    for b, length in enumerate(lengths.tolist()):
        one = {name: x[b : b + 1, :length] for name, x in exact.items()}
        one |= {"aq": None, "bq": None} | {name: x[b : b + 1] for name, x in query.items()}
        outs.append(materialised(**one, causal=False)[0])
    expected = torch.cat(outs)
    close(out, expected, dtype)
    wanted = torch.autograd.grad(expected, [*exact.values(), *query.values()], d_out.double())
    for name, right in zip([*exact, *query], wanted, strict=True):
        if paged and name in keys:
            pool = right.new_zeros(gradients[name].shape)
            pool[pages[0]] += right[0].unflatten(0, (3, 3))
            pool[4] += right[2, :3]
            pool[3, :1] += right[2, 3:4]
            right = pool
        close(gradients[name], right, dtype, 256)
        assert torch.equal(gradients[name] == 0, right == 0)


BAD = {
    "ranks of bk": ("bk", {"bk": (2, 7, 3, 8)}),
    "heads of av": ("av", {"av": (2, 7, 4, 2)}),
    "features of bk": ("bk", {"bk": (2, 7, 2, 9)}),
    "tokens of bv": ("bv", {"bv": (2, 6, 2, 6)}),
    "batches of ak": ("ak", {"ak": (1, 7, 3, 2)}),
    "three axes": ("bv", {"bv": (2, 7, 6)}),
    "ranks of bq": ("bq", {"bq": (2, 5, 2, 8)}),
    "no ranks": ("aq", {"aq": (2, 5, 3, 0), "bq": (2, 5, 0, 8)}),
    "fewer keys than queries": (
        "ak",
        {"ak": (2, 4, 3, 2), "av": (2, 4, 3, 2), "bk": (2, 4, 2, 8), "bv": (2, 4, 2, 6)},
    ),
}


@pytest.mark.parametrize(("argument", "changed"), BAD.values(), ids=BAD)
def test_bad_shapes(argument, changed):
    """The text is the same with and without data."""
    args = factors() | {name: torch.ones(shape) for name, shape in changed.items()}
    text = error_of("tpa", lambda: attnops.tpa(**args), argument)
    meta = {name: x.to("meta") for name, x in args.items()}
    assert error_of("tpa", lambda: attnops.tpa(**meta), argument) == text


def test_bad_lengths_and_pages():
    args = factors(n=1)
    for lengths in (torch.tensor([8, 1]), torch.tensor([-1, 1])):
        error_of("tpa_decode", lambda x=lengths: attnops.tpa_decode(**args, lengths=x), "lengths")
    short = torch.tensor([1, 1, 1])
    error_of("tpa_decode", lambda: attnops.tpa_decode(**args, lengths=short), "lengths")
    options = {"lengths": torch.tensor([7, 7]), "page_table": torch.tensor([[0], [2]])}
    error_of("tpa_decode", lambda: attnops.tpa_decode(**args, **options), "page_table")


# The layer.


class Plain(nn.Module):
    """The published layer with K and V in memory, on the projections of ours."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        layer, p = self.layer, self.layer.c_qkv

        def a(name, rank):
            y = getattr(p, f"W_A_{name}")(x).unflatten(-1, (layer.heads, rank))
            return y.sigmoid() if layer.sigmoid else y

        def b(name, rank):
            return getattr(p, f"W_B_{name}")(x).unflatten(-1, (rank, layer.head_dim))

        def rotated(y):
            half = layer.head_dim // 2
            inverse = 10000.0 ** (-2 * torch.arange(half).double() / layer.head_dim)
            angle = torch.arange(y.shape[1]).double().outer(inverse)[None, :, None]
            cos, sin = angle.cos().to(y.dtype), angle.sin().to(y.dtype)
            y1, y2 = y[..., :half], y[..., half:]
            return torch.cat([y1 * cos + y2 * sin, -y1 * sin + y2 * cos], -1)

        q = rotated(p.W_q(x).unflatten(-1, (layer.heads, -1))) if layer.full_q else None
        aq = None if layer.full_q else a("q", layer.q_rank)
        bq = None if layer.full_q else rotated(b("q", layer.q_rank))
        out, _ = materialised(
            aq,
            a("k", layer.k_rank),
            a("v", layer.v_rank),
            bq,
            rotated(b("k", layer.k_rank)),
            b("v", layer.v_rank),
            q=q,
        )
        if layer.subln is not None:
            out = out * (out.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * layer.subln.weight
        return layer.c_proj(out.flatten(2))


OPTIONS = [{}, {"full_q": True}, {"sigmoid": True, "head_norm": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_layer(options):
    torch.manual_seed(1)
    layer = TensorProductAttention(32, 4, 16, **options)
    plain = Plain(layer)
    x = torch.randn(2, 19, 32, requires_grad=True)
    out, expected = layer(x), plain(x)
    assert_layers_close(out, expected, TPA_LAYER)
    parameters = [x, *layer.parameters()]
    for actual, right in zip(
        torch.autograd.grad(out.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        assert_layers_close(actual, right, TPA_LAYER_GRADIENT)


def test_published_names():
    names = set(TensorProductAttention(32, 4, head_norm=True).state_dict())
    published = {f"c_qkv.W_{kind}_{x}.weight" for kind in "AB" for x in "qkv"}
    assert names == published | {"c_proj.weight", "subln.weight"}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("page_size", [None, 4])
def test_layer_with_a_cache(options, page_size):
    """A prompt, then token by token, gives what the whole sequence gives."""
    torch.manual_seed(2)
    layer = TensorProductAttention(32, 4, 16, **options)
    x = torch.randn(2, 13, 32)
    with torch.no_grad():
        whole = layer(x)
        cache = layer.make_cache(2, 20, page_size=page_size)
        cache.join(2)
        parts = [layer(x[:, :5], cache=cache), layer(x[:, 5:8], cache=cache)]
        parts += [layer(x[:, i : i + 1], cache=cache) for i in range(8, 13)]
    assert_layers_close(torch.cat(parts, 1), whole, TPA_LAYER)


def test_sequences_join_and_leave():
    """Sequences of different lengths in one batch have what they have alone."""
    torch.manual_seed(3)
    layer = TensorProductAttention(32, 4, 16)
    x = torch.randn(3, 9, 32)
    with torch.no_grad():
        whole = layer(x)
        cache = layer.make_cache(2, 12, page_size=4)
        first = cache.join()
        layer(x[:1, :6], cache=cache)
        second = cache.join()
        layer(x[1:2, :2], cache=cache, sequences=[second])
        out = layer(torch.stack([x[0, 6:7], x[1, 2:3]]), cache=cache)
        assert_layers_close(out[0], whole[0, 6:7], TPA_LAYER)
        assert_layers_close(out[1], whole[1, 2:3], TPA_LAYER)
        error_of("tpa_cache", lambda: cache.join(), "sequences")
        cache.leave(first)
        third = cache.join()
        out = layer(x[2:3], cache=cache, sequences=[third])
        assert_layers_close(out, whole[2:3], TPA_LAYER)
        fork = None
        cache.leave(second)
        fork = cache.fork(third)
        assert cache.length(fork) == 9
        ends = torch.randn(2, 1, 32)
        both = layer(ends, cache=cache, sequences=[third, fork])
        for b in range(2):
            right = layer(torch.cat([x[2:3], ends[b : b + 1]], 1))[0, -1]
            assert_layers_close(both[b, 0], right, TPA_LAYER)
        cache.leave(third)
        cache.leave(fork)
        assert cache.free_pages == 6


@pytest.mark.parametrize("page_size", [None, 16])
def test_int8(page_size):
    """Half the bytes of bfloat16, and an error within its bound."""
    args = factors(b=1, n=1, m=200, h=34, ranks=(6, 2, 2), d=64, e=64, dtype=torch.bfloat16)
    caches = {}
    for dtype in (torch.bfloat16, torch.int8):
        cache = TPACache(1, 200, 34, dtype=dtype, page_size=page_size)
        cache.join()
        cache.append(args["ak"], args["av"], args["bk"], args["bv"])
        caches[dtype] = cache
    ratio = caches[torch.int8].nbytes / caches[torch.bfloat16].nbytes
    assert ratio <= 0.54  # 0.5 and the scales
    exact = caches[torch.bfloat16].decode(args["aq"], args["bq"]).float()
    assert torch.equal(exact, attnops.tpa_decode(**args).float())
    rounded = caches[torch.int8].decode(args["aq"], args["bq"]).float()
    bound = int8_error(*doubles(args).values(), list(range(34)))
    rounding = 2 * ROUNDOFF[torch.bfloat16] * exact.abs()  # of both results
    assert ((rounded - exact).abs() <= bound + rounding).all()
    # It is not a bound that anything is within.
    values = args["av"].double() @ args["bv"].double() / 2
    assert bound.mean() <= 0.2 * values.abs().mean()
    # Errors are as good as random, and most of them cancel.
    assert (rounded - exact).norm() <= 0.2 * bound.norm()
    # And from the numbers that were stored, within the rounding of bfloat16.
    ak, av, bk, bv = (x.float() for x in caches[torch.int8].gather(0, torch.float32))
    stored = attnops.tpa_decode(args["aq"].float(), ak, av, args["bq"].float(), bk, bv)
    close(rounded, stored.double(), torch.bfloat16, 2)


def test_cache_errors():
    args = factors(b=1, n=1, m=9, h=4)
    keys = [args[name] for name in ("ak", "av", "bk", "bv")]
    cache = TPACache(1, 10, 4, 8, value_dim=6, dtype=torch.float32, page_size=4, pages=3)
    cache.join()
    cache.append(*keys)
    before = [x.clone() for x in cache.factors]
    for call, argument in (
        (lambda: cache.append(*keys), "capacity"),
        (lambda: cache.append(*[x[:, :1].bfloat16() for x in keys]), "ak"),
        (lambda: cache.append(*[x[:, :1, :1] for x in keys]), "ak"),
        (lambda: cache.append(*[x[:, :1] for x in keys], sequences=[1]), "sequence"),
        (lambda: cache.decode(args["aq"].bfloat16(), args["bq"].bfloat16()), "aq"),
        (lambda: cache.decode(args["aq"], args["bq"][..., :4].clone()), "bq"),
    ):
        with pytest.raises(ValueError, match=argument):
            call()
    assert cache.length(0) == 9
    assert cache.free_pages == 0
    assert all(map(torch.equal, before, cache.factors))


def test_no_heads() -> None:
    """The gradients of the factors that heads share are sums of nothing."""
    shapes = [(2, 5, 0, 2), (2, 5, 0, 2), (2, 5, 0, 3), (2, 5, 2, 8), (2, 5, 2, 8), (2, 5, 3, 6)]
    factors = [torch.randn(shape, requires_grad=True) for shape in shapes]
    out = attnops.tpa(*factors)
    for gradient in torch.autograd.grad(out, factors, torch.zeros(2, 5, 0, 6)):
        assert not gradient.any()
