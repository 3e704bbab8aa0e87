"""The tables of flao_fal: q, k, v, g (B,H,N,D) = (12,12,n,128), cosine with theta (12,128)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnops_bench.operators.flao import DIM, HEADS, PASSES, QUICK_SIZES, SIZES
from attnops_bench.tables import BYTES, Case, Checker, Column, Cost, Inputs, Table

if TYPE_CHECKING:
    import torch

# The activations of each group of tables, and what its titles say of them.
GROUPS: dict[str, dict[str, Any]] = {
    "": {"q_act": "silu", "q_dim": None, "k_act": "silu", "g_act": "silu"},
    "-qact_softmax_-1-kact_silu_None-vact_none_None-gact_silu_None": {
        "q_act": "softmax",
        "q_dim": -1,
        "k_act": "silu",
        "g_act": "silu",
    },
}


class FlaoFal:
    """See `attnops_bench.tables.Operator`."""

    name = "flao_fal"
    # composed: md_lrpe_cosine with its activation on q and k, silu of g, then flao. to, toc:
    # PyTorch eager and compiled in the tensors' type; _up: computed in float32, rounded at the
    # end.
    columns = (
        Column("attnops", "attnops"),
        Column("composed", "extra"),
        Column("to", "peer"),
        Column("toc", "peer", compiled=True),
        Column("to_up", "peer"),
        Column("toc_up", "peer", compiled=True),
    )

    def tables(self, batch: int, dtype: str) -> list[Table]:
        tables = []
        for group, acts in GROUPS.items():
            for direction, kind in PASSES:
                name = (
                    f"{self.name}-{kind}-{direction}-batch{batch}-head{HEADS}-dim{DIM}-dim{DIM}"
                    f"{group}-{dtype}"
                )
                tables.append(
                    Table(
                        id=name,
                        title=name,
                        operator=self.name,
                        kind=kind,
                        direction=direction,
                        dtype=dtype,
                        options={"batch": batch, **acts},
                        sizes=SIZES,
                        quick_sizes=QUICK_SIZES,
                    )
                )
        return tables

    def _tensor(self, case: Case) -> int:
        """Bytes of q, or of any of the others."""
        return case.options["batch"] * HEADS * case.n * DIM * BYTES[case.dtype]

    def _kv(self, case: Case) -> int:
        return case.options["batch"] * HEADS * 2 * DIM * DIM * BYTES["f32"]

    def cost(self, case: Case) -> Cost:
        """The products have 2D features inside; with KV and QKV kept the backward has four."""
        tensor = self._tensor(case)
        product = 2 * case.options["batch"] * HEADS * case.n * 2 * DIM * DIM
        if case.direction == "fwd":
            return Cost(moved=5 * tensor, flops=2 * product, held=5 * tensor, direct=0)
        held = 11 * tensor + self._kv(case)
        return Cost(moved=10 * tensor, flops=4 * product, held=held, direct=0)

    def peak_bytes(self, case: Case, column: Column) -> int:
        """The tensors of the pass, then intermediates, of which the encoded ones count twice."""
        tensor = self._tensor(case)
        held = self.cost(case).held
        if column.role == "attnops":
            return held + (32 << 20)
        kv = self._kv(case)
        cos_sin = 3 * HEADS * case.n * 2 * DIM * BYTES["f32"]
        if column.name == "composed":
            return held + (6 if case.direction == "fwd" else 12) * tensor + kv
        width = 4 // BYTES[case.dtype] if column.name.endswith("_up") else 1
        extra = 12 if case.direction == "fwd" else 22
        return held + 2 * kv + cos_sin + extra * width * tensor

    def inputs(self, case: Case) -> Inputs:
        from attnops_bench.operators import _flao_fal_torch as impl

        return impl.inputs(case)

    def function(self, case: Case, column: Column, inputs: Inputs) -> Callable[..., torch.Tensor]:
        from attnops_bench.operators import _flao_fal_torch as impl

        return impl.function(case, column)

    def checker(self, case: Case, inputs: Inputs) -> Checker:
        from attnops_bench.operators import _flao_fal_torch as impl

        return impl.checker(case, inputs)


OPERATOR = FlaoFal()
