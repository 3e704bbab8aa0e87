"""linear_attention in a worker: its inputs, attnops and the PyTorch peers, and the check."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import logsigmoid, pad

import attnops
from attnops_bench import reference
from attnops_bench.operators._products import rounds_operands
from attnops_bench.operators.linear_attention import CHUNK, DIM, HEADS, in_float32, is_step
from attnops_bench.random_inputs import DTYPES, normal
from attnops_bench.tables import SEED, Case, Checker, Column, Inputs

Forward = Callable[..., torch.Tensor]
SCALE = DIM**-0.5


def _shape(case: Case) -> tuple[int, int]:
    return (case.n, 1) if is_step(case) else (case.options["batch"], case.n)


def inputs(case: Case) -> Inputs:
    """q, k, v normal random; decays near 0.95, as models have them; a state for a step."""
    generator = torch.Generator().manual_seed(SEED)
    dtype = DTYPES[case.dtype]
    batch, n = _shape(case)
    args = [normal((batch, n, HEADS, DIM), dtype, generator) for _ in range(3)]
    decay = case.options["decay"]
    if decay == "constant":
        args.append(-torch.logspace(-1.5, -2.7, HEADS))
    elif decay == "scalar":
        args.append(logsigmoid(normal((batch, n, HEADS), torch.float32, generator)) / 16)
    elif decay == "vector":
        args.append(logsigmoid(normal((batch, n, HEADS, DIM), dtype, generator)).div_(16))
    if is_step(case):
        args.append(normal((batch, HEADS, DIM, DIM), torch.float32, generator))
    if case.direction == "fwd":
        return Inputs(tuple(args), (), None)
    for tensor in args:
        tensor.requires_grad_()
    return Inputs(tuple(args), tuple(args), normal((batch, n, HEADS, DIM), dtype, generator))


def _chunked(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """(B,N,H,...) as (B,H,chunks,chunk,...)."""
    return x.unflatten(1, (-1, chunk)).movedim(3, 1)


def chunked(q, k, v, log_decay=None) -> torch.Tensor:
    """The form with chunks, as its authors write it, in the type of q; decays in float32."""
    batch, n, heads, _ = q.shape
    chunk = min(CHUNK, n)
    q, k, v = (_chunked(x, chunk) for x in (q, k, v))
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    mask = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    per_feature = log_decay is not None and log_decay.ndim == 4
    if log_decay is None:
        scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, 0)
        q_start, k_end, total = q, k, None
    else:
        logs = log_decay.to(wide)
        if logs.ndim == 1:
            logs = logs.expand(batch, n, heads)
        sums = _chunked(logs, chunk).cumsum(3)  # (B,H,chunks,chunk) or with features
        if per_feature:
            last = sums[..., -1:, :]
            q_start = (q * sums.exp()).to(q.dtype)
            scores = (q_start @ (k * (-sums).exp()).to(k.dtype).transpose(-1, -2)).masked_fill(
                ~mask, 0
            )
            k_end = (k * (last - sums).exp()).to(k.dtype)
            total = last.exp().transpose(-1, -2)
        else:
            weights = (sums[..., :, None] - sums[..., None, :]).masked_fill(~mask, -torch.inf).exp()
            scores = ((q @ k.transpose(-1, -2)) * weights).to(q.dtype)
            q_start = (q * sums.exp()[..., None]).to(q.dtype)
            last = sums[..., -1:]
            k_end = (k * (last - sums).exp()[..., None]).to(k.dtype)
            total = last.exp()[..., None]
    added = (k_end.transpose(-1, -2) @ v).to(wide)
    state, states = torch.zeros_like(added[:, :, 0]), []
    for i in range(n // chunk):
        states.append(state)
        state = added[:, :, i] + (state if total is None else state * total[:, :, i])
    out = scores @ v + q_start @ torch.stack(states, 2).to(q.dtype)
    return (out * SCALE).movedim(1, 3).flatten(1, 2)


def loop(q, k, v, log_decay=None) -> torch.Tensor:
    """One token after the other, with the state in float32."""
    batch, n, heads, dim = q.shape
    state = torch.zeros(batch, heads, dim, v.shape[3], dtype=torch.float32)
    out = []
    for t in range(n):
        decay = (
            None if log_decay is None else (log_decay if log_decay.ndim == 1 else log_decay[:, t])
        )
        o, state = step_of(q[:, t], k[:, t], v[:, t], decay, state)
        out.append(o)
    return torch.stack(out, 1)


def step_of(q, k, v, log_decay, state) -> tuple[torch.Tensor, torch.Tensor]:
    """One token, (B,H,D) each."""
    if log_decay is not None:
        decay = log_decay.float().exp()
        state = state * (decay[..., None] if decay.ndim == 3 else decay[..., None, None])
    state = state + k.float()[..., None] * v.float()[..., None, :]
    o = (q.float()[..., None, :] @ state)[..., 0, :] * SCALE
    return o.to(q.dtype), state


def _step(q, k, v, *rest) -> torch.Tensor:
    *decay, state = rest
    log_decay = decay[0] if decay else None
    if log_decay is not None and log_decay.ndim > 1:
        log_decay = log_decay[:, 0]
    o, state = step_of(q[:, 0], k[:, 0], v[:, 0], log_decay, state)
    return torch.stack((o,), 1), state


def _upcast(form: Forward) -> Forward:
    return lambda *args: form(*(a.float() for a in args)).to(args[0].dtype)


def _attnops_step(q, k, v, *rest) -> torch.Tensor:
    *decay, state = rest
    return attnops.linear_attention(q, k, v, *decay, initial_state=state, output_state=True)


def function(case: Case, column: Column) -> Forward:
    if is_step(case):
        form = _attnops_step if column.role == "attnops" else _step
        if column.compiled:
            form = torch.compile(form, dynamic=False, fullgraph=True)
        return lambda *args: form(*args)[0]
    if column.role == "attnops":
        return lambda *args: attnops.linear_attention(*args)
    form = loop if column.name == "loop" else chunked
    if column.name.endswith("_up"):
        form = _upcast(form)
    return torch.compile(form, dynamic=False, fullgraph=True) if column.compiled else form


def _one(case: Case, tensor: torch.Tensor, b: int, h: int) -> torch.Tensor:
    """A batch and head of a tensor in float64, padded to whole chunks of tokens."""
    tensor = tensor.detach()
    if tensor.ndim == 1:
        return tensor[h : h + 1].double()
    if tensor.shape[1] == HEADS:  # a state
        return tensor[b : b + 1, h : h + 1].double()
    x = tensor[b : b + 1, :, h : h + 1].double()
    missing = 0 if is_step(case) else -x.shape[1] % CHUNK
    return pad(x, (0, 0) * (x.ndim - 2) + (0, missing)) if missing else x


def _expected(case: Case, args, d_out, magnitudes: bool) -> list[torch.Tensor]:
    """What one batch and head must give, or the same with the magnitudes of all terms."""
    args = [a.abs() if magnitudes and i != 3 else a for i, a in enumerate(args)]
    if is_step(case):
        *args, state = args
        o, _ = step_double(*args, state=state.abs() if magnitudes else state)
        return [o]
    if d_out is None:
        return [chunked(*args)]
    args = [a.requires_grad_() for a in args]
    d_out = d_out.abs() if magnitudes else d_out
    gradients = torch.autograd.grad(chunked(*args), args, d_out)
    return [g.detach() for g in gradients]


def step_double(q, k, v, log_decay=None, *, state) -> tuple[torch.Tensor, torch.Tensor]:
    if log_decay is not None:
        decay = (log_decay if log_decay.ndim == 1 else log_decay[:, 0]).exp()
        state = state * (decay[..., None] if decay.ndim == 3 else decay[..., None, None])
    state = state + k[:, 0, ..., None] * v[:, 0, :, None, :]
    return (q[:, 0, :, None, :] @ state)[..., 0, :][:, None] * SCALE, state


def checker(case: Case, given: Inputs) -> Checker:
    batch, n = _shape(case)
    picks = np.random.default_rng(SEED).choice(batch * HEADS, size=1, replace=False)
    slices = [divmod(int(i), HEADS) for i in picks]
    # A gradient of a constant decay is a sum over batches, which a slice has not.
    names = ("out",) if given.d_out is None else ("dq", "dk", "dv", "d_log_decay")
    expected = []
    for b, h in slices:
        args = [_one(case, a, b, h) for a in given.args]
        d_out = None if given.d_out is None else _one(case, given.d_out, b, h)
        expected.append([_expected(case, args, d_out, magnitudes) for magnitudes in (False, True)])
    # The largest q⊙dq of a token, by magnitudes.
    of_tokens = 0.0
    if given.d_out is not None:
        for (b, h), (_, (dq, *_)) in zip(slices, expected, strict=True):
            q = _one(case, given.args[0], b, h)
            of_tokens = max(of_tokens, float((q.abs() * dq).sum(-1).max()))
    one = reference.Tolerance(relative=1.0, absolute=0.0)
    roundoff = reference.ROUNDOFF[case.dtype]
    arithmetic = reference.tolerance(case.dtype, roundings=0, depth=max(n, DIM)).relative

    def check(column: Column, result: torch.Tensor | tuple[torch.Tensor, ...]) -> str | None:
        values = result if isinstance(result, tuple) else (result,)
        # Products in the tensors' type round scores, states and decayed rows.
        in_type = rounds_operands(case, column)
        if column.role == "attnops":
            in_type = in_type and not in_float32(case)
        for i, (name, value) in enumerate(zip(names, values, strict=False)):
            if value.ndim == 1:
                continue
            for (b, h), (wanted, scale) in zip(slices, expected, strict=True):
                actual = value.detach()[b : b + 1, :, h : h + 1].double().numpy()
                right, terms = (x[i][:, : actual.shape[1]].numpy() for x in (wanted, scale))
                if name == "d_log_decay":  # a running sum of q⊙dq − k⊙dk
                    terms = np.broadcast_to(max(terms.max(), of_tokens), terms.shape)
                allowed = (4 * arithmetic + (4 * roundoff if in_type else 0)) * terms
                allowed = (
                    allowed + 2 * roundoff * np.abs(right) + 4 * reference.SUBNORMAL[case.dtype]
                )
                if problem := one.violation(actual, right, allowed):
                    return f"{problem} ({name}, batch {b}, head {h})"
        return None

    return check
