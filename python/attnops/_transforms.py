"""Our rules for torch.func, autocast and TorchScript: how a call reaches an operator.

torch.library's autograd is for eager and compiled code alone. Under a transform of torch.func a
call goes through an autograd.Function of the same two functions, and a batch of calls is one call
with a larger B.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NoReturn

import torch
from torch import Tensor

from attnops import _library  # noqa: F401  (loads the operators)

# Arguments without an axis B; a vmap over one of them is a loop.
_SHARED = ("theta", "cos_sin", "table", "cu_seqlens")
# Of these a result sums over B.
_SUMS_OVER_BATCHES = (
    "lrpe_rotate_dtheta",
    "rope_dtheta",
    "md_lrpe_cosine_dtheta",
    "flao_fal_backward_theta",
    "flao_fal_kv_backward",
    "flao_fal_out_backward",
)
# float32, or of the tensors' type; under autocast never of another.
_FREE_TYPES = ("theta", "cos_sin", "log_decay", "log_decay_v")
_FLOAT32 = ("initial_state", "state", "table", "kv")
# These cast what they get under autocast, as scaled_dot_product_attention does.
_CASTS = (
    "flao",
    "flao_fal",
    "flao_fal_kv",
    "flao_fal_out",
    "flao_kv",
    "flao_out",
    "linear_attention",
    "linear_attention_",
    "lrpe_rotate",
    "md_lrpe_cosine",
    "rope",
    "rope_forward",
    "tpa",
    "tpa_decode",
    "tpa_decode_ranks",
)

_functions: dict[str, type[torch.autograd.Function]] = {}
_kernels = torch.library.Library("attnops", "IMPL")


def transformed() -> bool:
    """Whether a transform of torch.func is at work; not while code is compiled."""
    return (
        not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is not None
    )


def call(op: Any, *args: Any) -> Any:
    """Call an operator of torch.ops.attnops, all arguments given by position."""
    if not transformed():
        return op(*args)
    name = op._qualified_op_name.split("::")[-1]
    return _functions[name].apply(*_cast(name, args) if name in _CASTS else args)


def refuse_inplace(op: str, argument: str) -> None:
    """What writes to its inputs has no rule."""
    if transformed():
        raise NotImplementedError(f"{op}: {argument} has no rule for torch.func; leave it out")


def register_autograd(name: str, backward: Callable, setup_context: Callable) -> None:
    """The backward of an operator, for torch.library and for torch.func."""
    torch.library.register_autograd(f"attnops::{name}", backward, setup_context=setup_context)
    _register_function(name, backward, setup_context)


def _register_function(name: str, backward: Callable, setup_context: Callable) -> None:
    op = getattr(torch.ops.attnops, name)

    def forward(*args: Any) -> Any:
        return op(*args)

    def vmap(info: Any, in_dims: Sequence, *args: Any) -> tuple[Any, Any]:
        return _batched(name, info.batch_size, in_dims, args)

    _functions[name] = type(
        f"attnops_{name}",
        (torch.autograd.Function,),
        {
            "forward": staticmethod(forward),
            "setup_context": staticmethod(setup_context),
            "backward": staticmethod(backward),
            "vmap": staticmethod(vmap),
        },
    )
    torch.library.register_vmap(f"attnops::{name}", vmap)


def refuse_second_derivative(op: str, backward_name: str) -> None:
    """A gradient, computed by the operator backward_name, that cannot be differentiated."""
    register_autograd(backward_name, *_refusal(f"{op}: no second derivative"))


def register_without_gradient(op: str, name: str) -> None:
    """An operator without a backward; eager calls do without autograd's Python."""
    _register_function(name, *_refusal(f"{op}: no gradient here"))


def _refusal(text: str) -> tuple[Callable, Callable]:
    """A backward that raises, and a setup that keeps nothing."""

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    def backward(ctx: Any, *_: Any) -> NoReturn:
        raise NotImplementedError(text)

    return backward, setup


def _arguments(name: str) -> list[str]:
    schema = getattr(torch.ops.attnops, name).default._schema
    return [argument.name for argument in schema.arguments]


# Batches.


def _batched(name: str, size: int, in_dims: Sequence, args: Sequence) -> tuple[Any, Any]:
    """The rule of vmap: one call with size·B batches, or else one call for each."""
    given = dict(zip(_arguments(name), args, strict=False))
    dims = dict(zip(given, in_dims, strict=False))
    dims = {n: dims[n] if isinstance(x, Tensor) else None for n, x in given.items()}
    # The tensors by name, with the batch in front where there is one.
    moved = {
        n: x if dims[n] is None else x.movedim(dims[n], 0)
        for n, x in given.items()
        if isinstance(x, Tensor)
    }
    folded = None if size == 0 else _folded(name, size, moved, dims)
    op = getattr(torch.ops.attnops, name)
    if folded is not None:
        outs = call(op, *({**given, **folded}.values()))
        parts = outs if isinstance(outs, tuple) else (outs,)
        # What is not kept is an empty tensor of one axis.
        empty = [x.ndim == 1 and x.numel() == 0 for x in parts]
        results = tuple(
            x if nothing else x.unflatten(0, (size, x.shape[0] // size))
            for x, nothing in zip(parts, empty, strict=True)
        )
        out_dims = tuple(None if nothing else 0 for nothing in empty)
    else:
        each = [
            call(
                op,
                *(
                    {**given, **{n: x if dims[n] is None else x[i] for n, x in moved.items()}}
                ).values(),
            )
            for i in range(size)
        ]
        if not each:
            raise NotImplementedError(f"{name}: no rule for a vmap over nothing")
        outs = each[0]
        columns = zip(*(x if isinstance(x, tuple) else (x,) for x in each), strict=True)
        results = tuple(torch.stack(column) for column in columns)
        out_dims = (0,) * len(results)
    return (results, out_dims) if isinstance(outs, tuple) else (results[0], out_dims[0])


def _folded(
    name: str, size: int, moved: dict[str, Tensor], dims: dict[str, int | None]
) -> dict[str, Tensor] | None:
    """The tensors with size·B batches each, if that is the same."""
    if name in _SUMS_OVER_BATCHES or "cu_seqlens" in moved or "page_table" in moved:
        return None
    first = next(iter(moved))
    batches = moved[first].shape[0 if dims[first] is None else 1] if moved[first].ndim > 1 else 0
    if moved[first].ndim - (dims[first] is not None) < 2:
        return None  # too few axes: an error, which each call raises
    result = {}
    for n, x in moved.items():
        batched = dims[n] is not None
        axes = x.ndim - batched
        if n == "log_decay" and axes == 1 and (batched or name.endswith("_backward")):
            return None  # of each head: its gradient sums over B
        if name != "lrpe_table" and (n in _SHARED or (n == "log_decay" and axes == 1)):
            if batched:
                return None
            continue
        axis = 0
        if n == "positions":
            if axes == 1:
                if not batched:
                    continue
                x = x.unsqueeze(1).expand(-1, batches, -1)  # (V,B,N) of (V,N)
            axis = 1 if axes == 3 else 0
        if batched:
            folded = x.movedim(0, axis)
        else:
            folded = x.unsqueeze(axis).expand(*x.shape[:axis], size, *x.shape[axis:])
        shape = folded.shape
        result[n] = folded.reshape(*shape[:axis], prod(shape[axis : axis + 2]), *shape[axis + 2 :])
    return result


# Autocast.


def _cast(name: str, args: Sequence) -> list[Any]:
    """The arguments in the types that autocast asks for, if it is on."""
    if not torch.is_autocast_enabled("cpu"):
        return list(args)
    wanted = torch.get_autocast_dtype("cpu")
    result = []
    for argument, x in zip(_arguments(name), args, strict=False):
        if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64:
            if argument in _FLOAT32 or (argument in _FREE_TYPES and x.dtype != wanted):
                x = x.to(torch.float32)
            elif argument not in _FREE_TYPES:
                x = x.to(wanted)
        result.append(x)
    return result


def _register_autocast(name: str) -> None:
    op = getattr(torch.ops.attnops, name)
    here = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(_: Any, *args: Any) -> Any:
        cast = _cast(name, args)
        with torch._C._ExcludeDispatchKeyGuard(here):
            return op(*cast)

    _kernels.impl(name, kernel, "AutocastCPU", with_keyset=True)


for _name in _CASTS:
    _register_autocast(_name)


# TorchScript.


def refuse_script(function: Callable) -> None:
    """torch.jit.script of a function says what to do instead."""
    name = function.__name__

    def prepare() -> NoReturn:
        raise NotImplementedError(
            f"{name}: torch.jit.script has no keyword-only arguments; call "
            f"torch.ops.attnops.{name} in scripted code, or use torch.compile or torch.export"
        )

    function.__prepare_scriptable__ = prepare  # type: ignore[attr-defined]
