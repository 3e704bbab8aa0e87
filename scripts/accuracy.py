#!/usr/bin/env python3
"""Errors of operators with matrix products, by precision, beside PyTorch's in the same type.

Each operator and pass is run in bfloat16 on random and on hard inputs, by attnops in every
precision and by PyTorch, and compared with float64 on the same inputs. An error is relative to the
root mean square of the exact result in its row, the features of a token and head. Prints a Markdown
table, JSON with --json, or with --write puts the table into docs/numerics.md. On a CPU without
bfloat16 instructions the products run in vector code of the same results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["ATTNOPS_EMULATE_BF16"] = "1"  # before the library looks for it

import torch

import attnops

PAGE = Path(__file__).resolve().parent.parent / "docs" / "numerics.md"
BEGIN, END = "<!-- accuracy: begin -->\n", "<!-- accuracy: end -->\n"
PRECISIONS = ("highest", "high", "medium")
TENSORS = dict[str, torch.Tensor]
HEADS, TOKENS, DIM, RANK = 4, 512, 64, 8
BATCHES = 32  # of tpa_decode, which has few results
RANKS_HEADS, QUERY_RANK, KEY_RANK = 34, 6, 2  # of a published model


def plain(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def attention_inputs(kind: str) -> TENSORS:
    """q, k, v, g and d_out (2, HEADS, TOKENS, DIM)."""
    generator = torch.Generator().manual_seed(2024)
    found = {
        name: plain(generator, 2, HEADS, TOKENS, DIM) for name in ("q", "k", "v", "g", "d_out")
    }
    if kind == "large":  # and tokens of different sizes
        for name, size in {"q": 8, "k": 8, "v": 1000}.items():
            found[name] *= size * torch.exp(plain(generator, 2, HEADS, TOKENS, 1))
    elif kind == "cancelling":  # neighbours in k and v cancel but for a tenth
        for name in ("k", "v"):
            found[name][:, :, 1::2] = found[name][:, :, ::2]
        found["v"][:, :, 1::2] *= -0.9
    elif kind == "dominant head":
        for name in ("q", "k", "v"):
            found[name][:, 0] *= 1000
    return {name: tensor.bfloat16() for name, tensor in found.items()}


def decode_inputs(
    kind: str,
    batches: int = BATCHES,
    heads: int = HEADS,
    query_rank: int = RANK,
    key_rank: tuple[int, ...] = (),
) -> TENSORS:
    """The factors of tpa_decode; those of rank 1 have no axis for the rank of keys."""
    generator = torch.Generator().manual_seed(2024)
    found = {
        "aq": plain(generator, batches, 1, heads, query_rank),
        "ak": plain(generator, batches, TOKENS, heads, *key_rank),
        "av": plain(generator, batches, TOKENS, heads, *key_rank),
        "bq": plain(generator, batches, 1, query_rank, DIM),
        "bk": plain(generator, batches, TOKENS, *key_rank, DIM),
        "bv": plain(generator, batches, TOKENS, *key_rank, DIM),
    }
    if kind == "large":  # values of different sizes
        sizes = plain(generator, batches, TOKENS, *(1 for _ in key_rank), 1)
        found["bv"] *= 1000 * torch.exp(sizes)
    elif kind == "cancelling":  # neighbours have the same score and opposite values
        for name in ("ak", "bk", "bv"):
            found[name][:, 1::2] = found[name][:, ::2]
        found["av"][:, 1::2] = -0.9 * found["av"][:, ::2]
    elif kind == "dominant head":
        found["av"][:, :, 0] *= 1000
    return {name: tensor.bfloat16() for name, tensor in found.items()}


KINDS = ("random", "large", "cancelling", "dominant head")


def lao(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return g * (q @ (k.transpose(-1, -2) @ v))


def encoded(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """silu, then the cosine encoding; angles in float64."""
    angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * theta.double()[:, None]
    y = torch.nn.functional.silu(x)
    return torch.cat([y * angle.cos().to(x.dtype), y * angle.sin().to(x.dtype)], -1)


def linear_inputs(kind: str) -> TENSORS:
    """q, k, v, log_decay and d_out, heads first."""
    found = attention_inputs(kind)
    generator = torch.Generator().manual_seed(2025)
    decay = torch.nn.functional.logsigmoid(plain(generator, 2, HEADS, TOKENS)) / 16
    tensors = {name: found[name] for name in "qkv"}
    return {**tensors, "log_decay": decay.bfloat16(), "d_out": found["d_out"]}


def chunked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor
) -> torch.Tensor:
    """Causal linear attention by chunks of 64 tokens; decays and states in float32 or wider."""
    q, k, v, logs = (x.unflatten(2, (-1, 64)) for x in (q, k, v, log_decay))
    wide = torch.promote_types(logs.dtype, torch.float32)
    sums = logs.to(wide).cumsum(3)
    mask = torch.ones(64, 64, dtype=torch.bool).tril()
    weights = (sums[..., :, None] - sums[..., None, :]).masked_fill(~mask, -torch.inf).exp()
    scores = ((q @ k.transpose(-1, -2)) * weights).to(q.dtype)
    last = sums[..., -1:]
    k_end = (k * (last - sums).exp()[..., None]).to(k.dtype)
    added = (k_end.transpose(-1, -2) @ v).to(wide)
    states = [torch.zeros_like(added[:, :, 0])]
    for i in range(added.shape[2] - 1):
        states.append(added[:, :, i] + states[-1] * last[:, :, i].exp()[..., None])
    q_start = (q * sums.exp()[..., None]).to(q.dtype)
    out = scores @ v + q_start @ torch.stack(states, 2).to(q.dtype)
    return (out * DIM**-0.5).flatten(2, 3)


def tpa(
    aq: torch.Tensor,
    ak: torch.Tensor,
    av: torch.Tensor,
    bq: torch.Tensor,
    bk: torch.Tensor,
    bv: torch.Tensor,
) -> torch.Tensor:
    q = torch.einsum("bnhr,bnrd->bhd", aq, bq) / RANK
    scores = torch.einsum("bhd,bmd->bhm", q, bk) * ak.transpose(1, 2) * DIM**-0.5
    weights = torch.softmax(scores, -1) * av.transpose(1, 2)
    return torch.einsum("bhm,bme->bhe", weights, bv)[:, None]


def tpa_of_ranks(*factors: torch.Tensor) -> torch.Tensor:
    aq, ak, av, bq, bk, bv = factors
    q = torch.einsum("bnhr,bnrd->bhd", aq, bq) / QUERY_RANK
    scores = (torch.einsum("bhd,bmsd->bmhs", q, bk) * ak).sum(-1) * (DIM**-0.5 / KEY_RANK)
    weights = torch.softmax(scores, 1)[..., None] * av / KEY_RANK
    return torch.einsum("bmhu,bmue->bhe", weights, bv)[:, None]


Form = Callable[..., torch.Tensor]


def operators() -> Iterator[tuple[str, Callable[[str], TENSORS], Callable[[str], Form], Form]]:
    """Name, inputs of a kind, attnops in a precision, and the same in PyTorch in any type."""
    theta = torch.exp(-4 * torch.rand(HEADS, DIM, generator=torch.Generator().manual_seed(1)))

    def fused(q, k, v, g, precision):
        acts = {"q_act": "silu", "k_act": "silu"}
        return attnops.flao_fal(q, k, v, g, theta=theta, **acts, precision=precision)

    yield (
        "flao",
        attention_inputs,
        lambda p: lambda *args: attnops.flao(*args, precision=p),
        lao,
    )
    yield (
        "flao_fal",
        attention_inputs,
        lambda p: lambda *args: fused(*args, p),
        lambda q, k, v, g: lao(encoded(q, theta), encoded(k, theta), v, g),
    )
    yield (
        "linear_attention",
        linear_inputs,
        lambda p: lambda *args: attnops.linear_attention(*args, layout="bhnd", precision=p),
        chunked,
    )
    yield (
        "tpa_decode",
        decode_inputs,
        lambda p: lambda *args: attnops.tpa_decode(*args, precision=p),
        tpa,
    )
    yield (
        "tpa_decode, ranks 6/2/2",
        lambda kind: decode_inputs(kind, BATCHES // 4, RANKS_HEADS, QUERY_RANK, (KEY_RANK,)),
        lambda p: lambda *args: attnops.tpa_decode(*args, precision=p),
        tpa_of_ranks,
    )


def results(form: Form, tensors: TENSORS, backward: bool) -> list[torch.Tensor]:
    """The output, or the gradients of the inputs."""
    args = [t.clone() for name, t in tensors.items() if name != "d_out"]
    if not backward:
        return [form(*args)]
    for tensor in args:
        tensor.requires_grad_()
    return list(torch.autograd.grad(form(*args), args, tensors["d_out"]))


def heads_apart(x: torch.Tensor) -> torch.Tensor:
    """(batch, head, others): attention has its heads on axis 1, a decoded token on axis 2."""
    return (x if x.shape[1] == HEADS else x.transpose(1, 2)).flatten(2)


def errors(found: list[torch.Tensor], exact: list[torch.Tensor]) -> dict[str, float]:
    """Mean, largest of a head (the mean of all heads), and the share of results that are not the
    exact ones rounded."""
    means, largest, wrong, count = [], [], 0, 0
    for result, truth in zip(found, exact, strict=True):
        rms = truth.square().mean(-1, keepdim=True).sqrt()
        relative = (result.double() - truth).abs() / rms.clamp(min=torch.finfo(torch.double).tiny)
        means.append(float(relative.mean()))
        largest.append(float(heads_apart(relative).amax(-1).mean()))
        wrong += int((result != truth.to(result.dtype)).sum())
        count += truth.numel()
    return {
        "mean": sum(means) / len(means),
        "max": sum(largest) / len(largest),
        "misrounded": wrong / count,
    }


def measure() -> list[dict]:
    """A line for each operator, pass and kind of input."""
    lines = []
    for name, inputs, own, torch_form in operators():
        decodes = name.startswith("tpa_decode")
        for direction in ("forward",) if decodes else ("forward", "backward"):
            for kind in KINDS:
                tensors = inputs(kind)
                backward = direction == "backward"
                exact = results(torch_form, {k: t.double() for k, t in tensors.items()}, backward)
                line = {"operator": name, "pass": direction, "inputs": kind}
                for precision in PRECISIONS:
                    found = results(own(precision), tensors, backward)
                    line[precision] = errors(found, exact)
                line["torch"] = errors(results(torch_form, tensors, backward), exact)
                lines.append(line)
    return lines


def table(lines: list[dict]) -> str:
    columns = (*PRECISIONS, "torch")
    titles = [*(f"`{p}`" for p in PRECISIONS), "PyTorch"]
    rows = [
        "| operator | pass | inputs | " + " | ".join(titles) + " | `high`, not correctly rounded |",
        "| --- | --- | --- | " + "--- | " * (len(columns) + 1),
    ]
    for line in lines:
        cells = [f"{line[c]['mean']:.1e}, {line[c]['max']:.1e}" for c in columns]
        cells.append(f"{line['high']['misrounded']:.2%}")
        rows.append(
            f"| {line['operator']} | {line['pass']} | {line['inputs']} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(row.rstrip() for row in rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help="put the table into docs/numerics.md")
    args = parser.parse_args()
    lines = measure()
    if args.json:
        json.dump(lines, sys.stdout)
    elif args.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + table(lines) + END + rest.partition(END)[2])
    else:
        print(table(lines), end="")


if __name__ == "__main__":
    main()
