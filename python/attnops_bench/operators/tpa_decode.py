"""The tables of tpa_decode: H = 32, D = E = 128, R = 16, a cache of n tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnops_bench.tables import (
    BYTES,
    DEFAULT_BATCH,
    Case,
    Checker,
    Column,
    Cost,
    Inputs,
    Kind,
    Table,
)

if TYPE_CHECKING:
    import torch

HEADS, DIM, RANK = 32, 128, 16
BATCHES = (8, 32)
SIZES = tuple(2**i for i in range(8, 16))
QUICK_SIZES = (256, 1024, 4096)
KINDS: tuple[Kind, ...] = ("speed", "memory")


def title(kind: Kind, batch: int, dtype: str) -> str:
    return f"tpa_decode-{kind}-fwd-batch{batch}-head{HEADS}-dim{DIM}-rank{RANK}-{dtype}"


class TpaDecode:
    """See `attnops_bench.tables.Operator`."""

    name = "tpa_decode"
    # to, toc: separate operations on the factors, eager and compiled; ton, tonc: K and V are built
    # first; _up: computed in float32, rounded at the end.
    columns = (
        Column("attnops", "attnops"),
        Column("attnops_b", "extra"),
        Column("attnops_bh", "extra"),
        Column("attnops_bn", "extra"),
        Column("to", "peer"),
        Column("toc", "peer", compiled=True),
        Column("ton", "peer"),
        Column("tonc", "peer", compiled=True),
        Column("to_up", "peer"),
        Column("toc_up", "peer", compiled=True),
        Column("ton_up", "peer"),
        Column("tonc_up", "peer", compiled=True),
    )

    def tables(self, batch: int, dtype: str) -> list[Table]:
        """The published tables are for two batch sizes, in place of the usual one."""
        batches = BATCHES if batch == DEFAULT_BATCH else (batch,)
        return [
            Table(
                id=title(kind, b, dtype),
                title=title(kind, b, dtype),
                operator=self.name,
                kind=kind,
                direction="fwd",
                dtype=dtype,
                options={"batch": b},
                sizes=SIZES,
                quick_sizes=QUICK_SIZES,
                size_name="m",
            )
            for kind in KINDS
            for b in batches
        ]

    def cost(self, case: Case) -> Cost:
        batch, size = case.options["batch"], BYTES[case.dtype]
        queries = HEADS * RANK + RANK * DIM
        read = batch * (case.n * (2 * HEADS + 2 * DIM) + queries) * size
        ranks, through_q = RANK * DIM + HEADS * RANK, HEADS * DIM
        products = min(ranks, through_q) + HEADS * DIM
        return Cost(
            moved=read,
            flops=2 * batch * case.n * products,
            held=read + batch * HEADS * DIM * size,
            # bq·bkᵀ is a product of inputs.
            direct=2 * batch * case.n * RANK * DIM if ranks <= through_q else 0,
        )

    def peak_bytes(self, case: Case, column: Column) -> int:
        """The inputs, then scores and weights, or K and V as well; wider in float32."""
        held = self.cost(case).held
        if column.name.startswith("attnops"):
            return held + (4 << 20)
        width = BYTES["f32"] if column.name.endswith("_up") else BYTES[case.dtype]
        scores = case.options["batch"] * HEADS * case.n * BYTES["f32"]
        extra = 4 * scores + (2 * held if column.name.endswith("_up") else 0)
        if column.name.startswith("ton"):
            extra += 3 * case.options["batch"] * HEADS * case.n * DIM * width
        return held + extra

    def inputs(self, case: Case) -> Inputs:
        from attnops_bench.operators import _tpa_decode_torch as impl

        return impl.inputs(case)

    def function(self, case: Case, column: Column, inputs: Inputs) -> Callable[..., torch.Tensor]:
        from attnops_bench.operators import _tpa_decode_torch as impl

        return impl.function(column)

    def checker(self, case: Case, inputs: Inputs) -> Checker:
        from attnops_bench.operators import _tpa_decode_torch as impl

        return impl.checker(case, inputs)


OPERATOR = TpaDecode()
