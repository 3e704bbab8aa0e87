"""tpa_decode with the ranks of the published models: D = E = 64, a cache of n tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnops_bench.operators._tpa_shapes import (
    DIM,
    HEADS,
    PEERS,
    RANKS,
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
    Inputs,
    Kind,
    Table,
)

if TYPE_CHECKING:
    import torch

BATCHES = (1, 8, 32)
SIZES = tuple(2**i for i in range(12, 18))
QUICK_SIZES = (4096, 8192, 16384)


def title(kind: Kind, batch: int, heads: int, dtype: str) -> str:
    return f"tpa_decode-{kind}-fwd-batch{batch}-rank6_2_2-head{heads}-dim{DIM}-{dtype}"


class TpaDecodeRanks:
    """See `attnops_bench.tables.Operator`."""

    name = "tpa_decode_ranks"
    # attnops_int8: from a TPACache of int8.
    columns = (Column("attnops", "attnops"), Column("attnops_int8", "extra"), *PEERS)

    def tables(self, batch: int, dtype: str) -> list[Table]:
        """Memory for the smallest model only."""
        batches = BATCHES if batch == DEFAULT_BATCH else (batch,)
        kinds = [("speed", heads) for heads in HEADS] + [("memory", HEADS[0])]
        return [
            Table(
                id=title(kind, b, heads, dtype),
                title=title(kind, b, heads, dtype),
                operator=self.name,
                kind=kind,
                direction="fwd",
                dtype=dtype,
                options={"batch": b, "heads": heads},
                sizes=SIZES,
                quick_sizes=QUICK_SIZES,
                size_name="m",
            )
            for kind, heads in kinds
            for b in batches
        ]

    def cost(self, case: Case) -> Cost:
        batch, heads = case.options["batch"], case.options["heads"]
        queries, keys = factor_bytes(case, 1)
        products = score_products(heads) + heads * RANKS[2] * DIM
        return Cost(
            moved=queries + keys,
            flops=2 * batch * case.n * products,
            held=queries + keys + batch * heads * DIM * BYTES[case.dtype],
            direct=0,
        )

    def peak_bytes(self, case: Case, column: Column) -> int:
        """The inputs, then scores and weights for each rank, or K and V; wider in float32."""
        held = self.cost(case).held
        if column.name.startswith("attnops"):
            return 2 * held + (8 << 20)
        width = BYTES["f32"] if column.name.endswith("_up") else BYTES[case.dtype]
        scores = case.options["batch"] * case.options["heads"] * case.n * BYTES["f32"]
        extra = 8 * scores + (2 * held if column.name.endswith("_up") else 0)
        if column.name.startswith("ts"):
            extra += 3 * case.options["batch"] * case.options["heads"] * case.n * DIM * width
        return held + extra

    def inputs(self, case: Case) -> Inputs:
        from attnops_bench.operators import _tpa_torch as impl

        return impl.inputs(case, 1)

    def function(self, case: Case, column: Column, inputs: Inputs) -> Callable[..., torch.Tensor]:
        from attnops_bench.operators import _tpa_torch as impl

        return impl.decode_function(column, inputs)

    def checker(self, case: Case, inputs: Inputs) -> Checker:
        from attnops_bench.operators import _tpa_torch as impl

        return impl.checker(case, inputs, causal=False)


OPERATOR = TpaDecodeRanks()
