"""How flao scales with processes of one thread: the measured table of docs/distributed.md.

    python scripts/scaling.py [--tokens 131072] [--ranks 2] [--rounds 5]

Each round times, in turns, one process with the whole sequence, all ranks with a shard each, and
as many processes with such a shard each that exchange nothing: what busy cores lose to each other.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

import attnops
import attnops.distributed as spread

HEADS, FEATURES = 12, 128
WAYS = ("one process", "shards", "shards without exchange")


def flao_of(way: str) -> Callable:
    """flao with KV kept for the backward, as it is where KV is exchanged."""
    if way == "shards":
        return spread.flao
    return lambda q, k, v, g: attnops.flao(q, k, v, g, keep="kv")


def make_tensors(tokens: int) -> list[torch.Tensor]:
    """q, k, v, g and d_out."""
    shape = (1, HEADS, tokens, FEATURES)
    tensors = [torch.randn(shape, dtype=torch.bfloat16) for _ in range(5)]
    return [x.requires_grad_() for x in tensors[:4]] + tensors[4:]


def run(rank: int, ranks: int, tokens: int, store: str, pipe: Connection) -> None:
    """Times the ways that the parent asks for: forward and backward in seconds."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}/store", rank=rank, world_size=ranks)
    spread.set_checks(False)
    shard = make_tensors(tokens * (rank + 1) // ranks - tokens * rank // ranks)
    whole = make_tensors(tokens if rank == 0 else 0)
    while (way := pipe.recv()) is not None:
        *inputs, d_out = whole if way == "one process" else shard
        pipe.send(None)
        pipe.recv()  # all ranks begin together
        begin = time.perf_counter()
        out = flao_of(way)(*inputs)
        middle = time.perf_counter()
        torch.autograd.grad(out, inputs, d_out)
        pipe.send((middle - begin, time.perf_counter() - middle))
        del out
    dist.destroy_process_group()


def timed(way: str, pipes: list[Connection]) -> tuple[float, float]:
    """The seconds of the slowest rank, forward and backward, of a second call.

    The first one pays for memory that the calls of another size gave back.
    """
    pipes = pipes[:1] if way == "one process" else pipes
    for message in (way, "go") * 2:
        for pipe in pipes:
            pipe.send(message)
        answers = [pipe.recv() for pipe in pipes]
    return max(x[0] for x in answers), max(x[1] for x in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    context = get_context("spawn")
    pipes = []
    with tempfile.TemporaryDirectory() as store:
        for rank in range(options.ranks):
            here, there = context.Pipe()
            pipes.append(here)
            arguments = (rank, options.ranks, options.tokens, store, there)
            context.Process(target=run, args=arguments, daemon=True).start()
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way in WAYS:
                times[way].append(timed(way, pipes))
        for pipe in pipes:
            pipe.send(None)
    print(f"flao, bfloat16, B·H = {HEADS}, n = {options.tokens}, D = E = {FEATURES}")
    print("| | forward, s | backward, s | both, s | speedup |")
    print("| --- | --- | --- | --- | --- |")
    whole = 0.0
    for way, rounds in times.items():
        forward, backward = (statistics.median(x) for x in zip(*rounds, strict=True))
        both = statistics.median(sum(x) for x in rounds)
        whole = whole or both
        name = way if way == "one process" else f"{options.ranks} {way}"
        print(f"| {name} | {forward:.2f} | {backward:.2f} | {both:.2f} | {whole / both:.2f} × |")


if __name__ == "__main__":
    main()
