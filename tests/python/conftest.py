"""What all Python tests share: fixed random numbers, and settings put back afterwards."""

import os
from collections.abc import Iterator

import pytest
import torch

# Float32 products on every CPU, in the programs that tests start too: bounds are those of one
# rounding. The errors of bfloat16 products are tested in test_precision.py and in C++.
os.environ["ATTNOPS_PRECISION"] = "highest"

import attnops


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """The same random numbers in every run and order."""
    torch.manual_seed(2024)


@pytest.fixture(autouse=True)
def float32_products() -> None:
    """The default of the process, which a test before or the bench's worker may have changed."""
    attnops.set_precision(os.environ["ATTNOPS_PRECISION"])


@pytest.fixture
def threads_restored() -> Iterator[None]:
    """For tests that change torch's thread count."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
