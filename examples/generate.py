"""A model of tensor product attention generates behind 32768 cached tokens.

Beside it the same layers with keys and values of all heads in memory: tokens a second, and memory.
"""

import time

import torch
from torch import nn

from attnops.nn import TensorProductAttention

vocabulary, dim, heads, layers, cached, steps = 512, 256, 34, 2, 32768, 4
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)


class Model(nn.Module):
    """Embedding, attention with residuals, and a head; a real model has more between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.attention = nn.ModuleList(TensorProductAttention(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, token, attend):
        x = self.embedding(token)
        for i in range(layers):
            x = x + attend(i, x)
        return self.head(x)[:, -1].argmax(-1, keepdim=True)


def generate(model, attend) -> tuple[list[int], float]:
    """The tokens, and how many there are a second."""
    token, tokens = torch.zeros(1, 1, dtype=torch.int64), []
    start = time.perf_counter()
    for _ in range(steps):
        token = model(token, attend)
        tokens.append(token.item())
    return tokens, steps / (time.perf_counter() - start)


model = Model().eval()
caches, keys, values = [], [], []
with torch.no_grad():
    for layer in model.attention:
        cache = layer.make_cache(1, cached + steps)
        cache.join()
        # Stands for a long prompt.
        shapes = ((heads, 2), (heads, 2), (2, 64), (2, 64))
        cache.append(*(torch.randn(1, cached, *shape) for shape in shapes))
        ak, av, bk, bv = cache.gather(0, torch.bfloat16)
        keys.append((ak @ bk).transpose(1, 2) / 2)
        values.append((av @ bv).transpose(1, 2) / 2)
        caches.append(cache)

    def materialised(i: int, x: torch.Tensor) -> torch.Tensor:
        """The layer with K and V of all heads, without the new token."""
        layer = model.attention[i]
        aq = layer.c_qkv.W_A_q(x).unflatten(-1, (heads, 6))
        bq = layer.c_qkv.W_B_q(x).unflatten(-1, (6, 64))
        q = (aq @ bq).transpose(1, 2) / 6
        out = nn.functional.scaled_dot_product_attention(q, keys[i], values[i])
        return layer.c_proj(out.transpose(1, 2).flatten(2))

    _, slow = generate(model, materialised)
    tokens, fast = generate(model, lambda i, x: model.attention[i](x, cache=caches[i]))

size = sum(x.nbytes for x in (*keys, *values)) >> 20
print("tokens:", tokens)
print(f"factors:      {fast:6.1f} tokens a second, {sum(c.nbytes for c in caches) >> 20} MB")
print(f"keys, values: {slow:6.1f} tokens a second, {size} MB")
