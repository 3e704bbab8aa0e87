"""What all Python tests share: fixed random numbers, and settings put back afterwards."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """The same random numbers in every run and order."""
    torch.manual_seed(2024)


@pytest.fixture
def threads_restored() -> Iterator[None]:
    """For tests that change torch's thread count."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
