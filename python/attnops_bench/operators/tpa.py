"""The tables of tpa: causal, the ranks of the published models, n queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnops_bench.operators._tpa_shapes import (
    DIM,
    HEADS,
    PEERS,
    factor_bytes,
    score_products,
)
from attnops_bench.tables import (
    BYTES,
    DEFAULT_BATCH,
    Case,
    Checker,
    Column,
    Cost,
    Direction,
    Inputs,
    Kind,
    Table,
)

if TYPE_CHECKING:
    import torch

BATCH = 2
SIZES = tuple(2**i for i in range(8, 14))
QUICK_SIZES = (256, 512, 1024)


def title(kind: Kind, direction: Direction, batch: int, heads: int, dtype: str) -> str:
    return f"tpa-{kind}-{direction}-batch{batch}-rank6_2_2-head{heads}-dim{DIM}-{dtype}"


class Tpa:
    """See `attnops_bench.tables.Operator`."""

    name = "tpa"
    columns = (Column("attnops", "attnops"), *PEERS)

    def tables(self, batch: int, dtype: str) -> list[Table]:
        b = BATCH if batch == DEFAULT_BATCH else batch
        return [
            Table(
                id=title(kind, direction, b, HEADS[0], dtype),
                title=title(kind, direction, b, HEADS[0], dtype),
                operator=self.name,
                kind=kind,
                direction=direction,
                dtype=dtype,
                options={"batch": b, "heads": HEADS[0]},
                sizes=SIZES,
                quick_sizes=QUICK_SIZES,
            )
            for kind in ("speed", "memory")
            for direction in ("fwd", "bwd")
        ]

    def cost(self, case: Case) -> Cost:
        """Half of all pairs. Values are formed; the backward has five products of whole rows."""
        batch, heads = case.options["batch"], case.options["heads"]
        queries, keys = factor_bytes(case, case.n)
        out = batch * case.n * heads * DIM * BYTES[case.dtype]
        pairs = batch * case.n * (case.n + 1) // 2
        if case.direction == "fwd":
            return Cost(
                moved=queries + keys + out,
                flops=2 * pairs * (score_products(heads) + heads * DIM),
                held=queries + keys + out,
                direct=0,
            )
        moved = 2 * (queries + keys + out)
        return Cost(moved=moved, flops=2 * pairs * 5 * heads * DIM, held=moved, direct=0)

    def peak_bytes(self, case: Case, column: Column) -> int:
        """Peers on the factors have all scores of each rank; the others K, V and gradients."""
        held = self.cost(case).held
        if column.name == "attnops":
            return 2 * held + (64 << 20)
        width = BYTES["f32"] if column.name.endswith("_up") else BYTES[case.dtype]
        rows = case.options["batch"] * case.options["heads"] * case.n
        passes = 1 if case.direction == "fwd" else 3
        whole = 4 * passes * rows * DIM * width
        if column.name.startswith("ts"):
            return 3 * held + whole
        return 3 * held + whole + 8 * passes * rows * case.n * width

    def inputs(self, case: Case) -> Inputs:
        from attnops_bench.operators import _tpa_torch as impl

        return impl.inputs(case, case.n)

    def function(self, case: Case, column: Column, inputs: Inputs) -> Callable[..., torch.Tensor]:
        from attnops_bench.operators import _tpa_torch as impl

        return impl.function(column)

    def checker(self, case: Case, inputs: Inputs) -> Checker:
        from attnops_bench.operators import _tpa_torch as impl

        return impl.checker(case, inputs, causal=True)


OPERATOR = Tpa()
