"""The tables of flao: q, k, v, g (B,H,N,D) = (12,12,n,128), for each policy of what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnops_bench.tables import BYTES, Case, Checker, Column, Cost, Direction, Inputs, Kind, Table

if TYPE_CHECKING:
    import torch

HEADS, DIM = 12, 128
SIZES = tuple(2**i for i in range(8, 16))
QUICK_SIZES = (256, 512, 1024)
KEEPS = ("none", "kv", "kv_qkv")
PASSES: tuple[tuple[Direction, Kind], ...] = (
    ("fwd", "speed"),
    ("fwd", "memory"),
    ("bwd", "speed"),
    ("bwd", "memory"),
)


def title(kind: Kind, direction: Direction, batch: int, dtype: str) -> str:
    return f"flao-{kind}-{direction}-batch{batch}-head{HEADS}-dim{DIM}-dim{DIM}-{dtype}"


def shape(case: Case) -> tuple[int, int, int, int]:
    return (case.options["batch"], HEADS, case.n, DIM)


class Flao:
    """See `attnops_bench.tables.Operator`."""

    name = "flao"
    # lao: separate operations and autograd; flao: the backward written by hand, with the same
    # policy as attnops. to, toc: eager and compiled in the tensors' type; _up: computed in
    # float32, rounded at the end.
    columns = (
        Column("attnops", "attnops"),
        Column("lao_to", "peer", regardless=("keep",)),
        Column("lao_toc", "peer", compiled=True, regardless=("keep",)),
        Column("flao_to", "peer"),
        Column("flao_toc", "peer", compiled=True),
        Column("lao_to_up", "peer", regardless=("keep",)),
        Column("lao_toc_up", "peer", compiled=True, regardless=("keep",)),
        Column("flao_to_up", "peer"),
        Column("flao_toc_up", "peer", compiled=True),
    )

    def tables(self, batch: int, dtype: str) -> list[Table]:
        """Four titles for each policy, which the ids tell apart."""
        tables = []
        for keep in KEEPS:
            for direction, kind in PASSES:
                name = title(kind, direction, batch, dtype)
                tables.append(
                    Table(
                        id=f"{name}@{keep}",
                        title=name,
                        operator=self.name,
                        kind=kind,
                        direction=direction,
                        dtype=dtype,
                        options={"batch": batch, "keep": keep},
                        sizes=SIZES,
                        quick_sizes=QUICK_SIZES,
                        # Without a gradient nothing is kept.
                        regardless=("keep",) if direction == "fwd" else (),
                    )
                )
        return tables

    def _sizes(self, case: Case) -> tuple[int, int, int]:
        """Bytes of a tensor, of all kv, and of what the policy keeps."""
        heads = case.options["batch"] * HEADS
        tensor = heads * case.n * DIM * BYTES[case.dtype]
        kv = heads * DIM * DIM * BYTES["f32"]
        wide = 2 if case.dtype == "f16" else 1
        kept = {"none": 0, "kv": kv, "kv_qkv": kv + wide * tensor}[case.options["keep"]]
        return tensor, kv, kept

    def cost(self, case: Case) -> Cost:
        tensor, _, kept = self._sizes(case)
        product = 2 * case.options["batch"] * HEADS * case.n * DIM * DIM
        if case.direction == "fwd":
            # KV is a product of inputs.
            return Cost(moved=5 * tensor, flops=2 * product, held=5 * tensor, direct=product)
        anew = {"none": 2, "kv": 1, "kv_qkv": 0}[case.options["keep"]]
        return Cost(
            moved=9 * tensor + kept,
            flops=(4 + anew) * product,
            held=10 * tensor + kept,
            direct=product if case.options["keep"] == "none" else 0,
        )

    def peak_bytes(self, case: Case, column: Column) -> int:
        """The tensors of the pass, then intermediates, wider in float32."""
        tensor, kv, kept = self._sizes(case)
        held = self.cost(case).held
        if column.role == "attnops":
            return held + kept + (32 << 20)
        width = 4 // BYTES[case.dtype] if column.name.endswith("_up") else 1
        extra = 6 if case.direction == "fwd" else 14
        return held + 2 * kv + extra * width * tensor

    def inputs(self, case: Case) -> Inputs:
        from attnops_bench.operators import _flao_torch as impl

        return impl.inputs(case)

    def function(self, case: Case, column: Column, inputs: Inputs) -> Callable[..., torch.Tensor]:
        from attnops_bench.operators import _flao_torch as impl

        return impl.function(case, column)

    def checker(self, case: Case, inputs: Inputs) -> Checker:
        from attnops_bench.operators import _flao_torch as impl

        return impl.checker(case, inputs)


OPERATOR = Flao()
