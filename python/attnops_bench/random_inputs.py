"""Random tensors in a time that memory bounds and not the generator."""

from __future__ import annotations

import torch

# torch's types by the names of the bench.
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# A prime, so that no two batches or heads are the same however long they are.
PERIOD = 4_194_301


def normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normal random numbers, drawn in the type itself: no wider copy is ever made.

    They repeat after PERIOD elements. Drawing all of them takes 6 ns an element and would be most
    of the time of a large case.
    """
    result = torch.empty(shape, dtype=dtype)
    flat = result.view(-1)
    first = flat[:PERIOD].normal_(generator=generator)
    for part in flat[PERIOD:].split(PERIOD):
        part.copy_(first[: part.numel()])
    return result
