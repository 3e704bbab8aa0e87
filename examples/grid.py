"""Linear attention over an image: a class token and patches, encoded by row and column."""

import torch

import attnops

batch, heads, rows, columns, features = 2, 4, 14, 14, 64
theta = (10000.0 ** (-torch.arange(features // 2) / (features // 2))).repeat(heads, 1)
tokens = 1 + rows * columns

q, k, v = (
    torch.randn(batch, heads, tokens, features, dtype=torch.bfloat16, requires_grad=True)
    for _ in range(3)
)

# The first half of the features tells the row, the second the column. The class token, l = 1, has
# no position. The table is built once and serves q, k, both passes and later calls.
table = attnops.lrpe_table(theta, (rows, columns), features)
encode = {"shape": (rows, columns), "l": 1, "act": "silu", "table": table}
q_encoded = attnops.md_lrpe_cosine(q, None, **encode)
k_encoded = attnops.md_lrpe_cosine(k, None, **encode)
out = q_encoded @ (k_encoded.transpose(-1, -2) @ v)
out.sum().backward()
print("output:", tuple(out.shape), "gradient of q:", tuple(q.grad.shape), q.grad.dtype)

# The same in one operator, with an output gate: the encoded q and k are never in memory.
g = torch.randn(batch, heads, tokens, features, dtype=torch.bfloat16)
acts = {"q_act": "silu", "k_act": "silu", "g_act": "sigmoid"}
fused = attnops.flao_fal(q, k, v, g, **acts, theta=theta, shape=(rows, columns), l=1)
difference = (fused - torch.sigmoid(g) * out).norm() / fused.norm()
print("fused and composed agree to the rounding of bfloat16:", difference.item() < 0.02)

# The score of two patches depends on how far apart they are, not on where they are.
patch = torch.randn(features).expand(batch, heads, tokens, features)
encoded = attnops.md_lrpe_cosine(patch, theta, (rows, columns), l=1)[0, 0, 1:].unflatten(
    0, (14, 14)
)
near, far = encoded[2, 3] @ encoded[4, 8], encoded[9, 6] @ encoded[11, 11]
print("relative positions:", torch.allclose(near, far, rtol=1e-4))
