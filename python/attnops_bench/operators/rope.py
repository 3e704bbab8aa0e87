"""The tables of rope: q (B,N,32,128) and k (B,N,8,128), prefill and decode. Not published ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from attnops_bench.tables import BYTES, Case, Checker, Column, Cost, Inputs, Table

if TYPE_CHECKING:
    import torch

HEADS, KEY_HEADS, DIM = 32, 8, 128
PREFILL_BATCHES = (1, 8)
PREFILL_SIZES = (512, 1024, 2048)
STEP_BATCHES = (1, 32, 256)


def title(form: str, batch: int | None, dtype: str) -> str:
    of_batch = "" if batch is None else f"-batch{batch}"
    return f"rope-speed-fwd-{form}{of_batch}-head{HEADS}-keys{KEY_HEADS}-dim{DIM}-{dtype}"


def shape(case: Case) -> tuple[int, int]:
    """Batch and tokens: n of a prefill, one for each of n sequences of a step of decoding."""
    return (case.n, 1) if case.options["step"] else (case.options["batch"], case.n)


class Rope:
    """See `attnops_bench.tables.Operator`."""

    name = "rope"
    # to, toc: transformers' form, eager and compiled, with its cosines and sines made in the call;
    # attnops_inplace writes into q and k.
    columns = (
        Column("attnops", "attnops", kinds=("speed",)),
        Column("attnops_inplace", "extra", kinds=("speed",)),
        Column("to", "peer", kinds=("speed",)),
        Column("toc", "peer", kinds=("speed",), compiled=True),
    )

    def tables(self, batch: int, dtype: str) -> list[Table]:
        """For batches of their own, whatever the usual one is."""
        forms: list[tuple[str, int | None, tuple[int, ...]]] = [
            ("prefill", b, PREFILL_SIZES) for b in PREFILL_BATCHES
        ]
        forms += [("decode", None, STEP_BATCHES)]
        return [
            Table(
                id=title(form, b, dtype),
                title=title(form, b, dtype),
                operator=self.name,
                kind="speed",
                direction="fwd",
                dtype=dtype,
                options={"batch": b, "step": b is None},
                sizes=sizes,
                quick_sizes=sizes,
                size_name="batch" if b is None else "n",
            )
            for form, b, sizes in forms
        ]

    def cost(self, case: Case) -> Cost:
        batch, tokens = shape(case)
        elements = batch * tokens * (HEADS + KEY_HEADS) * DIM
        size = 2 * elements * BYTES[case.dtype]
        return Cost(moved=size, flops=3 * elements, held=size)

    def peak_bytes(self, case: Case, column: Column) -> int:
        """Inputs and outputs; the eager peer has a few more tensors of q's size."""
        held = self.cost(case).held
        return held if column.name.startswith("attnops") else 3 * held

    def inputs(self, case: Case) -> Inputs:
        from attnops_bench.operators import _rope_torch as impl

        return impl.inputs(case)

    def function(self, case: Case, column: Column, inputs: Inputs) -> Callable[..., torch.Tensor]:
        from attnops_bench.operators import _rope_torch as impl

        return impl.function(column)

    def checker(self, case: Case, inputs: Inputs) -> Checker:
        from attnops_bench.operators import _rope_torch as impl

        return impl.checker(case, inputs)


OPERATOR = Rope()
