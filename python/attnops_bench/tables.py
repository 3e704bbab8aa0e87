"""Tables, cases and the registry of operators. Nothing here needs torch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import torch

Kind = Literal["speed", "memory"]
Direction = Literal["fwd", "bwd"]
Role = Literal["attnops", "peer", "extra"]

SEED = 2024
BYTES = {"f32": 4, "f16": 2, "bf16": 2}
DTYPES = tuple(BYTES)
PRECISIONS = ("auto", "highest", "high", "medium")
DEFAULT_BATCH = 12


@dataclass(frozen=True)
class Column:
    """One implementation. Only the role `peer` can be the best peer; `extra` is shown beside it.

    `regardless` are the table's options that make no difference to it.
    """

    name: str
    role: Role
    kinds: tuple[Kind, ...] = ("speed", "memory")
    compiled: bool = False
    regardless: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A published table or its twin in another type or batch; the id is unique, the title shown."""

    id: str
    title: str
    operator: str
    kind: Kind
    direction: Direction
    dtype: str
    options: dict[str, Any] = field(hash=False)
    sizes: tuple[int, ...]
    quick_sizes: tuple[int, ...]
    size_name: str = "n"
    # Options that make no difference to any column.
    regardless: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One row of a table, as sent to a worker."""

    operator: str
    direction: Direction
    n: int
    dtype: str
    options: dict[str, Any] = field(hash=False)
    threads: int

    @classmethod
    def of(cls, table: Table, n: int, threads: int) -> Case:
        return cls(table.operator, table.direction, n, table.dtype, table.options, threads)


@dataclass(frozen=True)
class Cost:
    """What the row must do at the least: `moved` bytes to and from memory and `flops`.

    `held` is the size of all the inputs and outputs of the pass, the least memory it can take.
    `direct` are the flops of products both of whose operands are inputs as they are; None if the
    operator multiplies no matrices.
    """

    moved: int
    flops: int
    held: int
    direct: int | None = None

    def flop_seconds(self, precision: str, fma: float, bf16: float) -> float:
        """The least time of the flops, in a precision that the CPU runs, at its peaks. A product
        with an operand in two parts is two bfloat16 products, or one in float32."""
        if self.direct is None or precision == "highest" or not bf16:
            return self.flops / fma
        if precision == "medium":
            return self.flops / bf16
        return self.direct / bf16 + (self.flops - self.direct) / max(fma, bf16 / 2)


@dataclass
class Inputs:
    """The tensors of a case: `args` of the operator, those to differentiate, and the gradient."""

    args: tuple[torch.Tensor, ...]
    differentiable: tuple[torch.Tensor, ...]
    d_out: torch.Tensor | None


Checker = Callable[[Column, Any], str | None]


class Operator(Protocol):
    """What an operator's module offers; all but the last three methods work without torch."""

    name: str
    columns: tuple[Column, ...]

    def tables(self, batch: int, dtype: str) -> list[Table]:
        """All tables of the operator in published order, for this batch and type."""
        ...

    def cost(self, case: Case) -> Cost: ...

    def peak_bytes(self, case: Case, column: Column) -> int:
        """An upper estimate of what the column needs, inputs included, for the memory budget."""
        ...

    def inputs(self, case: Case) -> Inputs:
        """New inputs, the same at every call; allocates nothing but them."""
        ...

    def function(self, case: Case, column: Column, inputs: Inputs) -> Callable[..., torch.Tensor]:
        """The forward of the column, called as `function(*inputs.args)`."""
        ...

    def checker(self, case: Case, inputs: Inputs) -> Checker:
        """Compares a result (output or gradients) with the double-precision reference.

        The checker returns None or what is wrong; it does not modify the result.
        """
        ...


def operators() -> dict[str, Operator]:
    """Every operator that has a module, by name."""
    package = importlib.import_module("attnops_bench.operators")
    names = (m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))
    return {name: importlib.import_module(f"{package.__name__}.{name}").OPERATOR for name in names}


def _in_precision(table: Table, precision: str) -> Table | None:
    """The table's twin in a precision; None if that changes nothing."""
    if precision == "auto":
        return table
    cost = operators()[table.operator].cost(Case.of(table, table.sizes[0], 1))
    if table.dtype != "bf16" or cost.direct is None:
        return None
    options = {**table.options, "precision": precision}
    return replace(table, id=f"{table.id}@{precision}", options=options)


def all_tables(
    batch: int = DEFAULT_BATCH,
    dtypes: tuple[str, ...] = ("bf16",),
    precisions: tuple[str, ...] = ("auto",),
) -> list[Table]:
    tables = [t for d in dtypes for op in operators().values() for t in op.tables(batch, d)]
    twins = [_in_precision(t, p) for p in precisions for t in tables]
    return [t for t in twins if t is not None]
