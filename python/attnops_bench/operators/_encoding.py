"""What the tables of the position encodings have in common. Nothing here needs torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnops_bench.tables import Case, Checker, Column, Direction, Inputs, Kind

if TYPE_CHECKING:
    import torch

HEADS, DIM = 12, 128
PASSES: tuple[tuple[Direction, Kind], ...] = (
    ("fwd", "speed"),
    ("fwd", "memory"),
    ("bwd", "speed"),
    ("bwd", "memory"),
)
# to, toc: PyTorch eager and compiled in the tensors' type; _up: computed in float32, rounded
# at the end; toc_free: compiled, its float32 cos and sin built outside the timing.
PEERS = (
    Column("to", "peer"),
    Column("toc", "peer", compiled=True),
    Column("to_up", "peer"),
    Column("toc_up", "peer", compiled=True),
    Column("toc_free", "extra", kinds=("speed",), compiled=True),
)


class Encoding:
    """The methods of `attnops_bench.tables.Operator` that need torch."""

    name: str

    def _implementation(self) -> Any:
        return importlib.import_module(f"attnops_bench.operators._{self.name}_torch")

    def inputs(self, case: Case) -> Inputs:
        return self._implementation().inputs(case)

    def function(self, case: Case, column: Column, inputs: Inputs) -> Callable[..., torch.Tensor]:
        return self._implementation().function(case, column, inputs)

    def checker(self, case: Case, inputs: Inputs) -> Checker:
        return self._implementation().checker(case, inputs)
