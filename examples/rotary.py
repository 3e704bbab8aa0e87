"""Rotary attention inputs: encode queries and keys, continue at an offset, train through it."""

import torch

import attnops

batch, tokens, heads, features = 2, 128, 8, 64
theta = (10000.0 ** (-torch.arange(features // 2) / (features // 2))).repeat(heads, 1)

q = torch.randn(batch, tokens, heads, features, dtype=torch.bfloat16, requires_grad=True)
k = torch.randn(batch, tokens, heads, features, dtype=torch.bfloat16, requires_grad=True)

q_rotated = attnops.lrpe_rotate(q, theta, act="silu")
k_rotated = attnops.lrpe_rotate(k, theta, act="silu")
scores = torch.einsum("bnhd,bmhd->bhnm", q_rotated.float(), k_rotated.float())
scores.sum().backward()
print("gradient of q:", tuple(q.grad.shape), q.grad.dtype)

# The next token of a sequence of a million: as exact as the first one.
step = torch.randn(batch, 1, heads, features, dtype=torch.bfloat16)
far = attnops.lrpe_rotate(step, theta, offset=1_000_000)
length = lambda t: t.float().square().sum(-1).sqrt()  # noqa: E731
print("a rotation keeps lengths:", torch.allclose(length(far), length(step), rtol=1e-2))
