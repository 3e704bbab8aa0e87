"""A small causal language model on text that it makes itself, then text from its state.

It is trained on sums such as "23+45=68;", with the whole sequence at once. Then it goes on token by
token with a state of fixed size: the same numbers as from the whole text.
"""

import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import attnops

torch.manual_seed(0)
SYMBOLS = "0123456789+=;"
WIDTH, HEADS, LENGTH, BATCH, STEPS = 64, 4, 64, 8, 40


def make_text(lines: int) -> Tensor:
    """Random sums as numbers of their symbols."""
    pairs = torch.randint(10, 50, (lines, 2)).tolist()
    text = "".join(f"{a}+{b}={a + b};" for a, b in pairs)
    return torch.tensor([SYMBOLS.index(c) for c in text])


def chunked(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, chunk: int = 32) -> Tensor:
    """The same attention in PyTorch operations, (B,N,H,D)."""
    q, k, v, logs = (
        x.unflatten(1, (-1, chunk)).movedim(3, 1) for x in (q, k, v, log_decay[..., None])
    )
    sums = logs.cumsum(3)
    mask = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    weights = (sums - sums.transpose(-1, -2)).masked_fill(~mask, -torch.inf).exp()
    added = (k * (sums[..., -1:, :] - sums).exp()).transpose(-1, -2) @ v
    state, states = torch.zeros_like(added[:, :, 0]), []
    for i in range(q.shape[2]):
        states.append(state)
        state = state * sums[:, :, i, -1:].exp() + added[:, :, i]
    out = (q @ k.transpose(-1, -2) * weights) @ v + (q * sums.exp()) @ torch.stack(states, 2)
    return (out * q.shape[-1] ** -0.5).movedim(1, 3).flatten(1, 2)


class Layer(nn.Module):
    """Linear attention with a decay from the token, and a gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH + HEADS)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.SiLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor, state: Tensor | None, fused: bool) -> tuple[Tensor, Tensor]:
        *qkv, gate = self.project(self.before(x)).split([WIDTH] * 3 + [HEADS], -1)
        q, k, v = (y.unflatten(-1, (HEADS, -1)) for y in qkv)
        k, log_decay = F.silu(k), F.logsigmoid(gate + 3)
        if fused:
            o, state = attnops.linear_attention(
                q, k, v, log_decay, initial_state=state, output_state=True
            )
        else:
            o = chunked(q, k, v, log_decay)
        x = x + self.out(o.flatten(2))
        return x + self.feed(x), state


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(SYMBOLS), WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, len(SYMBOLS))

    def forward(self, tokens: Tensor, states: list | None = None, fused: bool = True):
        x, new = self.embed(tokens), []
        for i, layer in enumerate(self.layers):
            x, state = layer(x, None if states is None else states[i], fused)
            new.append(state)
        return self.head(x), new


def train(model: Model, steps: int, fused: bool) -> tuple[float, float]:
    """The last loss, and the seconds of a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = make_text(4000)
    begin = time.perf_counter()
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH,)).tolist()
        batch = torch.stack([text[s : s + LENGTH + 1] for s in starts])
        logits, _ = model(batch[:, :-1], fused=fused)
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), (time.perf_counter() - begin) / steps


model, twin = Model(), Model()
twin.load_state_dict(model.state_dict())
torch.manual_seed(1)
first_loss, seconds = train(model, 5, fused=True)
torch.manual_seed(1)
twin_loss, twin_seconds = train(twin, 5, fused=False)
print(f"5 steps of {1e3 * seconds:.0f} ms, loss {first_loss:.3f}")
print(f"in PyTorch operations {1e3 * twin_seconds:.0f} ms, loss {twin_loss:.3f}")
torch.testing.assert_close(first_loss, twin_loss, rtol=1e-3, atol=0)
loss, _ = train(model, STEPS, fused=True)
print(f"loss {loss:.3f} after {STEPS} more")
assert loss < first_loss

with torch.no_grad():
    tokens = make_text(4)[None]
    logits, states = model(tokens)  # the prompt
    generated = [logits[:, -1].argmax(-1)]
    for _ in range(24):
        logits, states = model(generated[-1][:, None], states)  # one token, and the state
        generated.append(logits[:, -1].argmax(-1))
    whole = torch.cat([tokens, torch.stack(generated[:-1], 1)], 1)
    again, _ = model(whole)  # without the state
    torch.testing.assert_close(again[:, -1], logits[:, -1], rtol=1e-3, atol=1e-4)

print("prompt:   ", "".join(SYMBOLS[i] for i in tokens[0].tolist()))
print("continued:", "".join(SYMBOLS[i] for i in torch.cat(generated).tolist()))
print("the same logits with the state, token by token, and from the whole text")
