"""A decode loop of tensor product attention, with a cache that is written in place."""

import torch

import attnops

batch, heads, rank, features, capacity = 2, 8, 4, 64, 256
kind = {"dtype": torch.bfloat16}

# Room for all tokens; K and V of (capacity, heads, features) never exist.
ak, av = (torch.empty(batch, capacity, heads, **kind) for _ in range(2))
bk, bv = (torch.empty(batch, capacity, features, **kind) for _ in range(2))

for position in range(capacity):
    # Stands for a model's projections of the new token.
    for cache in (ak, av, bk, bv):
        cache[:, position] = torch.randn(batch, cache.shape[-1])
    aq = torch.randn(batch, 1, heads, rank, **kind)
    bq = torch.randn(batch, 1, rank, features, **kind)

    # The front of each cache is a view: nothing is copied.
    tokens = slice(position + 1)
    out = attnops.tpa_decode(aq, ak[:, tokens], av[:, tokens], bq, bk[:, tokens], bv[:, tokens])

print("output of the last step:", tuple(out.shape), out.dtype)
cached = sum(x.numel() * x.element_size() for x in (ak, av, bk, bv))
full = 2 * batch * capacity * heads * features * 2
print(f"the cache has {cached >> 10} KB; keys and values of all heads would have {full >> 10} KB")
