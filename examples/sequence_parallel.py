"""A sequence of a million tokens over several processes or machines; also on one.

    torchrun --nproc-per-node 2 examples/sequence_parallel.py
    torchrun --nnodes 4 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 …

Every rank has its stretch of the tokens. What goes over the wire does not depend on their number:
the state of a head and its decay for linear_attention, KV of a head for flao.
"""

import os
import resource
import tempfile
import time

import torch
import torch.distributed as dist

import attnops
import attnops.distributed as spread

heads, features = 2, 32
theta = 10000.0 ** (-torch.arange(features // 2) / (features // 2))


def make_shard(first: int, tokens: int) -> list[torch.Tensor]:
    """q, k, v, gates and decays of a stretch; the same numbers whichever rank makes them."""
    shards = []
    for part in range(5):
        rows = []
        for block in range(first // 4096, -(-(first + tokens) // 4096)):
            generator = torch.Generator().manual_seed(block * 5 + part)
            rows.append(torch.randn(4096, heads, features, generator=generator))
        whole = torch.cat(rows) if rows else torch.empty(0, heads, features)
        skip = first % 4096
        shards.append(whole[skip : skip + tokens])
    *tensors, decay = shards
    tensors = [x.bfloat16()[None].requires_grad_() for x in tensors]
    return [*tensors, (-0.01 * decay[..., 0].abs())[None].requires_grad_()]


def layer(ops, q, k, v, g, decay, **where):
    """Causal attention, and attention to all tokens through a gate: (B,N,H,D)."""
    q, k = ops.rope(q, k, theta, **where)
    causal = ops.linear_attention(q, k, v, decay)
    to_all = ops.flao(*(x.transpose(1, 2) for x in (q, k, v, g)))
    return causal + to_all.transpose(1, 2)


def run(tokens: int, rank: int, ranks: int) -> list[torch.Tensor]:
    """Both passes on the rank's tokens; the output, and the gradients of its tensors."""
    sizes = [tokens * (i + 1) // ranks - tokens * i // ranks for i in range(ranks)]
    inputs = make_shard(sum(sizes[:rank]), sizes[rank])
    out = layer(spread, *inputs, sizes=sizes)
    return [out, *torch.autograd.grad(out, inputs, torch.ones_like(out))]


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        store = f"file://{tempfile.mkdtemp()}/store"
        dist.init_process_group("gloo", store, rank=0, world_size=1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))

    # A short sequence first, which one process can have whole.
    tokens = 3000
    results = run(tokens, rank, ranks)
    inputs = make_shard(0, tokens)
    whole = layer(attnops, *inputs)
    expected = [whole, *torch.autograd.grad(whole, inputs, torch.ones_like(whole))]
    first = tokens * rank // ranks
    for result, wanted in zip(results, expected, strict=True):
        wanted = wanted[:, first : first + result.shape[1]].float()
        error = (result.float() - wanted).abs().max() / wanted.abs().max()
        assert error < 0.01, f"rank {rank}: {error}"

    tokens = 1 << 20
    begin = time.perf_counter()
    out, *_ = run(tokens, rank, ranks)
    seconds = time.perf_counter() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for i in range(ranks):
        dist.barrier()
        if i == rank:
            print(
                f"rank {rank} of {ranks}: {out.shape[1]} of {tokens} tokens in {seconds:.1f} s, "
                f"peak memory {memory:.0f} MB",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
