"""linear_attention in Python: results, gradients, states, layouts, torch's tools and errors."""

import itertools

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import attnops
from support import error_of
from tolerances import CANCELLATION, DIFFERENCES, ROUNDOFF, sums

OPERATOR = torch.ops.attnops.linear_attention.default
IN_PLACE = torch.ops.attnops.linear_attention_.default
BACKWARD = torch.ops.attnops.linear_attention_backward.default
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DECAYS = ("none", "constant", "token", "feature")


def make(b=2, n=70, hk=1, h=2, d=6, e=9, decay="token", dtype=torch.float32, on_values=False):
    """q, k, v, log_decay and keyword arguments, all of which require a gradient."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape, dtype=dtype):
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    def draw_decay(*shape):
        logs = -torch.rand(shape, generator=generator) * 0.3
        return logs.to(dtype).requires_grad_()

    shapes = {"none": None, "constant": (h,), "token": (b, n, h), "feature": (b, n, h, d)}
    log_decay = None if decay == "none" else draw_decay(*shapes[decay])
    options = {"initial_state": draw(b, h, d, e, dtype=torch.float32)}
    if on_values:
        options["log_decay_v"] = draw_decay(b, n, h, e)
    return (draw(b, n, hk, d), draw(b, n, hk, d), draw(b, n, h, e), log_decay), options


def recurrence(q, k, v, log_decay=None, *, log_decay_v=None, initial_state=None):
    """The formulas in float64, token by token, differentiable."""
    group = v.shape[2] // q.shape[2]
    q, k = (x.double().repeat_interleave(group, 2) for x in (q, k))
    v = v.double()
    state = torch.zeros(*v.shape[::2][:2], q.shape[3], v.shape[3], dtype=torch.float64)
    if initial_state is not None:
        state = initial_state.double()
    out = []
    for t in range(q.shape[1]):
        if log_decay is not None:
            decay = (log_decay if log_decay.ndim == 1 else log_decay[:, t]).double().exp()
            state = state * (decay[..., None] if decay.ndim == 3 else decay[..., None, None])
        if log_decay_v is not None:
            state = state * log_decay_v[:, t].double().exp()[..., None, :]
        state = state + k[:, t, ..., None] * v[:, t, :, None, :]
        out.append((q[:, t, :, None, :] @ state)[..., 0, :] * q.shape[3] ** -0.5)
    return torch.stack(out, 1), state


def in_double(args, options):
    """The same numbers in float64: gradients of a 16-bit leaf would be added up in 16 bits."""

    def double(x):
        return None if x is None else x.detach().double().requires_grad_()

    return [double(x) for x in args], {name: double(x) for name, x in options.items()}


def gradients_of(results, tensors):
    d_outs = [
        torch.linspace(-1, 1, r.numel()).view(r.shape).bfloat16().to(r.dtype) for r in results
    ]
    return torch.autograd.grad(results, tensors, d_outs)


def assert_near(actual, expected, dtype, terms=100):
    """Within the sums of so many terms and a rounding, of the largest element."""
    scale = expected.abs().max() if expected.numel() else 0
    allowed = (CANCELLATION * sums(terms) + 2 * ROUNDOFF[dtype]) * scale
    assert ((actual.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("on_values", [False, True])
def test_against_the_recurrence(decay, on_values, dtype):
    args, options = make(decay=decay, dtype=dtype, on_values=on_values)
    tensors = [x for x in (*args, *options.values()) if x is not None]
    results = attnops.linear_attention(*args, **options, output_state=True)
    wide, wide_options = in_double(args, options)
    leaves = [x for x in (*wide, *wide_options.values()) if x is not None]
    expected = recurrence(*wide, **wide_options)
    assert results[1].dtype == torch.float32
    for actual, wanted in zip(results, expected, strict=True):
        assert_near(actual, wanted, dtype)
    for tensor, actual, wanted in zip(
        tensors, gradients_of(results, tensors), gradients_of(expected, leaves), strict=True
    ):
        assert actual.dtype == tensor.dtype
        assert_near(actual, wanted.double(), dtype)


def test_gradcheck_by_differences():
    """The gradient of a loss along a direction, in float32 against differences of the formulas."""
    args, options = make(n=9, decay="feature", on_values=True)
    tensors = [*args, *options.values()]
    loss = attnops.linear_attention(*args, **options).square().sum()
    gradients = torch.autograd.grad(loss, tensors)
    names = list(options)
    for i, gradient in enumerate(gradients):
        moved = [t.detach().double() for t in tensors]
        along = torch.randn(moved[i].shape, dtype=torch.float64)

        def loss_at(step, moved=moved, along=along, i=i):
            at = [m + step * along if j == i else m for j, m in enumerate(moved)]
            out, _ = recurrence(*at[:4], **dict(zip(names, at[4:], strict=True)))
            return out.square().sum()

        wanted = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
        actual = (gradient.double() * along).sum()
        assert abs(actual - wanted) <= DIFFERENCES * (gradient.double() * along).abs().sum()


@pytest.mark.parametrize("decay", DECAYS)
def test_layouts_give_the_same_bits(decay):
    args, options = make(decay=decay, on_values=True)
    swapped = [x.transpose(1, 2).contiguous() if x is not None and x.ndim > 2 else x for x in args]
    options["log_decay_v"] = options["log_decay_v"].detach()
    out = attnops.linear_attention(*args, **options)
    options["log_decay_v"] = options["log_decay_v"].transpose(1, 2).contiguous()
    other = attnops.linear_attention(*swapped, **options, layout="bhnd")
    assert other.is_contiguous()
    assert torch.equal(out, other.transpose(1, 2))
    views = [x.transpose(1, 2) if x is not None and x.ndim > 2 else x for x in args]
    assert torch.equal(other, attnops.linear_attention(*views, **options, layout="bhnd"))


def test_packed_sequences_are_sequences_alone():
    args, _ = make(b=1, n=80, decay="token")
    bounds = [0, 0, 5, 70, 80]
    state = torch.randn(4, 2, 6, 9)
    for kind in (torch.int32, torch.int64):
        out, last = attnops.linear_attention(
            *args,
            initial_state=state,
            output_state=True,
            cu_seqlens=torch.tensor(bounds, dtype=kind),
        )
    for i, (begin, end) in enumerate(itertools.pairwise(bounds)):
        alone, alone_last = attnops.linear_attention(
            *(x[:, begin:end] for x in args), initial_state=state[i : i + 1], output_state=True
        )
        assert_near(out[:, begin:end], alone.double(), torch.float32)
        assert_near(last[i : i + 1], alone_last.double(), torch.float32)


@pytest.mark.parametrize("decay", DECAYS)
def test_prefill_then_steps_in_place(decay):
    args, options = make(decay=decay)
    args = [x if x is None else x.detach() for x in args]
    whole, last = attnops.linear_attention(*args, **options, output_state=True)
    state = options["initial_state"].detach().clone()
    pointer = state.data_ptr()

    def part(begin, end):
        return [x if x is None or x.ndim == 1 else x[:, begin:end] for x in args]

    pieces = []
    for begin, end in [(0, 60), *((i, i + 1) for i in range(60, 70))]:
        o, state = attnops.linear_attention(
            *part(begin, end), initial_state=state, inplace_state=True
        )
        pieces.append(o)
    assert state.data_ptr() == pointer
    assert_near(torch.cat(pieces, 1), whole.detach().double(), torch.float32)
    assert_near(state, last.detach().double(), torch.float32)


@pytest.mark.parametrize("decay", DECAYS)
def test_kept_states_give_the_same_gradients(decay):
    args, options = make(n=2100, d=3, e=4, decay=decay)
    tensors = [x for x in (*args, *options.values()) if x is not None]
    gradients = {}
    for keep in ("none", "states"):
        results = attnops.linear_attention(*args, **options, output_state=True, keep=keep)
        kept = results[0].grad_fn.saved_tensors[-1]
        assert (kept is None) == (keep == "none")
        if kept is not None:
            assert kept.shape == (2 * 2, 2, 3, 4)
            assert kept.dtype == torch.float32
            alone = attnops.linear_attention(
                *(x if x is None or x.ndim == 1 else x[:, :1024] for x in args),
                **options,
                output_state=True,
            )[1]
            assert_near(kept[[0, 2]], alone.detach().double(), torch.float32)
        gradients[keep] = gradients_of(results, tensors)
    for one, other in zip(*gradients.values(), strict=True):
        assert torch.equal(one, other)


def test_nothing_is_kept_without_gradients():
    args, options = make(n=1100)
    with torch.no_grad():
        out = attnops.linear_attention(*args, **options, keep="states")
    assert out.grad_fn is None
    kept = torch.compile(attnops.linear_attention, fullgraph=True, backend="aot_eager")(
        *args, **options, keep="states"
    )
    assert torch.equal(kept, out)


MEDIUM = 3  # its number


def raw(args, options, **more):
    """The arguments of the operator."""
    return (
        *args,
        options.get("log_decay_v"),
        None,
        options["initial_state"],
        more.get("cu_seqlens"),
        more.get("output_state", True),
        False,
        more.get("keep", 0),
        more.get("precision"),
    )


@pytest.mark.parametrize("decay", DECAYS)
def test_opcheck(decay):
    args, options = make(n=5, decay=decay, on_values=decay == "feature")
    torch.library.opcheck(OPERATOR, raw(args, options))
    plain = [x if x is None else x.detach() for x in raw(args, options)[:5]]
    state = options["initial_state"].detach()
    torch.library.opcheck(
        BACKWARD,
        (*plain, None, state, None, False, torch.randn(2, 5, 2, 9), torch.randn(2, 2, 6, 9), True),
    )
    torch.library.opcheck(IN_PLACE, (*plain[:3], state.clone(), *plain[3:5], None, None, False))
    long, long_options = make(b=1, n=1030, h=1, d=2, e=1, decay=decay)
    torch.library.opcheck(OPERATOR, raw(long, long_options, keep=1))
    packed, options = make(b=1, n=5, decay=decay)
    options["initial_state"] = None
    bounds = torch.tensor([0, 2, 5])
    torch.library.opcheck(OPERATOR, raw(packed, options, cu_seqlens=bounds))
    half, half_options = make(n=5, decay=decay, dtype=torch.bfloat16)
    torch.library.opcheck(OPERATOR, raw(half, half_options, precision=MEDIUM))


def test_compiled_once_for_all_lengths():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        attnops.linear_attention, fullgraph=True, dynamic=True, backend=counter
    )
    for n in (33, 47, 130):
        args, options = make(n=n)
        out = compiled(*args, **options)
        torch.testing.assert_close(out, attnops.linear_attention(*args, **options))
        out.sum().backward()
    assert counter.frame_count == 1


def test_compiled_by_inductor():
    def block(q, k, v, gate, state):
        log_decay = torch.nn.functional.logsigmoid(gate)
        o, state = attnops.linear_attention(
            2 * q, k, v, log_decay, initial_state=state, output_state=True
        )
        return o + 1, state

    torch._dynamo.reset()
    args, options = make(n=20, decay="feature")
    tensors = [*args, options["initial_state"]]
    results = torch.compile(block, fullgraph=True)(*tensors)
    expected = block(*tensors)
    torch.testing.assert_close(results, expected)
    for actual, wanted in zip(
        gradients_of(results, tensors), gradients_of(expected, tensors), strict=True
    ):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("output_state", [False, True])
def test_without_data(output_state):
    args, options = make(decay="feature", on_values=True)
    real = OPERATOR(*raw(args, options, output_state=output_state))
    with FakeTensorMode():
        args, options = make(decay="feature", on_values=True)
        fake = OPERATOR(*raw(args, options, output_state=output_state))
    for f, r in zip(fake, real, strict=True):
        assert (f.shape, f.stride(), f.dtype) == (r.shape, r.stride(), r.dtype)


def test_a_gradient_of_the_state_alone():
    args, options = make()
    _, state = attnops.linear_attention(*args, **options, output_state=True)
    _, wanted = recurrence(*args, **options)
    tensors = [*args[1:], options["initial_state"]]
    for actual, expected in zip(
        gradients_of([state], tensors), gradients_of([wanted], tensors), strict=True
    ):
        assert_near(actual, expected.double(), torch.float32)


def test_no_second_derivative():
    args, options = make()
    (dq,) = torch.autograd.grad(
        attnops.linear_attention(*args, **options).sum(), args[:1], create_graph=True
    )
    with pytest.raises(NotImplementedError, match="linear_attention: no second derivative"):
        dq.sum().backward()


ERRORS = [
    ("k", lambda a, o: a.__setitem__(1, a[1][:, :3])),
    ("v", lambda a, o: a.__setitem__(2, a[2][:, :3])),
    ("v", lambda a, o: a.__setitem__(2, a[2].half())),
    (
        "v",
        lambda a, o: (
            a.__setitem__(0, a[0].repeat(1, 1, 3, 1)) or a.__setitem__(1, a[1].repeat(1, 1, 3, 1))
        ),
    ),
    ("log_decay", lambda a, o: a.__setitem__(3, a[3][:, :3])),
    ("log_decay", lambda a, o: a.__setitem__(3, a[3][0])),
    ("log_decay", lambda a, o: a.__setitem__(3, a[3].half())),
    ("initial_state", lambda a, o: o.update(initial_state=o["initial_state"].half())),
    ("initial_state", lambda a, o: o.update(initial_state=o["initial_state"][:1])),
    ("cu_seqlens", lambda a, o: o.update(cu_seqlens=torch.tensor([0, 70]))),
]


@pytest.mark.parametrize(("name", "spoil"), ERRORS)
def test_errors_with_and_without_data(name, spoil):
    def call(device):
        args, options = make()
        args = [x.detach().to(device) for x in args]
        options = {key: x.detach().to(device) for key, x in options.items()}
        spoil(args, options)
        if "cu_seqlens" in options:
            options["cu_seqlens"] = options["cu_seqlens"].to(device)
        return attnops.linear_attention(*args, **options)

    texts = [error_of("linear_attention", lambda d=d: call(d), name) for d in ("cpu", "meta")]
    assert texts[0] == texts[1]


def test_errors_of_options():
    args, options = make()
    for name, change in [
        ("layout", {"layout": "nbhd"}),
        ("keep", {"keep": "kv"}),
        ("cu_seqlens", {"cu_seqlens": torch.tensor([0.0, 70.0])}),
        ("inplace_state", {"inplace_state": True}),
        ("inplace_state", {"inplace_state": True, "initial_state": None}),
    ]:
        error_of(
            "linear_attention",
            lambda change=change: attnops.linear_attention(*args, **{**options, **change}),
            name,
        )
