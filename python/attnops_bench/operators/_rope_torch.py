"""rope in a worker: its inputs, attnops and transformers' form, and the check."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import attnops
from attnops_bench import reference
from attnops_bench.operators.rope import DIM, HEADS, KEY_HEADS, shape
from attnops_bench.random_inputs import DTYPES, normal
from attnops_bench.tables import SEED, Case, Checker, Column, Inputs

Forward = Callable[..., tuple[torch.Tensor, torch.Tensor]]
HALF = DIM // 2
LONGEST = 4096  # positions of a decode


def inputs(case: Case) -> Inputs:
    """q, k, theta and positions: 0, 1, … of a prefill, any of a decode."""
    generator = torch.Generator().manual_seed(SEED)
    (batch, tokens), dtype = shape(case), DTYPES[case.dtype]
    q, k = (normal((batch, tokens, h, DIM), dtype, generator) for h in (HEADS, KEY_HEADS))
    theta = 10000.0 ** (-torch.arange(HALF, dtype=torch.float32) / HALF)
    if case.options["step"]:
        positions = torch.randint(0, LONGEST, (batch, 1), generator=generator)
    else:
        positions = torch.arange(tokens).repeat(batch, 1)
    return Inputs((q, k, theta, positions), (), None)


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([-x[..., HALF:], x[..., :HALF]], -1)


def _transformers(q, k, theta, positions) -> tuple[torch.Tensor, torch.Tensor]:
    """LlamaRotaryEmbedding and apply_rotary_pos_emb, for tensors (B,N,H,D)."""
    angle = positions[..., None].float() * theta
    angle = torch.cat([angle, angle], -1)
    cos, sin = (t.to(q.dtype).unsqueeze(2) for t in (angle.cos(), angle.sin()))
    return q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin


def function(column: Column) -> Forward:
    if column.role == "peer":
        if not column.compiled:
            return _transformers
        return torch.compile(_transformers, dynamic=False, fullgraph=True)
    if column.name == "attnops":
        return lambda q, k, theta, positions: attnops.rope(q, k, theta, positions=positions)
    copies: list[torch.Tensor] = []

    def inplace(q, k, theta, positions):
        """Turns its own copies on and on; the first result is the operator's."""
        if not copies:
            copies.extend((q.clone(), k.clone()))
        return attnops.rope(*copies, theta, positions=positions, inplace=True)

    return inplace


def checker(case: Case, given: Inputs) -> Checker:
    """Compares two batches of q and k."""
    q, k, theta, positions = given.args
    batch, _ = shape(case)
    picks = np.random.default_rng(SEED).choice(batch, size=min(2, batch), replace=False).tolist()

    def expected(x: torch.Tensor, b: int) -> tuple[np.ndarray, np.ndarray]:
        angle = positions[b].double().numpy()[:, None, None] * theta.double().numpy()
        cos, sin = np.cos(angle), np.sin(angle)
        u, v = np.split(x[b].double().numpy(), 2, -1)
        rotated = np.concatenate([u * cos - v * sin, u * sin + v * cos], -1)
        return rotated, np.concatenate([np.hypot(u, v)] * 2, -1)

    def check(column: Column, result: tuple[torch.Tensor, torch.Tensor]) -> str | None:
        if column.name == "attnops_inplace":
            return None  # turned as often as it was timed
        peer = column.role == "peer"
        allowed = reference.tolerance(
            case.dtype,
            roundings=6 if peer else 1,
            depth=DIM,
            angle_error=LONGEST * reference.ROUNDOFF["f32"] if peer else 0.0,
        )
        for x, out in zip((q, k), result, strict=True):
            if out.dtype != x.dtype or out.shape != x.shape:
                return f"wrong result: {out.dtype} {tuple(out.shape)}"
            for b in picks:
                wanted, scale = expected(x, b)
                if problem := allowed.violation(out[b].double().numpy(), wanted, scale):
                    return f"{problem} (batch {b})"
        return None

    return check
