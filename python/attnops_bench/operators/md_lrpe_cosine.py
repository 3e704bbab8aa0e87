"""The tables of md_lrpe_cosine: x (B,H,L,D) = (12,12,l+n^k,128), theta (12,⌈128/k⌉)."""

from __future__ import annotations

from math import prod

from attnops_bench.operators._encoding import DIM, HEADS, PASSES, PEERS, Encoding
from attnops_bench.tables import BYTES, Case, Column, Cost, Table

# By the number of axes: n is the side of the grid.
SIZES = {
    1: tuple(2**i for i in range(8, 16)),
    2: (16, 32, 64, 128),
    3: (4, 8, 16, 32),
}
QUICK_SIZES = {1: (512, 1024, 2048), 2: (16, 32, 64), 3: (4, 8, 16)}
TOKENS_IN_FRONT = (0, 10)


def grid(case: Case) -> tuple[int, ...]:
    return (case.n,) * case.options["axes"]


def angles(case: Case) -> int:
    """The angles of a head, shared by the axes: ⌈D/k⌉."""
    return -(-DIM // case.options["axes"])


def shape(case: Case, features: int = DIM) -> tuple[int, int, int, int]:
    return (case.options["batch"], HEADS, case.options["l"] + prod(grid(case)), features)


class MdLrpeCosine(Encoding):
    """See `attnops_bench.tables.Operator`."""

    name = "md_lrpe_cosine"
    # attnops_table: the angles from a table that is built outside the timing.
    columns = (Column("attnops", "attnops"), Column("attnops_table", "attnops"), *PEERS)

    def tables(self, batch: int, dtype: str) -> list[Table]:
        tables = []
        for axes, sizes in SIZES.items():
            for l in TOKENS_IN_FRONT:
                for direction, kind in PASSES:
                    name = (
                        f"{self.name}-{kind}-{direction}-batch{batch}-head{HEADS}-dim{DIM}-"
                        f"{dtype}-{axes}d-l{l}"
                    )
                    tables.append(
                        Table(
                            id=name,
                            title=name,
                            operator=self.name,
                            kind=kind,
                            direction=direction,
                            dtype=dtype,
                            options={"batch": batch, "axes": axes, "l": l},
                            sizes=sizes,
                            quick_sizes=QUICK_SIZES[axes],
                        )
                    )
        return tables

    def cost(self, case: Case) -> Cost:
        elements = prod(shape(case))
        size = elements * BYTES[case.dtype]
        # The output is twice x. Forward: x and the output, two products for each x; backward: the
        # two gradients, two products and a sum. The backward's memory also holds x and the output.
        if case.direction == "fwd":
            return Cost(moved=3 * size, flops=2 * elements, held=3 * size)
        return Cost(moved=3 * size, flops=3 * elements, held=6 * size)

    def peak_bytes(self, case: Case, column: Column) -> int:
        """The tensors of the pass, cos and sin (float32 at most), then intermediates.

        The factors are those of the memory tables, rounded up.
        """
        size = prod(shape(case)) * BYTES[case.dtype]
        held = self.cost(case).held
        if column.name == "attnops":
            return held + size // 10
        if column.name == "attnops_table":
            return held + size // 10 + HEADS * sum(grid(case)) * angles(case) * 2 * 4
        cos_sin = prod(shape(case)[1:]) * 2 * 4
        if column.compiled:
            return held + cos_sin + size // 2
        # Upcast, two float32 copies of x or of half a gradient.
        upcast = column.name.endswith("_up") and case.dtype != "f32"
        return held + 3 * cos_sin + (4 * size if upcast else 0)


OPERATOR = MdLrpeCosine()
