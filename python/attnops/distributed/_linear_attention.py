"""linear_attention over sequence shards: the states and total decays of the ranks before.

Every rank makes the state of its own tokens alone, S_r, and the logarithm L_r of their total decay;
one all-gather of both tells it the state at its start, with which the operator runs:

    start_0 = S₀      start_{r+1} = exp(L_r)·start_r + S_r

The backward goes the other way. D_r, the gradient of rank r's start from its own outputs, is made
from q, do and the decays; one all-gather gives the gradient of the state at a rank's end:

    end_last = dS     end_r = D_{r+1} + exp(L_{r+1})·end_{r+1}
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

import attnops
from attnops import _checks, _choices
from attnops.distributed._group import Shards, gather, without_axis

_OP = "linear_attention"


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    *,
    log_decay_v: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_state: bool = False,
    layout: str = "bnhd",
    keep: str = "none",
    precision: str | None = None,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """attnops.linear_attention of a sequence that is spread over the ranks.

    initial_state is the state before the first token; that of the first rank is used, and gets the
    gradient. The state that output_state asks for, behind the last token, is given to every rank.
    """
    shards = Shards.of(group)
    if shards.size == 1:
        return attnops.linear_attention(
            q,
            k,
            v,
            log_decay,
            log_decay_v=log_decay_v,
            scale=scale,
            initial_state=initial_state,
            output_state=output_state,
            layout=layout,
            keep=keep,
            precision=precision,
        )
    _checks.are_tensors(_OP, q=q, k=k, v=v)
    if layout not in ("bnhd", "bhnd"):
        _checks.fail(_OP, f"layout must be bnhd or bhnd; it is {layout}")
    for name, x in (("q", q), ("k", k), ("v", v)):
        _checks.axes(_OP, name, x, "(B,H,N,D)" if layout == "bhnd" else "(B,N,H,D)")
    kept = _choices.number(_OP, "keep", _choices.CAUSAL_KEEPS, keep)
    products = _choices.precision(_OP, precision)
    axis = 2 if layout == "bhnd" else 1
    if not torch.compiler.is_compiling():
        constant = log_decay is not None and log_decay.ndim == 1
        fixed = {
            "q": without_axis(q, axis),
            "k": without_axis(k, axis),
            "v": without_axis(v, axis),
            "log_decay": without_axis(log_decay, *(() if constant else (axis,))),
            "log_decay_v": without_axis(log_decay_v, axis),
            "options": f"{scale} {output_state} {layout}",
        }
        shards.agree(_OP, {"sizes": q.shape[axis]}, {"sizes": sizes}, fixed, q.device)
    out, state = _LinearAttention.apply(
        q,
        k,
        v,
        log_decay,
        log_decay_v,
        initial_state,
        None if scale is None else float(scale),
        layout == "bhnd",
        shards.group,
        shards.rank,
        shards.size,
        output_state,
        shards.trusted,
        kept if torch.is_grad_enabled() else _choices.NONE,
        products,
    )
    return (out, state) if output_state else out


class _LinearAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx,
        q,
        k,
        v,
        log_decay,
        log_decay_v,
        initial_state,
        scale,
        heads_first,
        group,
        rank,
        ranks,
        output_state,
        replicated,
        keep,
        precision,
    ):
        ctx.initial = None if initial_state is None else initial_state.shape
        initial_state = initial_state if rank == 0 else None
        decays = _Decays(log_decay, log_decay_v, q, v, heads_first)
        local = _product(k, v, decays.to_end(), heads_first)
        if initial_state is not None:
            local = local + decays.all_tokens(initial_state)
        states, totals = _unpack(gather(decays.pack(local), group), local, decays)
        start = initial_state
        for i in range(rank):
            start = states[i] if i == 0 else totals[i].decay(start) + states[i]
        out, _, kept = torch.ops.attnops.linear_attention(
            q, k, v, log_decay, log_decay_v, scale, start, None, False, heads_first, keep, precision
        )
        state = local.new_empty(0)
        if output_state:
            state = states[0]
            for i in range(1, ranks):
                state = totals[i].decay(state) + states[i]
            state = state.clone()
        ctx.save_for_backward(
            q,
            k,
            v,
            log_decay,
            log_decay_v,
            start,
            None if keep == _choices.NONE else kept,
            *(x.total_k for x in totals),
            *(x.total_v for x in totals),
        )
        ctx.options = (scale, heads_first, group, rank, ranks, precision)
        ctx.output_state, ctx.replicated = output_state, replicated
        return out, state

    @staticmethod
    def backward(ctx, d_out: Tensor, d_state: Tensor):
        scale, heads_first, group, rank, ranks, precision = ctx.options
        q, k, v, log_decay, log_decay_v, start, kept, *totals = ctx.saved_tensors
        totals = [_Total(*pair) for pair in zip(totals[:ranks], totals[ranks:], strict=True)]
        decays = _Decays(log_decay, log_decay_v, q, v, heads_first)
        factor = q.shape[3] ** -0.5 if scale is None else scale
        own = factor * _product(q, d_out, decays.from_start(), heads_first)
        packed = own if not ctx.output_state else torch.stack((own, d_state))
        gathered = gather(packed, group)
        if ctx.output_state:
            end, starts = gathered[0, 1], gathered[:, 0]
            for i in range(1, ranks) if not ctx.replicated else ():
                end = end + gathered[i, 1]
        else:
            end, starts = None, gathered
        for i in range(ranks - 1, rank, -1):
            end = starts[i] if end is None else totals[i].decay(end) + starts[i]
        needs = ctx.needs_input_grad
        dq, dk, dv, d_log, d_log_v, d_initial = torch.ops.attnops.linear_attention_backward(
            q,
            k,
            v,
            log_decay,
            log_decay_v,
            scale,
            start,
            None,
            heads_first,
            d_out,
            end,
            needs[3] or needs[4],
            kept,
            precision,
        )
        if ctx.initial is not None and rank > 0:
            d_initial = torch.zeros(ctx.initial, device=q.device)
        return (
            dq,
            dk,
            dv,
            d_log if log_decay is not None and needs[3] else None,
            d_log_v if log_decay_v is not None and needs[4] else None,
            d_initial if needs[5] else None,
            *(None,) * 9,
        )


class _Total:
    """The total decay of a rank's tokens: logarithms (B,H,D or 1) and (B,H,E or 1)."""

    def __init__(self, total_k: Tensor, total_v: Tensor) -> None:
        self.total_k, self.total_v = total_k, total_v

    def decay(self, state: Tensor) -> Tensor:
        return self.total_k.exp()[..., None] * state * self.total_v.exp()[..., None, :]


class _Decays:
    """The decays of a shard in float32, (B,H,N,·), and their products along it."""

    def __init__(self, log_decay, log_decay_v, q: Tensor, v: Tensor, heads_first: bool) -> None:
        axis = 2 if heads_first else 1
        self.batches, self.heads = v.shape[0], v.shape[3 - axis]
        self.tokens = v.shape[axis]
        self.constant: Tensor | None = None
        self.key: Tensor | None = None
        self.value: Tensor | None = None
        self.device = v.device
        if log_decay is not None and log_decay.ndim == 1:
            self.constant = log_decay.float()[None, :, None]  # (1,H,1)
        elif log_decay is not None:
            wide = log_decay.float() if log_decay.ndim == 4 else log_decay.float()[..., None]
            self.key = wide if heads_first else wide.transpose(1, 2)
        if log_decay_v is not None:
            wide = log_decay_v.float()
            self.value = wide if heads_first else wide.transpose(1, 2)

    def _constants(self, counts: Tensor) -> Tensor:
        """(1,H,N,1): the constant so many times; nothing is nothing, of −inf too."""
        assert self.constant is not None
        return (counts * self.constant).where(counts > 0, 0.0)[..., None]

    def to_end(self) -> tuple[Tensor | None, Tensor | None]:
        """From behind each token to the shard's end."""

        def behind(log: Tensor) -> Tensor:
            shifted = torch.cat((log[:, :, 1:], torch.zeros_like(log[:, :, :1])), 2)
            return shifted.flip(2).cumsum(2).flip(2).exp()

        key = None if self.key is None else behind(self.key)
        if self.constant is not None:
            count = torch.arange(self.tokens - 1, -1, -1, device=self.device)
            key = self._constants(count).exp()
        return key, None if self.value is None else behind(self.value)

    def from_start(self) -> tuple[Tensor | None, Tensor | None]:
        """From the shard's start to each token, with its own decay."""
        key = None if self.key is None else self.key.cumsum(2).exp()
        if self.constant is not None:
            key = self._constants(torch.arange(1, self.tokens + 1, device=self.device)).exp()
        return key, None if self.value is None else self.value.cumsum(2).exp()

    def total(self) -> _Total:
        shape = (self.batches, self.heads, 1)
        nothing = torch.zeros(shape, device=self.device)
        key = nothing if self.key is None else self.key.sum(2)
        if self.constant is not None and self.tokens > 0:
            key = (self.tokens * self.constant).expand(shape)
        return _Total(key, nothing if self.value is None else self.value.sum(2))

    def all_tokens(self, state: Tensor) -> Tensor:
        return self.total().decay(state)

    def pack(self, state: Tensor) -> Tensor:
        """The state and the total decay in one tensor."""
        total = self.total()
        return torch.cat([x.reshape(-1) for x in (state, total.total_k, total.total_v)])


def _unpack(gathered: Tensor, state: Tensor, decays: _Decays) -> tuple[list[Tensor], list[_Total]]:
    total = decays.total()
    sizes = [state.numel(), total.total_k.numel(), total.total_v.numel()]
    states, totals_k, totals_v = gathered.split(sizes, 1)
    ranks = range(gathered.shape[0])
    return (
        [states[i].view(state.shape) for i in ranks],
        [
            _Total(totals_k[i].view(total.total_k.shape), totals_v[i].view(total.total_v.shape))
            for i in ranks
        ],
    )


def _product(x: Tensor, y: Tensor, weights, heads_first: bool) -> Tensor:
    """Σ (x·weight)·(y·weight)ᵀ over the tokens, (B,H,D,E), in float32. x may have fewer heads."""
    if not heads_first:
        x, y = x.transpose(1, 2), y.transpose(1, 2)
    if x.shape[1] != y.shape[1]:
        x = x.repeat_interleave(y.shape[1] // x.shape[1], 1)
    x_weight, y_weight = weights
    if x_weight is not None or y_weight is not None:
        x, y = x.float(), y.float()
        x = x if x_weight is None else x * x_weight
        y = y if y_weight is None else y * y_weight
    return torch.ops.attnops.flao_kv(x, y, None)
