"""The operators on DTensors that are sharded by batch, heads or sequence.

The axes of a tensor have letters: b batch, h heads, s the sequence, - others. On a dimension of the
mesh all tensors are sharded by the same letter, where they have it; the local tensors then go
through the plain operator or, if the letter is s, that of attnops.distributed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import attnops
from attnops import _checks
from attnops import distributed as shards_of
from attnops.distributed._group import Shards

_WORDS = {"b": "batch", "h": "heads", "s": "the sequence"}


class _Call:
    """The tensors of a call, how they are sharded, and where their shards are."""

    def __init__(
        self,
        op: str,
        main: dict[str, tuple[Tensor | None, str]],
        others: dict[str, tuple[Tensor | None, str]] | None = None,
        letters: str = "bhs",
    ) -> None:
        """`main` have placements that decide; `others`, where replicated, take their part of it.

        `letters` are those that the operator can be sharded by.
        """
        self.op = op
        main = {name: given for name, given in main.items() if given[0] is not None}
        others = {name: given for name, given in (others or {}).items() if given[0] is not None}
        self.tensors: dict[str, DTensor] = {}
        self.axes = {name: given[1] for name, given in (main | others).items()}
        for name, (x, _) in (main | others).items():
            if not isinstance(x, DTensor):
                _checks.fail(
                    op,
                    f"{name} is a plain tensor and others are DTensors; distribute it, for example "
                    "with distribute_tensor(…, [Replicate()])",
                )
            self.tensors[name] = x
        self.mesh = next(iter(self.tensors.values())).device_mesh
        for name, tensor in self.tensors.items():
            if tensor.device_mesh != self.mesh:
                _checks.fail(op, f"{name} is on another device mesh")
        self.letters = [self._letter(i, main, letters) for i in range(self.mesh.ndim)]
        if self.letters.count("s") > 1:
            _checks.fail(op, "the sequence is sharded on more than one dimension of the mesh")

    def _letter(self, dim: int, main, letters: str) -> str | None:
        """What a dimension of the mesh shards, or None."""
        found, first = None, None
        for name, x in self.tensors.items():
            placement, axes = x.placements[dim], self.axes[name]
            if placement.is_replicate():
                continue
            # A strided shard, for one, is not plain.
            letter = axes[placement.dim] if type(placement) is Shard else "-"
            if letter not in letters:
                self._refuse(name, dim, "Replicate()" if found is None else found, axes)
            if found is None:
                found, first = letter, name
            elif letter != found:
                self._refuse(name, dim, found, axes, first)
        for name in main:
            if (
                found
                and found in self.axes[name]
                and self.tensors[name].placements[dim] != Shard(self.axes[name].index(found))
            ):
                self._refuse(name, dim, found, self.axes[name], first)
        return found

    def _refuse(
        self, name: str, dim: int, wanted: str, axes: str, first: str | None = None
    ) -> None:
        placement = self.tensors[name].placements[dim]
        if wanted in _WORDS:
            good = f"Shard({axes.index(wanted)})" if wanted in axes else "Replicate()"
            reason = f"{first} is sharded by {_WORDS[wanted]}"
        else:
            good, reason = "Replicate()", "it can be sharded by batch, heads or sequence only"
            words = [_WORDS[x] for x in "bhs" if x in axes]
            if not words:
                reason = "it must be on every rank"
        _checks.fail(
            self.op,
            f"{name} has the placement {placement} on dimension {dim} of the mesh; {reason}: "
            f"redistribute {name} to {good} there",
        )

    def _placements(self, axes: str, otherwise) -> list:
        return [
            otherwise
            if letter and letter not in axes
            else Shard(axes.index(letter))
            if letter
            else Replicate()
            for letter in self.letters
        ]

    def local(self) -> dict[str, Tensor]:
        """The rank's tensors. A gradient of what all ranks have is a sum over them."""
        return {
            name: x.redistribute(
                placements=self._placements(self.axes[name], Replicate())
            ).to_local(grad_placements=self._placements(self.axes[name], Partial()))
            for name, x in self.tensors.items()
        }

    @property
    def group(self) -> Shards | None:
        """The ranks that share the sequence, or None."""
        if "s" not in self.letters:
            return None
        return Shards(self.mesh.get_group(self.letters.index("s")), trusted=True)

    def sizes(self, name: str) -> list[int]:
        """The tokens of every rank's shard of a tensor."""
        tokens = self.tensors[name].shape[self.axes[name].index("s")]
        ranks = self.mesh.size(self.letters.index("s"))
        chunk = -(-tokens // ranks)
        return [max(0, min(chunk, tokens - rank * chunk)) for rank in range(ranks)]

    def result(self, out: Tensor, axes: str, shape: Sequence[int]) -> DTensor:
        """A local result as a DTensor of this shape."""
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            out.contiguous(),
            self.mesh,
            self._placements(axes, Replicate()),
            run_check=False,
            shape=torch.Size(shape),
            stride=stride,
        )


def _options(arguments: dict[str, Any], call: _Call) -> dict[str, Any]:
    """All arguments, those that are tensors by their local ones."""
    return arguments | call.local()


def _run(op: str, call: _Call, arguments: dict[str, Any], **sizes: str) -> Any:
    """The operator on local tensors; `sizes` says of which tensor an argument has the shards."""
    options = _options(arguments, call)
    group = call.group
    if group is None:
        return getattr(attnops, op)(**options)
    given = {name: call.sizes(tensor) for name, tensor in sizes.items()}
    return getattr(shards_of, op)(**options, group=group, **given)


def _theta_axes(theta: Tensor | None) -> str:
    return "" if theta is None else "h-" if theta.ndim == 2 and theta.shape[0] > 1 else "--"


def flao(**arguments) -> DTensor:
    names = ("q", "k", "v", "g")
    call = _Call("flao", {name: (arguments[name], "bhs-") for name in names})
    g = arguments["g"]
    return call.result(_run("flao", call, arguments), "bhs-", g.shape)


def flao_kv(**arguments) -> DTensor:
    """KV of a sequence that is sharded is a sum over its ranks: Partial, until it is needed."""
    k, v = arguments["k"], arguments["v"]
    call = _Call("flao_kv", {"k": (k, "bhs-"), "v": (v, "bhs-")})
    kv = attnops.flao_kv(**_options(arguments, call))
    shape = (*k.shape[:2], k.shape[3], v.shape[3])
    return DTensor.from_local(
        kv,
        call.mesh,
        call._placements("bh--", Partial()),
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )


def flao_out(**arguments) -> DTensor:
    q, kv, g = arguments["q"], arguments["kv"], arguments["g"]
    if isinstance(kv, DTensor) and any(p.is_partial() for p in kv.placements):
        kv = kv.redistribute(
            placements=[Replicate() if p.is_partial() else p for p in kv.placements]
        )
    arguments["kv"] = kv
    call = _Call("flao_out", {"q": (q, "bhs-"), "kv": (kv, "bh--"), "g": (g, "bhs-")})
    return call.result(attnops.flao_out(**_options(arguments, call)), "bhs-", g.shape)


def flao_fal(**arguments) -> DTensor:
    theta = arguments["theta"]
    call = _Call(
        "flao_fal",
        {name: (arguments[name], "bhs-") for name in ("q", "k", "v", "g")},
        {"theta": (theta, _theta_axes(theta))},
    )
    out = _run("flao_fal", call, arguments, sizes="q", key_sizes="k")
    return call.result(out, "bhs-", arguments["g"].shape)


def linear_attention(**arguments) -> DTensor | tuple[DTensor, DTensor]:
    op = "linear_attention"
    if arguments["cu_seqlens"] is not None or arguments["inplace_state"]:
        _checks.fail(op, "cu_seqlens and inplace_state are not for DTensors")
    axes = "bhs-" if arguments["layout"] == "bhnd" else "bsh-"
    log, log_v, state = (arguments[x] for x in ("log_decay", "log_decay_v", "initial_state"))
    call = _Call(
        op,
        {name: (arguments[name], axes) for name in ("q", "k", "v")},
        {
            "log_decay": (log, "h" if log is not None and log.ndim == 1 else axes),
            "log_decay_v": (log_v, axes),
            "initial_state": (state, "bh--"),
        },
    )
    q, v = arguments["q"], arguments["v"]
    heads = axes.index("h")
    for dim, letter in enumerate(call.letters):
        ranks = call.mesh.size(dim)
        if letter == "h" and q.shape[heads] != v.shape[heads] and q.shape[heads] % ranks != 0:
            _checks.fail(
                op,
                f"q has {q.shape[heads]} heads, which {ranks} ranks cannot share evenly with the "
                f"{v.shape[heads]} of v: redistribute q, k and v to Replicate() or another axis",
            )
    arguments = {x: y for x, y in arguments.items() if x not in ("cu_seqlens", "inplace_state")}
    result = _run(op, call, arguments, sizes="q")
    if not arguments["output_state"]:
        return call.result(result, axes, v.shape)
    shape = (v.shape[0], v.shape[heads], q.shape[3], v.shape[3])
    return call.result(result[0], axes, v.shape), call.result(result[1], "bh--", shape)


def _positions(positions: Tensor | None) -> str:
    return "" if positions is None else {1: "s", 2: "bs", 3: "-bs"}.get(positions.ndim, "-" * 8)


def _offset(offset: int | Tensor) -> dict[str, tuple[Tensor | None, str]]:
    return {"offset": (offset, "b")} if isinstance(offset, Tensor) else {}


def lrpe_rotate(**arguments) -> DTensor:
    x, theta, positions = arguments["x"], arguments["theta"], arguments["positions"]
    axes = "bs-" if x.ndim == 3 else "bhs-" if arguments["layout"] == "bhnd" else "bsh-"
    call = _Call(
        "lrpe_rotate",
        {"x": (x, axes)},
        {"theta": (theta, _theta_axes(theta)), "positions": (positions, _positions(positions))}
        | _offset(arguments["offset"]),
    )
    return call.result(_run("lrpe_rotate", call, arguments, sizes="x"), axes, x.shape)


def rope(**arguments) -> tuple[DTensor, DTensor]:
    if arguments["inplace"]:
        _checks.fail("rope", "inplace is not for DTensors")
    q, k, theta, positions = (arguments[x] for x in ("q", "k", "theta", "positions"))
    axes = "bhs-" if arguments["layout"] == "bhnd" else "bsh-"
    call = _Call(
        "rope",
        {"q": (q, axes), "k": (k, axes)},
        {
            "theta": (theta, "--" if theta is not None and theta.ndim == 2 else "-"),
            "cos_sin": (arguments["cos_sin"], "--"),
            "positions": (positions, _positions(positions)),
        }
        | _offset(arguments["offset"]),
    )
    q_out, k_out = _run("rope", call, arguments, sizes="q")
    return call.result(q_out, axes, q.shape), call.result(k_out, axes, k.shape)


def md_lrpe_cosine(**arguments) -> DTensor:
    x, theta, table = arguments["x"], arguments["theta"], arguments["table"]
    call = _Call(
        "md_lrpe_cosine",
        {"x": (x, "bhs-")},
        {
            "theta": (theta, _theta_axes(theta)),
            "table": (table, "h---" if table is not None and table.shape[0] > 1 else "----"),
        },
    )
    out = _run("md_lrpe_cosine", call, arguments, sizes="x")
    return call.result(out, "bhs-", (*x.shape[:-1], 2 * x.shape[-1]))


# Queries, of which every rank has all, and keys. The factors with features belong to all heads.
_FACTORS = {"aq": "b-h-", "bq": "b---", "q": "b-h-", "ak": "bsh-", "av": "bsh-"}
_FACTORS |= {"bk": "bs--", "bv": "bs--"}


def tpa(**arguments) -> DTensor:
    call = _Call("tpa", {name: (arguments[name], axes) for name, axes in _FACTORS.items()})
    query = arguments["aq"] if arguments["q"] is None else arguments["q"]
    out = _run("tpa", call, arguments, sizes="ak")
    return call.result(out, "b-h-", (*query.shape[:3], arguments["bv"].shape[3]))


def tpa_decode(**arguments) -> DTensor | tuple[DTensor, DTensor]:
    if arguments["lengths"] is not None or arguments["page_table"] is not None:
        _checks.fail("tpa_decode", "lengths and page_table are not for DTensors")
    ranks = {
        name: axes if arguments["ak"].ndim == 4 or name in ("aq", "bq", "q") else axes[:-1]
        for name, axes in _FACTORS.items()
    }
    call = _Call("tpa_decode", {name: (arguments[name], axes) for name, axes in ranks.items()})
    query = arguments["aq"] if arguments["q"] is None else arguments["q"]
    result = _run("tpa_decode", call, arguments)
    shape = (*query.shape[:3], arguments["bv"].shape[-1])
    if not arguments["return_lse"]:
        return call.result(result, "b-h-", shape)
    lse_shape = (query.shape[0], query.shape[2], query.shape[1])
    return call.result(result[0], "b-h-", shape), call.result(result[1], "bh-", lse_shape)
