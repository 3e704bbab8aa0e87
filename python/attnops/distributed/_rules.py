"""DTensor's sharding rules for torch.ops.attnops.*, with the letters of _dtensor.py.

On a dimension of the mesh an operator is sharded by one letter: what has it is sharded there, an
input without it is replicated, and a result without it is a sum over the ranks. What the functions
of attnops do with DTensors does not need these rules; calls of the operators themselves do.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._op_schema import OpSchema, OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

from attnops import _choices

Arguments = dict[str, Any]
# The axes of the inputs, those of the results (None for one that is empty), and the letters.
Rule = tuple[dict[str, str], list[str | None], str]

_GATED = dict.fromkeys(("q", "k", "v", "g", "d_out", "qkv"), "bhs-")
_GATED |= {"kv": "bh--", "d_kv": "bh--"}
_KEYS = {"ak": "bsh-", "av": "bsh-", "bk": "bs--", "bv": "bs--"}
_QUERIES = {"aq": "bnh-", "bq": "bn--", "q": "bnh-"}


def _theta(a: Arguments) -> dict[str, str]:
    theta = a.get("theta")
    return {} if theta is None else {"theta": "h-" if theta.shape[0] > 1 else "--"}


def _flao(a: Arguments) -> Rule:
    kept = ["bh--" if a["keep"] else None, "bhs-" if a["keep"] == _choices.KV_QKV else None]
    return _GATED | _theta(a), ["bhs-", *kept], "bh"


def _flao_backward(a: Arguments) -> Rule:
    return _GATED | _theta(a), ["bhs-"] * 4, "bh"


def _flao_backward_theta(a: Arguments) -> Rule:
    return _GATED | _theta(a), [*["bhs-"] * 4, _theta(a)["theta"]], "bh"


def _half(results: list[str]) -> Callable[[Arguments], Rule]:
    def rule(a: Arguments) -> Rule:
        names = [name for name in a if name.endswith("_act")]
        over_sequence = any(
            a[name] == _choices.SOFTMAX and a[name[:2] + "dim"] % 4 == 2 for name in names
        )
        # The positions of a shard are known to its rank alone.
        alone = a.get("lrpe", _choices.NONE) == _choices.NONE and not over_sequence
        out: list[str | None] = list(results)
        if "wants_theta" in a:
            out.append(_theta(a).get("theta") if a["wants_theta"] else None)
        return _GATED | _theta(a), out, "bhs" if alone else "bh"

    return rule


def _heads_first(a: Arguments) -> str:
    return "bsh-" if a["layout"] == _choices.BNHD else "bhs-"


def _positions(a: Arguments) -> dict[str, str]:
    positions = a.get("positions")
    axes = {"offsets": "b", "cos_sin": "--"}
    return (
        axes if positions is None else axes | {"positions": ("s", "bs", "-bs")[positions.ndim - 1]}
    )


def _lrpe_rotate(of_theta: bool) -> Callable[[Arguments], Rule]:
    def rule(a: Arguments) -> Rule:
        x = "bs-" if a["x"].ndim == 3 else _heads_first(a)
        over_sequence = a["act"] == _choices.SOFTMAX and a["dim"] % len(x) == x.index("s")
        known = a["positions"] is not None and not over_sequence
        axes = {"x": x, "d_out": x} | _theta(a) | _positions(a)
        return axes, [axes["theta"] if of_theta else x], "bhs" if known else "bh"

    return rule


def _rope(of_theta: bool) -> Callable[[Arguments], Rule]:
    def rule(a: Arguments) -> Rule:
        x = _heads_first(a)
        axes = dict.fromkeys(("q", "k", "dq_out", "dk_out"), x) | _positions(a)
        if a["theta"] is not None:
            axes["theta"] = "-" * a["theta"].ndim
        known = a["positions"] is not None
        return axes, [axes["theta"]] if of_theta else [x, x], "bhs" if known else "bh"

    return rule


def _md_lrpe_cosine(of_theta: bool) -> Callable[[Arguments], Rule]:
    def rule(a: Arguments) -> Rule:
        table = a.get("table")
        axes = {"x": "bhs-", "d_out": "bhs-"} | _theta(a)
        if table is not None:
            axes["table"] = "h---" if table.shape[0] > 1 else "----"
        return axes, [axes["theta"] if of_theta else "bhs-"], "bh"

    return rule


def _lrpe_table(a: Arguments) -> Rule:
    return {"theta": "h-"}, ["h---"], "h"


def _linear_attention(a: Arguments) -> Rule:
    x = "bhs-" if a["heads_first"] else "bsh-"
    log = a["log_decay"]
    axes = dict.fromkeys(("q", "k", "v", "d_out", "log_decay_v"), x)
    axes |= {"initial_state": "bh--", "d_state": "bh--", "kept": "bh--", "cu_seqlens": "-"}
    if log is not None:
        axes["log_decay"] = "h" if log.ndim == 1 else x[: log.ndim]
    heads = x.index("h")
    letters = "bh" if a["q"].shape[heads] == a["v"].shape[heads] else "b"
    if a["cu_seqlens"] is not None:
        letters = letters.replace("b", "")
    # The states of all sequences are one axis, whose shards need not end where theirs do.
    if a.get("keep", _choices.NONE) != _choices.NONE or a.get("kept") is not None:
        letters = letters.replace("b", "")
    if "output_state" in a:
        kept = None if a["keep"] == _choices.NONE else "bh--"
        return axes, [x, "bh--" if a["output_state"] else None, kept], letters
    decays = [
        axes[name] if a[name] is not None and a["wants_decay"] else None
        for name in ("log_decay", "log_decay_v")
    ]
    state = None if a["initial_state"] is None else "bh--"
    return axes, [x, x, x, *decays, state], letters


def _tpa(a: Arguments) -> Rule:
    axes = _QUERIES | _KEYS | {"out": "bnh-", "d_out": "bnh-", "lse": "bhn"}
    if "d_out" not in a:
        return axes, ["bnh-", "bhn"], "bh"
    order = ("aq", "ak", "av", "bq", "bk", "bv", "q")
    return axes, [None if a[name] is None else axes[name] for name in order], "bh"


def _tpa_decode(a: Arguments) -> Rule:
    return _QUERIES | {name: axes[:-1] for name, axes in _KEYS.items()}, ["bnh-"], "bh"


def _tpa_decode_ranks(a: Arguments) -> Rule:
    axes = _QUERIES | _KEYS | {"lengths": "b", "page_table": "b-"}
    # Pages belong to any batch.
    return axes, ["bnh-", "bhn"], "bh" if a["page_table"] is None else ""


RULES: dict[str, Callable[[Arguments], Rule]] = {
    "flao": _flao,
    "flao_backward": _flao_backward,
    "flao_fal": _flao,
    "flao_fal_backward": _flao_backward,
    "flao_fal_backward_theta": _flao_backward_theta,
    "linear_attention": _linear_attention,
    "linear_attention_backward": _linear_attention,
    "lrpe_rotate": _lrpe_rotate(of_theta=False),
    "lrpe_rotate_backward": _lrpe_rotate(of_theta=False),
    "lrpe_rotate_dtheta": _lrpe_rotate(of_theta=True),
    "lrpe_table": _lrpe_table,
    "md_lrpe_cosine": _md_lrpe_cosine(of_theta=False),
    "md_lrpe_cosine_backward": _md_lrpe_cosine(of_theta=False),
    "md_lrpe_cosine_dtheta": _md_lrpe_cosine(of_theta=True),
    "rope": _rope(of_theta=False),
    "rope_forward": _rope(of_theta=False),
    "rope_backward": _rope(of_theta=False),
    "rope_dtheta": _rope(of_theta=True),
    "tpa": _tpa,
    "tpa_backward": _tpa,
    "tpa_decode": _tpa_decode,
    "tpa_decode_ranks": _tpa_decode_ranks,
}
for _prefix in ("flao", "flao_fal"):
    RULES[f"{_prefix}_kv"] = _half(["bh--"])
    RULES[f"{_prefix}_kv_backward"] = _half(["bhs-", "bhs-"])
    RULES[f"{_prefix}_out"] = _half(["bhs-"])
    RULES[f"{_prefix}_out_backward"] = _half(["bhs-", "bh--", "bhs-"])


def _strategy(rule: Callable[[Arguments], Rule], schema: OpSchema) -> OpStrategy:
    declared = schema.op._schema.arguments
    arguments: Arguments = {}
    for i, argument in enumerate(declared):
        value = schema.args_schema[i] if i < len(schema.args_schema) else argument.default_value
        if isinstance(value, OpStrategy):
            value = value.strategies[0].output_spec
        arguments[argument.name] = value
    axes, results, letters = rule(arguments)
    tensors = [
        argument.name
        for i, argument in enumerate(declared)
        if i < len(schema.args_schema) and isinstance(schema.args_schema[i], OpStrategy)
    ]

    def placed(letter: str) -> list:
        outputs = [
            Replicate() if of is None else Shard(of.index(letter)) if letter in of else Partial()
            for of in results
        ]
        inputs = [
            Shard(axes[name].index(letter)) if letter in axes[name] else Replicate()
            for name in tensors
        ]
        return outputs + inputs

    everywhere: list[Placement | None] = [Replicate()] * (len(results) + len(tensors))
    return expand_to_full_mesh_op_strategy(
        schema.get_mesh_from_args(),
        schema,
        [everywhere, *(placed(letter) for letter in letters)],
        input_index=len(results),
        allow_uneven_sharding=True,
    )


def register() -> None:
    """Register all rules."""
    propagator = DTensor._op_dispatcher.sharding_propagator
    for name, rule in RULES.items():
        op = getattr(torch.ops.attnops, name).default
        # Every argument behind the first that is not a tensor is part of the cache's key: an
        # option of any type may change a rule.
        first = next(
            i for i, x in enumerate([*op._schema.arguments, None]) if x is None or not _is_tensor(x)
        )
        info = RuntimeSchemaInfo(first, needs_pytree=True)

        def strategy(schema: OpSchema, rule=rule) -> OpStrategy:
            return _strategy(rule, schema)

        propagator.register_op_strategy(op, strategy, info)


def _is_tensor(argument) -> bool:
    kind = argument.type
    if isinstance(kind, torch.OptionalType):
        kind = kind.getElementType()
    return isinstance(kind, torch.TensorType)


register()
