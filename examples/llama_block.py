"""A Llama-style attention block on rope: padded batches, then decoding, eager and compiled."""

import torch
from torch.nn import functional

import attnops

batch, tokens, heads, key_heads, features = 2, 12, 8, 2, 64
hidden = heads * features
theta = 10000.0 ** (-torch.arange(features // 2) / (features // 2))  # float32, as it must stay
shapes = {"q": hidden, "k": key_heads * features, "v": key_heads * features, "o": hidden}
weights = {name: torch.randn(size, hidden) * hidden**-0.5 for name, size in shapes.items()}


def block(x, positions, mask, past_keys, past_values):
    """Attention of the new tokens x (B,N,hidden) to the cache and to themselves."""

    def project(name: str) -> torch.Tensor:
        return functional.linear(x, weights[name]).unflatten(-1, (-1, features))

    # Queries and keys in one call; a position for each token of each sequence.
    q, k = attnops.rope(project("q"), project("k"), theta, positions=positions)
    keys = torch.cat([past_keys, k], 1)
    values = torch.cat([past_values, project("v")], 1)
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), mask, enable_gqa=True
    )
    return functional.linear(out.transpose(1, 2).flatten(2), weights["o"]), keys, values


def run(attention) -> torch.Tensor:
    """Prefill of sequences of 12 and 7 tokens, padded on the left, then two steps of decoding."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([12, 7])
    padding = tokens - lengths
    x = torch.randn(batch, tokens, hidden, generator=generator)
    positions = torch.arange(tokens) - padding[:, None]  # negative ones are padding
    real = positions >= 0
    causal = torch.ones(tokens, tokens).tril().bool()
    # A padding token may look at itself, so that no row of the softmax is empty.
    mask = (causal & real[:, None, :] | torch.eye(tokens).bool())[:, None]
    nothing = torch.empty(batch, 0, key_heads, features)
    out, keys, values = attention(x, positions, mask, nothing, nothing)
    for step in range(2):
        x = torch.randn(batch, 1, hidden, generator=generator)
        real = torch.cat([real, torch.ones(batch, 1).bool()], 1)
        # One token for each sequence, each at its own position.
        positions = (lengths + step)[:, None]
        out, keys, values = attention(x, positions, real[:, None, None], keys, values)
    return out


with torch.no_grad():
    eager = run(block)
    compiled = run(torch.compile(block, dynamic=True))
print("output of the last step:", tuple(eager.shape))
print("compiled gives the same:", torch.allclose(eager, compiled, atol=1e-4))
