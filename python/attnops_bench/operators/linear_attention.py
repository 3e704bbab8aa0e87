"""The tables of linear_attention: q, k, v (B,N,H,D) = (12,n,12,128), for each kind of decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnops_bench.tables import BYTES, Case, Checker, Column, Cost, Direction, Inputs, Kind, Table

if TYPE_CHECKING:
    import torch

HEADS, DIM, CHUNK = 12, 128, 64
SIZES = tuple(2**i for i in range(8, 16))
QUICK_SIZES = (256, 512, 1024)
STEP_BATCHES = (1, 8, 32)
DECAYS = ("none", "constant", "scalar", "vector")
PASSES: tuple[tuple[Direction, Kind], ...] = (
    ("fwd", "speed"),
    ("fwd", "memory"),
    ("bwd", "speed"),
    ("bwd", "memory"),
)


def title(kind: Kind, what: str, decay: str, batch: int | None, dtype: str) -> str:
    of_batch = "" if batch is None else f"-batch{batch}"
    return f"linear_attention-{kind}-{what}-{decay}{of_batch}-head{HEADS}-dim{DIM}-dim{DIM}-{dtype}"


def is_step(case: Case) -> bool:
    """One token for each of n sequences, with a state."""
    return case.options["step"]


def in_float32(case: Case) -> bool:
    """Whether products are float32 in every precision: of steps and of decays of features."""
    return is_step(case) or case.options["decay"] == "vector"


class LinearAttention:
    """See `attnops_bench.tables.Operator`."""

    name = "linear_attention"
    # to, toc: chunks of 64 tokens in separate operations, eager and compiled, or the formula of a
    # step; _up: computed in float32, rounded at the end; loop: one token after the other.
    columns = (
        Column("attnops", "attnops"),
        Column("to", "peer"),
        Column("toc", "peer", compiled=True),
        Column("to_up", "peer"),
        Column("toc_up", "peer", compiled=True),
        Column("loop", "peer", kinds=("speed",)),
    )

    def tables(self, batch: int, dtype: str) -> list[Table]:
        tables = [
            Table(
                id=title(kind, direction, decay, batch, dtype),
                title=title(kind, direction, decay, batch, dtype),
                operator=self.name,
                kind=kind,
                direction=direction,
                dtype=dtype,
                options={"batch": batch, "decay": decay, "step": False},
                sizes=SIZES,
                quick_sizes=QUICK_SIZES,
            )
            for decay in DECAYS
            for direction, kind in PASSES
        ]
        steps = [
            Table(
                id=title("speed", "step", decay, None, dtype),
                title=title("speed", "step", decay, None, dtype),
                operator=self.name,
                kind="speed",
                direction="fwd",
                dtype=dtype,
                options={"batch": batch, "decay": decay, "step": True},
                sizes=STEP_BATCHES,
                quick_sizes=STEP_BATCHES,
                size_name="batch",
            )
            for decay in DECAYS
        ]
        return tables + steps

    def _sizes(self, case: Case) -> tuple[int, int, int]:
        """Tokens of all heads, and the bytes of a tensor and of the decays."""
        rows = HEADS * case.n * (1 if is_step(case) else case.options["batch"])
        decay = {
            "none": 0,
            "constant": HEADS * BYTES["f32"],
            "scalar": rows * BYTES["f32"],
            "vector": rows * DIM * BYTES[case.dtype],
        }[case.options["decay"]]
        return rows, rows * DIM * BYTES[case.dtype], decay

    def cost(self, case: Case) -> Cost:
        """Products of chunks of 64 tokens; the backward computes scores and states anew."""
        rows, tensor, decay = self._sizes(case)
        if is_step(case):
            state = rows * DIM * DIM * BYTES["f32"]
            moved = 2 * state + 4 * tensor + decay
            return Cost(moved=moved, flops=4 * rows * DIM * DIM, held=moved)
        half = CHUNK // 2
        scores, product = 2 * rows * half * DIM, 2 * rows * DIM * DIM
        # Scores are products of inputs, and so are what states add if nothing decays.
        direct = scores + (product if case.options["decay"] == "none" else 0)
        direct = None if in_float32(case) else direct
        if case.direction == "fwd":
            held = 4 * tensor + decay
            return Cost(moved=held, flops=2 * scores + 2 * product, held=held, direct=direct)
        return Cost(
            moved=7 * tensor + 2 * decay,
            flops=5 * scores + 5 * product,
            held=8 * tensor + 2 * decay,
            direct=None if direct is None else 2 * direct,
        )

    def peak_bytes(self, case: Case, column: Column) -> int:
        """The tensors of the pass, then intermediates, wider in float32."""
        rows, tensor, _ = self._sizes(case)
        held = self.cost(case).held
        if column.role == "attnops":
            return held + (32 << 20)
        states = rows * DIM * DIM * BYTES["f32"] // (1 if is_step(case) else CHUNK)
        width = 4 // BYTES[case.dtype] if column.name.endswith("_up") else 1
        extra = 8 if case.direction == "fwd" else 24
        return held + 4 * states + extra * width * tensor

    def inputs(self, case: Case) -> Inputs:
        from attnops_bench.operators import _linear_attention_torch as impl

        return impl.inputs(case)

    def function(self, case: Case, column: Column, inputs: Inputs) -> Callable[..., torch.Tensor]:
        from attnops_bench.operators import _linear_attention_torch as impl

        return impl.function(case, column)

    def checker(self, case: Case, inputs: Inputs) -> Checker:
        from attnops_bench.operators import _linear_attention_torch as impl

        return impl.checker(case, inputs)


OPERATOR = LinearAttention()
