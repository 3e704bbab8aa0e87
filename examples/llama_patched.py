"""A small Llama of random weights, with and without attnops' rotary encoding.

It reads a prompt and goes on token by token, both ways in turns. The encoding is a few percent of
the whole, and no more than that can be gained.
"""

import argparse
import time
from statistics import median

import matplotlib
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

from attnops import hf

matplotlib.use("Agg")
from matplotlib import pyplot as plt

WAYS = ("transformers", "attnops")


class Stopwatch:
    """The time of the encoding alone: of its module and of its function."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function):
        def timed(*args, **kwargs):
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds += time.perf_counter() - start
            return result

        return timed


def set_way(model: nn.Module, way: str) -> None:
    """Patched or not."""
    if way == "attnops":
        hf.patch(model)
    else:
        hf.unpatch(model)


def run(model: nn.Module, tokens: Tensor, steps: int) -> tuple[float, float, Tensor]:
    """Seconds of the prompt and of a step, and the logits of all."""
    start = time.perf_counter()
    out = model(tokens, use_cache=True, logits_to_keep=1)
    prompt = time.perf_counter() - start
    logits = [out.logits[:, -1]]
    start = time.perf_counter()
    for _ in range(steps):
        token = tokens[:, :1]  # the same for both ways
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits[:, -1])
    return prompt, (time.perf_counter() - start) / steps, torch.stack(logits)


def share(model: nn.Module, tokens: Tensor, steps: int) -> tuple[float, float]:
    """The encoding's share of the prompt's time and of a step's."""
    module, rotary = modeling_llama, model.model.rotary_emb
    apply, forward = module.apply_rotary_pos_emb, rotary.forward
    watch = Stopwatch()
    module.apply_rotary_pos_emb = watch.around(apply)
    rotary.forward = watch.around(forward)
    try:
        out = model(tokens, use_cache=True, logits_to_keep=1)  # warm
        watch.seconds, start = 0.0, time.perf_counter()
        out = model(tokens, use_cache=True, logits_to_keep=1)
        prompt = watch.seconds / (time.perf_counter() - start)
        watch.seconds, start = 0.0, time.perf_counter()
        for _ in range(steps):
            out = model(tokens[:, :1], past_key_values=out.past_key_values, use_cache=True)
        return prompt, watch.seconds / (time.perf_counter() - start)
    finally:
        module.apply_rotary_pos_emb, rotary.forward = apply, forward


def draw(results: dict[str, dict[str, float]], path: str) -> None:
    """Bars of both ways, the encoding's part of them darker."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2))
    for axis, what in zip(axes, ("prompt", "step"), strict=True):
        whole = [results[way][what] * 1e3 for way in WAYS]
        part = [results[way][what] * 1e3 * results[way][f"{what} share"] for way in WAYS]
        axis.bar(WAYS, whole, color="#9ecae1", label="the rest")
        axis.bar(WAYS, part, color="#08519c", label="the encoding")
        axis.set_title(f"{what}, ms")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128, help="of the prompt")
    parser.add_argument("--steps", type=int, default=4, help="tokens after it")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--picture", default="llama_patched.png")
    options = parser.parse_args()

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    model = LlamaForCausalLM(config).eval()
    tokens = torch.randint(config.vocab_size, (1, options.tokens))
    print(hf.patch(model))

    times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    logits = {}
    results = {}
    with torch.inference_mode(), tqdm(total=2 * options.rounds + 4, disable=None) as bar:
        for counts in [False] + [True] * options.rounds:  # the first is a warm-up
            for way in WAYS:
                set_way(model, way)
                bar.set_description(way)
                *seconds, logits[way] = run(model, tokens, options.steps)
                if counts:
                    times[way].append(tuple(seconds))
                bar.update()
        for way in WAYS:
            set_way(model, way)
            prompt, step = (median(column) for column in zip(*times[way], strict=True))
            shares = share(model, tokens, options.steps)
            results[way] = {"prompt": prompt, "step": step}
            results[way] |= {"prompt share": shares[0], "step share": shares[1]}
            bar.update()
    torch.testing.assert_close(logits["attnops"], logits["transformers"], rtol=1e-3, atol=1e-3)

    print(f"{'':14}{'prompt':>10}{'encoding':>10}{'step':>10}{'encoding':>10}")
    for way, r in results.items():
        print(
            f"{way:14}{r['prompt'] * 1e3:7.1f} ms{r['prompt share']:10.1%}"
            f"{r['step'] * 1e3:7.2f} ms{r['step share']:10.1%}"
        )
    draw(results, options.picture)
    print(f"the same logits; picture: {options.picture}")


main()
