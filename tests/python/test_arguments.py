"""What all operators do alike with arguments that are no tensors, elsewhere, or too large."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import attnops
from support import ACT, KEEP, LRPE, SPLIT

FLAO = {
    "q": torch.randn(2, 3, 4, 6),
    "k": torch.randn(2, 3, 5, 6),
    "v": torch.randn(2, 3, 5, 7),
    "g": torch.randn(2, 3, 4, 7),
}
GRID = {"x": torch.randn(2, 3, 20, 8), "shape": (4, 5)}
OUT = {"d_out": torch.randn(2, 3, 4, 7), "kv": torch.randn(2, 3, 6, 7)}
KEYS = {name: FLAO[name] for name in ("k", "v")}
QUERIES = {name: FLAO[name] for name in ("q", "g")}
NO_ACTS = {
    f"{name}_{key}": ACT["none"] if key == "act" else None
    for name in FLAO
    for key in ("act", "dim")
}
NO_POSITIONS = {"shape": None, "offset": 0, "l": 0}
# Good arguments of each public function.
FUNCTIONS = {
    attnops.lrpe_rotate: {"x": torch.randn(2, 5, 3, 8), "theta": torch.randn(3, 4)},
    attnops.rope: {
        "q": torch.randn(2, 5, 3, 8),
        "k": torch.randn(2, 5, 1, 8),
        "theta": torch.randn(1, 4),
    },
    attnops.md_lrpe_cosine: GRID | {"theta": torch.randn(3, 4)},
    attnops.lrpe_table: {"theta": torch.randn(3, 4), "shape": (4, 5), "d": 8},
    attnops.flao: FLAO,
    attnops.flao_fal: FLAO | {"theta": torch.randn(3, 6)},
    attnops.flao_kv: KEYS,
    attnops.flao_out: QUERIES | {"kv": OUT["kv"]},
    attnops.flao_fal_kv: KEYS | {"theta": torch.randn(3, 6)},
    attnops.flao_fal_out: QUERIES | {"kv": torch.randn(2, 3, 12, 7), "theta": torch.randn(3, 6)},
    attnops.linear_attention: {
        "q": torch.randn(2, 5, 1, 6),
        "k": torch.randn(2, 5, 1, 6),
        "v": torch.randn(2, 5, 3, 7),
    },
    attnops.tpa: {
        "aq": torch.randn(2, 4, 3, 4),
        "ak": torch.randn(2, 5, 3, 2),
        "av": torch.randn(2, 5, 3, 2),
        "bq": torch.randn(2, 4, 4, 6),
        "bk": torch.randn(2, 5, 2, 6),
        "bv": torch.randn(2, 5, 2, 7),
    },
    attnops.tpa_decode: {
        "aq": torch.randn(2, 1, 3, 4),
        "ak": torch.randn(2, 5, 3),
        "av": torch.randn(2, 5, 3),
        "bq": torch.randn(2, 1, 4, 6),
        "bk": torch.randn(2, 5, 6),
        "bv": torch.randn(2, 5, 7),
    },
}
# The same with the angles from a table, and those of the backwards, which only autograd calls.
WITH_TABLE = GRID | {"theta": None, "table": attnops.lrpe_table(torch.randn(3, 4), (4, 5), 8)}
BACKWARDS = {
    "lrpe_rotate_backward": FUNCTIONS[attnops.lrpe_rotate]
    | {"d_out": torch.randn(2, 5, 3, 8), "offset": 0, "act": ACT["silu"], "dim": None},
    "md_lrpe_cosine_backward": WITH_TABLE
    | {"d_out": torch.randn(2, 3, 20, 16), "l": 0, "offset": 0, "act": ACT["silu"], "dim": None},
    "flao_backward": FLAO | OUT | {"qkv": torch.randn(2, 3, 4, 7)},
    "flao_fal_backward": FLAO
    | OUT
    | {"qkv": torch.randn(2, 3, 4, 7), "theta": torch.randn(3, 3), "lrpe": LRPE["rotate"]}
    | NO_ACTS
    | NO_POSITIONS,
}
CALLS = (
    {function.__name__: (function, options) for function, options in FUNCTIONS.items()}
    | {"md_lrpe_cosine with a table": (attnops.md_lrpe_cosine, WITH_TABLE)}
    | {name: (getattr(torch.ops.attnops, name), options) for name, options in BACKWARDS.items()}
)


def tensors_of(options: dict) -> list[str]:
    """The names of the arguments that are tensors."""
    return [name for name, value in options.items() if isinstance(value, torch.Tensor)]


# Every tensor argument of every call: the call's name and the argument's.
TENSORS = [(call, name) for call, (_, options) in CALLS.items() for name in tensors_of(options)]
PUBLIC_TENSORS = [(call, name) for call, name in TENSORS if not call.endswith("_backward")]


def error_of(call: str, argument: str, **changed: object) -> str:
    """The text of the ValueError, which names the operator and the argument."""
    function, options = CALLS[call]
    with pytest.raises(ValueError, match=rf"^{operator_of(call)}: .*\b{argument}\b") as caught:
        function(**options | changed)
    return str(caught.value)


def operator_of(call: str) -> str:
    """The name of the operator in messages."""
    return call.split()[0].removesuffix("_backward")


@pytest.mark.parametrize("call", CALLS)
def test_good(call):
    function, options = CALLS[call]
    function(**options)


@pytest.mark.parametrize(("call", "argument"), PUBLIC_TENSORS)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([1.0, 2.0], "list"),
        (torch.zeros(2, 3).numpy(), "numpy.ndarray"),
        (1.5, "float"),
        ("x", "str"),
    ],
    ids=["list", "numpy", "float", "str"],
)
def test_no_tensor(call, argument, value, shown):
    text = error_of(call, argument, **{argument: value})
    assert text.endswith(f"{argument} must be a tensor; it is {shown}")


@pytest.mark.parametrize(("call", "argument"), TENSORS)
def test_none(call, argument):
    """Some may be None; where one must be there, its name is in the message."""
    may_be_none = {
        "md_lrpe_cosine_backward": ("table",),  # then theta is missing, which is named
        "md_lrpe_cosine with a table": ("table",),
        "flao_fal": ("theta",),  # no encoding
        "flao_fal_kv": ("theta",),
        "flao_fal_out": ("theta",),  # then kv has too many rows
        "flao_backward": ("kv", "qkv"),
        "flao_fal_backward": ("kv", "qkv"),
    }
    if argument not in may_be_none.get(call, ()):
        error_of(call, argument, **{argument: None})


@pytest.mark.parametrize(("call", "argument"), TENSORS)
@pytest.mark.parametrize("mode", ["eager", "fake"])
def test_on_another_device(call, argument, mode):
    """One on the meta device, all others on the CPU, and the other way round."""
    function, options = CALLS[call]
    names = tensors_of(options)
    if len(names) == 1:
        return

    def run() -> None:
        for meta in ([argument], [name for name in names if name != argument]):
            placed = {
                name: torch.empty(options[name].shape, device="meta" if name in meta else "cpu")
                for name in names
            }
            with pytest.raises(ValueError, match=r"must be on the device of \w+, \w+; it is on"):
                function(**options | placed)

    if mode == "fake":
        with FakeTensorMode():
            run()
    else:
        run()


@pytest.mark.parametrize(("call", "argument"), TENSORS)
@pytest.mark.parametrize(
    ("dtype", "shown"),
    [
        (torch.float64, "float64"),
        (torch.int64, "int64"),
        (torch.bool, "bool"),
        (torch.uint8, "uint8"),
        (torch.complex64, "complex64"),
        (torch.float8_e4m3fn, "float8_e4m3fn"),
        (torch.uint16, "uint16"),
    ],
    ids=str,
)
def test_types_have_the_names_that_torch_gives_them(call, argument, dtype, shown):
    given = CALLS[call][1][argument].to(dtype)
    assert error_of(call, argument, **{argument: given}).endswith(f"; it is {shown}")


@pytest.mark.parametrize(("call", "argument"), TENSORS)
def test_more_bytes_than_there_can_be(call, argument):
    """A view of few numbers may have any size; its number of bytes must not wrap."""
    given = CALLS[call][1][argument]
    huge = torch.zeros([1] * given.ndim).expand(2**19, *[1] * (given.ndim - 2), 2**42 + 2)
    assert "too large" in error_of(call, argument, **{argument: huge})


def test_a_huge_first_axis():
    x = torch.zeros(1, 1, 2).expand(2**19, 2**42 + 1, 2)
    with pytest.raises(ValueError, match=r"lrpe_rotate: x is too large; its shape is \(524288, "):
        attnops.lrpe_rotate(x, torch.zeros(1, 1))


def test_a_result_that_is_too_large():
    """Though the inputs are not."""
    x = torch.zeros(1, 1, 1, 4).expand(2**58, 1, 1, 4)
    with pytest.raises(ValueError, match=r"md_lrpe_cosine: out is too large"):
        attnops.md_lrpe_cosine(x, torch.zeros(1, 4), (1,))
    with pytest.raises(ValueError, match=r"lrpe_table: the table is too large"):
        attnops.lrpe_table(torch.zeros(1, 4).expand(2**30, 4), (2**31,), 4)
    q = torch.zeros(1, 1, 0, 2**40)
    with pytest.raises(ValueError, match=r"flao: kv is too large"):
        torch.ops.attnops.flao(q, q, q, q, KEEP["kv"])


def test_a_copy_that_is_too_large():
    """x has few numbers; contiguous, it would have more than there is memory."""
    x = torch.zeros(1, 1, 1, 1).expand(2**19, 1, 1, 2**40)
    with pytest.raises(ValueError, match=r"md_lrpe_cosine: x cannot be copied"):
        attnops.md_lrpe_cosine(x, torch.zeros(1, 1), (1,))


def test_more_memory_than_there_is():
    """An allocation that fails is an exception of Python, like any other of C++."""
    x = torch.zeros(1, 1, 2).expand(2**19, 2**40, 2)
    with pytest.raises(MemoryError):
        attnops.lrpe_rotate(x, torch.zeros(1, 1))


NUMBERS = {
    "lrpe_rotate": {"act": 4},
    "lrpe_rotate_backward": {"act": 4},
    "md_lrpe_cosine": {"act": 4},
    "md_lrpe_cosine_backward": {"act": 4},
    "flao": {"keep": 2},
    "flao_fal": {"q_act": 4, "k_act": 4, "v_act": 4, "g_act": 4, "lrpe": 2, "keep": 2},
    "flao_fal_backward": {"q_act": 4, "k_act": 4, "v_act": 4, "g_act": 4, "lrpe": 2},
    "tpa_decode": {"split": 3},
}


def operator_options(name: str) -> dict:
    """Good arguments of an operator in torch.ops, all of them."""
    if name in BACKWARDS:
        return BACKWARDS[name]
    return {
        "table": None,
        "theta": None,
        "offset": 0,
        "l": 0,
        "act": ACT["none"],
        "dim": None,
        "keep": KEEP["none"],
        "lrpe": LRPE["rotate"],
        "scale": 1.0 if name == "lrpe_rotate" else None,
        "scale_q": None,
        "scale_k": 1.0,
        "scale_v": 1.0,
        "split": SPLIT["auto"],
        **(NO_ACTS | {"shape": None} if name == "flao_fal" else {}),
        **FUNCTIONS[getattr(attnops, name)],
        **({"theta": torch.randn(3, 3)} if name == "flao_fal" else {}),
    }


@pytest.mark.parametrize(
    ("name", "argument", "last"),
    [(name, argument, last) for name, all_ in NUMBERS.items() for argument, last in all_.items()],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_number_that_names_nothing(name, argument, last, device):
    """Options that have names in Python are numbers in the operators."""
    operator = getattr(torch.ops.attnops, name)
    wanted = [a.name for a in operator.default._schema.arguments]
    options = {k: v for k, v in operator_options(name).items() if k in wanted}
    options |= {k: options[k].to(device) for k in tensors_of(options)}
    operator(**options)
    for number in (-1, last + 1, 77, 2**40):
        text = f"{argument} must be a number from 0 to {last}; it is {number}$"
        with pytest.raises(ValueError, match=text):
            operator(**options | {argument: number})


def test_no_strings_in_the_schemas():
    """Each would leak at every call (torch 2.13's `ToImpl<std::string>`)."""
    for name in NUMBERS | {"flao_backward": {}, "lrpe_table": {}}:
        schema = str(getattr(torch.ops.attnops, name).default._schema)
        assert "str " not in schema


@pytest.mark.parametrize("value", [None, 3, ["silu"]], ids=str)
def test_a_choice_that_is_no_name(value):
    with pytest.raises(ValueError, match=r"lrpe_rotate: act must be one of none, relu, .*; it is"):
        attnops.lrpe_rotate(**FUNCTIONS[attnops.lrpe_rotate], act=value)


def test_names_and_numbers_agree():
    """Every activation, encoding and policy is the one that its name says."""
    x, theta = torch.randn(2, 5, 3, 8), torch.zeros(3, 4)
    functions = {
        "none": lambda x: x,
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "silu": torch.nn.functional.silu,
    }
    for name, function in functions.items():
        out = torch.ops.attnops.lrpe_rotate(x, theta, 0, ACT[name], None)
        torch.testing.assert_close(out, function(x))
        assert torch.equal(out, attnops.lrpe_rotate(x, theta, act=name))


# Whether an angle may require grad where no gradient is computed.


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("call", ["lrpe_rotate", "md_lrpe_cosine", "lrpe_table", "flao_fal"])
def test_theta_that_requires_grad_without_gradients(call, mode):
    function, options = CALLS[call]
    theta = options["theta"].clone().requires_grad_()
    expected = function(**options)
    with mode():
        assert torch.equal(function(**options | {"theta": theta}), expected)
    if call == "lrpe_table":
        error_of(call, "theta", theta=theta)


def test_table_that_requires_grad_without_gradients():
    table = WITH_TABLE["table"].clone().requires_grad_()
    expected = attnops.md_lrpe_cosine(**WITH_TABLE)
    with torch.no_grad():
        assert torch.equal(attnops.md_lrpe_cosine(**WITH_TABLE | {"table": table}), expected)


@pytest.mark.parametrize("call", ["lrpe_rotate", "md_lrpe_cosine", "flao_fal"])
def test_gradient_of_theta_from_the_operator_itself(call):
    """Where attnops' function does not stand before it: not None, which counts as 0."""
    operator = getattr(torch.ops.attnops, call)
    wanted = [a.name for a in operator.default._schema.arguments]
    options = {k: v for k, v in operator_options(call).items() if k in wanted}
    theta = options["theta"].clone().requires_grad_()
    out = operator(**options | {"theta": theta})
    out = out[0] if isinstance(out, tuple) else out
    out.pow(2).sum().backward()
    assert theta.grad.shape == theta.shape


# Forward mode: torch would take the tangent as zero.


def along(function: Callable, options: dict, argument: str) -> Callable[[torch.Tensor], object]:
    """The function of one of its arguments."""
    return lambda value: function(**options | {argument: value})


@pytest.mark.parametrize(("call", "argument"), PUBLIC_TENSORS)
def test_no_forward_mode(call, argument):
    function, options = CALLS[call]
    value = options[argument]
    run = along(function, options, argument)
    text = f"{operator_of(call)}: {argument} has a tangent, but there is no forward-mode"
    with pytest.raises(NotImplementedError, match=text), forward_ad.dual_level():
        run(forward_ad.make_dual(value, torch.ones_like(value)))
    with pytest.raises(NotImplementedError, match=text):
        torch.func.jvp(run, (value,), (torch.ones_like(value),))
    with pytest.raises(NotImplementedError, match=text):
        torch.func.jacfwd(run)(value)
    batch = value[None]
    with pytest.raises(NotImplementedError, match=text):
        torch.func.jvp(torch.func.vmap(run), (batch,), (torch.ones_like(batch),))


@pytest.mark.parametrize("call", ["lrpe_rotate", "md_lrpe_cosine", "flao", "flao_fal"])
def test_no_forward_mode_of_a_backward(call):
    function, options = CALLS[call]
    first = next(iter(options))
    x = options[first].clone().requires_grad_()
    out = function(**options | {first: x})
    text = f"{call}: d_out has a tangent, but there is no forward-mode"
    with forward_ad.dual_level():
        d_out = forward_ad.make_dual(torch.ones_like(out), torch.ones_like(out))
        with pytest.raises(NotImplementedError, match=text):
            torch.autograd.grad(out, x, d_out)


@pytest.mark.parametrize("call", ["lrpe_rotate", "md_lrpe_cosine"])
def test_no_forward_mode_of_a_second_derivative(call):
    function, options = CALLS[call]
    x = options["x"].clone().requires_grad_()
    out = function(**options | {"x": x, "act": "none"})
    d_out = torch.ones_like(out).requires_grad_()
    (dx,) = torch.autograd.grad(out, x, d_out, create_graph=True)
    text = f"{call}: d_dx has a tangent, but there is no forward-mode"
    with forward_ad.dual_level():
        d_dx = forward_ad.make_dual(torch.ones_like(dx), torch.ones_like(dx))
        with pytest.raises(NotImplementedError, match=text):
            torch.autograd.grad(dx, d_out, d_dx)


@pytest.mark.parametrize("call", [c for c in CALLS if not c.endswith("_backward")])
def test_forward_mode_of_something_else(call):
    """A tangent elsewhere in the program is none of the operator's business."""
    function, options = CALLS[call]
    expected = function(**options)
    with forward_ad.dual_level():
        forward_ad.make_dual(torch.ones(3), torch.ones(3))
        torch.testing.assert_close(function(**options), expected, atol=0, rtol=0)


def test_every_public_function_is_here():
    public = [getattr(attnops, name) for name in attnops.__all__]
    tensor_functions = {
        function
        for function in public
        if callable(function) and "Tensor" in str(inspect.signature(function))
    }
    assert tensor_functions == set(FUNCTIONS)
