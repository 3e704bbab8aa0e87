"""attnops.distributed on 2, 3 and 4 processes, against the operators on one."""

import multiprocessing
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import attnops
import attnops.distributed
import distributed_cases
import distributed_tensor_cases
from distributed_cases import CASES

_MODULES = [distributed_cases.__name__, distributed_tensor_cases.__name__]
_SECONDS = 240
# What more ranks would show nothing new of.
_ON_TWO_RANKS = ("compiled_whole", "ddp_and_fsdp2", "rules_of_operators", "same_bits_every_time")
_RUNS = [(2, name) for name in CASES]
_RUNS += [(ranks, name) for ranks in (3, 4) for name in CASES if name not in _ON_TWO_RANKS]


def _start(function: Callable, ranks: int, *args) -> list[multiprocessing.Process]:
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=function, args=(rank, ranks, *args), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    return processes


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder in which a process group of so many ranks left what its cases came to."""
    folders: dict[int, Path] = {}

    def run(ranks: int) -> Path:
        if ranks not in folders:
            folder = folders[ranks] = tmp_path_factory.mktemp(f"ranks{ranks}")
            names = [name for size, name in _RUNS if size == ranks]
            processes = _start(distributed_cases.run_cases, ranks, str(folder), names, _MODULES)
            end = time.monotonic() + _SECONDS
            for process in processes:
                process.join(max(0.0, end - time.monotonic()))
                if process.is_alive():
                    process.kill()
        return folders[ranks]

    return run


@pytest.mark.parametrize(("ranks", "name"), _RUNS)
def test_ranks(folder_of: Callable[[int], Path], ranks: int, name: str) -> None:
    folder = folder_of(ranks)
    failure = folder / f"{name}.failed"
    assert not failure.exists(), failure.read_text()
    for rank in range(ranks):
        assert (folder / f"{name}.{rank}.done").exists(), f"rank {rank} did not come to its end"


def _dying(rank: int, ranks: int, folder: str) -> None:
    """The last rank dies between two calls; the others must get an error."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=5),
    )
    x = [torch.randn(1, 2, 9, 8, requires_grad=True) for _ in range(4)]
    out = attnops.distributed.flao(*x)
    if rank == ranks - 1:
        time.sleep(60)  # until it is killed
    begin = time.monotonic()
    (Path(folder) / f"waiting{rank}").touch()
    for call in (
        lambda: torch.autograd.grad(out.sum(), x),
        lambda: attnops.distributed.flao(*x),
        lambda: attnops.distributed.linear_attention(*x[:3], sizes=[2] * ranks),
    ):
        result = None
        try:
            result = call()
        except RuntimeError as error:
            text = f"{time.monotonic() - begin}\n{error}"
        assert result is None
    (Path(folder) / f"error{rank}").write_text(text)


def test_rank_that_dies(tmp_path: Path) -> None:
    """The others have errors within the group's timeout, of both passes, and no result."""
    *others, victim = _start(_dying, 3, str(tmp_path))
    end = time.monotonic() + 60
    while not all((tmp_path / f"waiting{rank}").exists() for rank in range(2)):
        assert time.monotonic() < end
        time.sleep(0.05)
    victim.kill()
    for process in others:
        process.join(30)
        assert process.exitcode == 0
    for rank in range(2):
        seconds = float((tmp_path / f"error{rank}").read_text().split("\n")[0])
        assert seconds < 3 * 5 + 5
