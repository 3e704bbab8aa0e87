"""flao_fal as a part of PyTorch: autograd, torch.compile, fake tensors, threads, memory."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import attnops
from flao_cases import DTYPES, KEEPS
from flao_fal_cases import ACTS, ENCODINGS, NAMES, acts_of, make_case
from lrpe_cases import make_theta
from support import ACT, KEEP, LRPE, saved_elements

OPERATOR = torch.ops.attnops.flao_fal.default
BACKWARD = torch.ops.attnops.flao_fal_backward.default
MIXED = acts_of(("softmax", -1), ("softmax", 2), ("silu", None), ("sigmoid", None))


def flat(options: dict) -> tuple:
    """The arguments of the operator between theta and keep."""
    acts = []
    for name in NAMES:
        acts += [ACT[options.get(f"{name}_act", "none")], options.get(f"{name}_dim")]
    lrpe = LRPE[options.get("lrpe", "none")]
    return *acts, lrpe, options.get("shape"), options.get("offset", 0), options.get("l", 0)


@pytest.mark.parametrize(("dtype", "keep"), zip(DTYPES, KEEPS, strict=True), ids=str)
@pytest.mark.parametrize("name", ["none", "cosine, 2 axes", "rotate behind 3"])
def test_opcheck(name, keep, dtype):
    args, d_out, options = make_case(ENCODINGS[name] | MIXED, b=1, dtype=dtype)
    theta, rest = options["theta"], flat(options)
    torch.library.opcheck(OPERATOR, (*args, theta, *rest, KEEP[keep]))
    args = tuple(a.detach() for a in args)
    torch.library.opcheck(OPERATOR, (*args, theta, *rest, KEEP[keep]))
    _, kv, qkv = OPERATOR(*args, theta, *rest, KEEP[keep])
    kept = (None if keep == "none" else kv, qkv if keep == "kv_qkv" else None)
    torch.library.opcheck(BACKWARD, (*args, d_out, *kept, theta, *rest))


def test_opcheck_with_strides():
    args, d_out, options = make_case(ENCODINGS["rotate"] | MIXED)
    theta, rest = options["theta"], flat(options)
    strided = tuple(a.detach().transpose(1, 2).contiguous().transpose(1, 2) for a in args)
    torch.library.opcheck(OPERATOR, (*strided, theta, *rest, KEEP["kv"]))
    torch.library.opcheck(BACKWARD, (*strided, d_out, None, None, theta, *rest))
    apart = tuple(a.detach().mT.contiguous().mT.requires_grad_() for a in args)
    torch.library.opcheck(OPERATOR, (*apart, theta.T.contiguous().T, *rest, KEEP["kv_qkv"]))


@pytest.mark.parametrize(
    ("name", "keep"), [("none", "kv"), ("cosine", "none"), ("rotate, 2 axes", "kv_qkv")]
)
def test_compiled_by_inductor(name, keep):
    """In one graph with its neighbours, forward and backward."""
    args, d_out, options = make_case(ENCODINGS[name] | MIXED)
    theta = options.pop("theta")

    def block(q, k, v, g, theta):
        return attnops.flao_fal(2 * q, k, v, g, theta=theta, **options, keep=keep) + 1

    torch._dynamo.reset()
    out = torch.compile(block, fullgraph=True)(*args, theta)
    expected = block(*args, theta)
    torch.testing.assert_close(out, expected)
    gradients = torch.autograd.grad(out, args, d_out)
    for actual, wanted in zip(gradients, torch.autograd.grad(expected, args, d_out), strict=True):
        torch.testing.assert_close(actual, wanted)


class Attention(torch.nn.Module):
    """A model for export."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v, g, theta):
        return attnops.flao_fal(q, k, v, g, theta=theta, **self.options)


@pytest.mark.parametrize("name", ["none", "cosine", "cosine, 2 axes"])
def test_exported(name):
    """With and without a shape."""
    args, _, options = make_case(ENCODINGS[name] | MIXED)
    inputs = (*(a.detach() for a in args), options.pop("theta"))
    program = torch.export.export(Attention(**options), inputs)
    expected = Attention(**options)(*inputs)
    assert torch.equal(program.module()(*inputs), expected)


@pytest.mark.parametrize("lrpe", ["cosine", "rotate"])
def test_compiled_once_for_all_lengths_and_offsets(lrpe):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def compiled(q, k, v, g, theta, offset: int, l: int):
        return attnops.flao_fal(
            q, k, v, g, k_act="softmax", k_dim=2, theta=theta, lrpe=lrpe, offset=offset, l=l
        )

    for n, m, offset, l in [(33, 20, 5, 2), (47, 21, 6, 3), (130, 9, 10**9, 4), (40, 50, -8, 9)]:
        encoding = {"lrpe": lrpe, "offset": offset, "l": l, "k_act": "softmax", "k_dim": 2}
        args, d_out, options = make_case(encoding, n=n, m=m)
        out = compiled(*args, options["theta"], offset, l)
        torch.testing.assert_close(out, attnops.flao_fal(*args, **options))
        out.backward(d_out)
    assert counter.frame_count == 1


def test_compiled_once_for_all_grids():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def compiled(q, k, v, g, theta, height: int, width: int):
        l = q.shape[2] - height * width
        return attnops.flao_fal(q, k, v, g, theta=theta, shape=(height, width), l=l)

    for shape, l in [((4, 5), 3), ((5, 4), 2), ((7, 3), 9), ((16, 33), 4)]:
        args, d_out, options = make_case({"lrpe": "cosine", "shape": shape, "l": l})
        out = compiled(*args, options["theta"], *shape)
        torch.testing.assert_close(out, attnops.flao_fal(*args, **options))
        out.backward(d_out)
    assert counter.frame_count == 1


def test_decoding_compiles_a_few_times_only():
    """Without dynamic=True: one graph for the first offset, one for the rest."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def compiled(q, k, v, g, theta, offset: int):
        return attnops.flao_fal(q, k, v, g, theta=theta, lrpe="rotate", offset=offset)

    (q, k, v, g), _, _ = make_case({"lrpe": "none"}, n=1, m=40)
    with torch.no_grad():
        for offset in range(100, 120):
            compiled(q, k, v, g, make_theta(2, 4), offset)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("name", ["none", "cosine", "rotate, 2 axes"])
def test_without_data(name, keep, dtype):
    """Fake tensors have the shapes, strides and types of the real results."""

    def run() -> list[torch.Tensor]:
        args, d_out, options = make_case(ENCODINGS[name] | MIXED, dtype=dtype)
        args = [a.detach().transpose(1, 2).contiguous().transpose(1, 2) for a in args]
        theta, rest = options["theta"], flat(options)
        results = OPERATOR(*args, theta, *rest, KEEP[keep])
        return [*results, *BACKWARD(*args, d_out, None, None, theta, *rest)]

    real = run()
    with FakeTensorMode():
        fake = run()
    for f, r in zip(fake, real, strict=True):
        assert (f.shape, f.stride(), f.dtype) == (r.shape, r.stride(), r.dtype)


@pytest.mark.parametrize(("name", "rows"), [("none", 8), ("cosine", 16), ("rotate", 8)])
def test_what_is_kept(name, rows):
    args, _, options = make_case(ENCODINGS[name], b=2, h=3, n=5, m=7, d=8, e=6)
    given = sum(a.numel() for a in args)
    given += 0 if options["theta"] is None else options["theta"].numel()
    kv, qkv = 2 * 3 * rows * 6, 2 * 3 * 5 * 6
    for keep, kept in zip(KEEPS, (0, kv, kv + qkv), strict=True):
        saved = saved_elements(lambda keep=keep: attnops.flao_fal(*args, **options, keep=keep))
        assert saved == given + kept


def test_types_of_what_is_kept():
    for dtype, wanted in zip(DTYPES, (torch.float32, torch.float32, torch.bfloat16), strict=True):
        args, _, options = make_case(ENCODINGS["cosine"], dtype=dtype)
        _, kv, qkv = OPERATOR(*args, options["theta"], *flat(options), KEEP["kv_qkv"])
        assert (kv.dtype, qkv.dtype) == (torch.float32, wanted)
        assert not kv.requires_grad
        assert not qkv.requires_grad


@pytest.mark.parametrize("keep", KEEPS)
def test_nothing_is_kept_when_no_gradient_is_needed(keep, monkeypatch):
    args, _, options = make_case(ENCODINGS["cosine"] | MIXED)
    results = []
    real = torch.ops.attnops.flao_fal
    monkeypatch.setattr(
        torch.ops.attnops, "flao_fal", lambda *a: results.append(real(*a)) or results[-1]
    )
    with torch.no_grad():
        assert attnops.flao_fal(*args, **options, keep=keep).grad_fn is None
    detached = tuple(a.detach() for a in args)
    assert saved_elements(lambda: attnops.flao_fal(*detached, **options, keep=keep)) == 0
    assert [(kv.numel(), qkv.numel()) for _, kv, qkv in results] == [(0, 0), (0, 0)]


@pytest.mark.parametrize("wanted", range(4))
def test_a_gradient_of_one_input_alone(wanted):
    args, d_out, options = make_case(ENCODINGS["rotate"] | MIXED)
    expected = torch.autograd.grad(attnops.flao_fal(*args, **options), args, d_out)[wanted]
    args = tuple(a.detach().requires_grad_(i == wanted) for i, a in enumerate(args))
    out = attnops.flao_fal(*args, **options)
    (gradient,) = torch.autograd.grad(out, args[wanted], d_out)
    assert torch.equal(gradient, expected)


def test_no_second_derivative():
    args, d_out, options = make_case(ENCODINGS["cosine"])
    out = attnops.flao_fal(*args, **options)
    (dq, *_) = torch.autograd.grad(out, args, d_out, create_graph=True)
    with pytest.raises(NotImplementedError, match="flao_fal: no second derivative"):
        dq.sum().backward()


def test_an_input_changed_in_place_is_noticed():
    args, _, options = make_case(ENCODINGS["cosine"])
    k = args[1] * 1
    out = attnops.flao_fal(args[0], k, *args[2:], **options)
    k.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"):
        out.sum().backward()


def test_several_threads_at_once():
    """Each call has its own inputs and gets its own result."""
    cases = []
    for i, name in enumerate(ENCODINGS):
        acts = acts_of(*(ACTS[(i + j) % 6] for j in range(4)))
        cases.append(make_case(ENCODINGS[name] | acts, n=50 + 37 * i, m=40 + i, d=16))

    def run(i: int) -> list[torch.Tensor]:
        args, d_out, options = cases[i]
        out = attnops.flao_fal(*args, **options, keep=KEEPS[i % 3])
        return [out, *torch.autograd.grad(out, args, d_out)]

    alone = [run(i) for i in range(len(cases))]
    with ThreadPoolExecutor(max_workers=4) as pool:
        for _ in range(5):
            for results, expected in zip(pool.map(run, range(len(cases))), alone, strict=True):
                assert all(map(torch.equal, results, expected))
