"""The tables of lrpe_rotate: x (B,N,H,D) = (12,n,12,128), theta (12,64)."""

from __future__ import annotations

from math import prod

from attnops_bench.operators._encoding import DIM, HEADS, PASSES, PEERS, Encoding
from attnops_bench.tables import BYTES, Case, Column, Cost, Direction, Kind, Table

SIZES = tuple(2**i for i in range(8, 16))
QUICK_SIZES = (512, 1024, 2048)
# (activation, axis) in the order of the published tables; the axis is None but for softmax.
ACTIVATIONS: tuple[tuple[str, int | None], ...] = (
    ("none", None),
    ("silu", None),
    ("softmax", -1),
    ("softmax", 1),
)


def title(kind: Kind, direction: Direction, batch: int, act: str, dim: int | None, dt: str) -> str:
    axis = "" if dim is None else f"-dim_{dim}"
    sizes = f"batch{batch}-head{HEADS}-dim{DIM}"
    return f"lrpe_rotate-{kind}-{direction}-{sizes}-act_{act}{axis}-{dt}"


def shape(case: Case) -> tuple[int, int, int, int]:
    return (case.options["batch"], case.n, HEADS, DIM)


class LrpeRotate(Encoding):
    """See `attnops_bench.tables.Operator`."""

    name = "lrpe_rotate"
    columns = (Column("attnops", "attnops"), *PEERS)

    def tables(self, batch: int, dtype: str) -> list[Table]:
        tables = []
        for act, dim in ACTIVATIONS:
            for direction, kind in PASSES:
                name = title(kind, direction, batch, act, dim, dtype)
                options = {"batch": batch, "act": act, "dim": dim}
                tables.append(
                    Table(
                        id=name,
                        title=name,
                        operator=self.name,
                        kind=kind,
                        direction=direction,
                        dtype=dtype,
                        options=options,
                        sizes=SIZES,
                        quick_sizes=QUICK_SIZES,
                    )
                )
        return tables

    def cost(self, case: Case) -> Cost:
        elements = prod(shape(case))
        size = elements * BYTES[case.dtype]
        reads_x = case.direction == "fwd" or case.options["act"] != "none"
        tensors = 2 if case.direction == "fwd" else 2 + reads_x
        # A pair takes four products and two sums, the activation not counted.
        held = 2 if case.direction == "fwd" else 4
        return Cost(moved=tensors * size, flops=3 * elements, held=held * size)

    def peak_bytes(self, case: Case, column: Column) -> int:
        """In units of x: the tensors of the pass, then intermediates, wider in float32.

        The factors are those of the memory tables, rounded up.
        """
        size = prod(shape(case)) * BYTES[case.dtype]
        float32 = 4 // BYTES[case.dtype]
        forward = case.direction == "fwd"
        if column.role == "attnops":
            extra = 0.1
        elif column.compiled:
            extra = 0.5 if case.options["act"] == "none" else 1.25 * float32
        else:
            width = float32 if column.name.endswith("_up") else 1
            extra = (2.0 if forward else 4.5) * width
        return int(((2 if forward else 4) + extra) * size)


OPERATOR = LrpeRotate()
