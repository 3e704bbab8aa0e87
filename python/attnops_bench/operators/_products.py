"""What operators with matrix products share in a worker."""

from __future__ import annotations

import attnops
from attnops_bench.random_inputs import DTYPES
from attnops_bench.tables import Case, Column


def rounds_operands(case: Case, column: Column) -> bool:
    """Whether the operands of the column's products are rounded to the type of the tensors."""
    if column.role == "peer":
        return not column.name.endswith("_up")
    # Other columns of attnops, such as a forced split, multiply as its own one does.
    return attnops.effective_precision(DTYPES[case.dtype]) == "medium"
