"""A small Llama of random weights, with and without attnops' rotary encoding.

It reads a prompt and goes on token by token, both ways in turns. The encoding is a few percent of
the whole, and no more than that can be gained.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import quantiles

import matplotlib
import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

import attnops
from attnops import hf

matplotlib.use("Agg")
from matplotlib import pyplot as plt

WAYS = ("transformers", "attnops")
PARTS = ("prompt", "step")
# Of the wall, or of the processors: where others run too, with one thread.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class Stopwatch:
    """The time of the encoding alone: of its module and of its function."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds, self.clock = 0.0, clock

    def around(self, function):
        def timed(*args, **kwargs):
            start = self.clock()
            result = function(*args, **kwargs)
            self.seconds += self.clock() - start
            return result

        return timed


@contextmanager
def encoding_timed(model: nn.Module, clock: Callable[[], float]) -> Iterator[Stopwatch]:
    """Times the encoding of a model, whichever it has."""
    rotary, watch = model.model.rotary_emb, Stopwatch(clock)
    apply, forward = modeling_llama.apply_rotary_pos_emb, rotary.forward
    modeling_llama.apply_rotary_pos_emb = watch.around(apply)
    rotary.forward = watch.around(forward)
    try:
        yield watch
    finally:
        modeling_llama.apply_rotary_pos_emb, rotary.forward = apply, forward


def run(
    model: nn.Module, tokens: Tensor, steps: int, clock: Callable[[], float]
) -> tuple[list[float], Tensor]:
    """Seconds of the prompt and of its encoding, of a step and of its encoding; the logits."""
    with encoding_timed(model, clock) as watch:
        start = clock()
        out = model(tokens, use_cache=True, logits_to_keep=1)
        seconds = [clock() - start, watch.seconds]
        logits = [out.logits[:, -1]]
        watch.seconds, start = 0.0, clock()
        for _ in range(steps):
            token = tokens[:, :1]  # the same for both ways
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
            logits.append(out.logits[:, -1])
        seconds += [(clock() - start) / steps, watch.seconds / steps]
    return seconds, torch.stack(logits)


def draw(results: dict[str, list[list[float]]], path: str) -> None:
    """Bars of both ways, the encoding's part of them darker, and the quartiles of the whole."""
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.8))
    for i, (axis, what) in enumerate(zip(axes, PARTS, strict=True)):
        low, whole, high = (
            [results[way][2 * i][quartile] * 1e3 for way in WAYS] for quartile in range(3)
        )
        part = [results[way][2 * i + 1][1] * 1e3 for way in WAYS]
        below = [w - a for w, a in zip(whole, low, strict=True)]
        above = [b - w for w, b in zip(whole, high, strict=True)]
        style = {"ecolor": "gray", "capsize": 4}
        axis.bar(
            WAYS, whole, 0.6, yerr=(below, above), color="#9ecae1", error_kw=style, label="the rest"
        )
        axis.bar(WAYS, part, 0.6, color="#08519c", label="the encoding")
        axis.set_title(f"{what}, ms")
    axes[0].legend(loc="lower center")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128, help="of the prompt")
    parser.add_argument("--steps", type=int, default=4, help="tokens after it")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
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

    times: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    logits = {}
    with torch.inference_mode(), tqdm(total=2 * (options.rounds + 1), disable=None) as bar:
        for turn in range(options.rounds + 1):
            # Each way is the first as often as the second.
            for way in WAYS[:: -1 if turn % 2 else 1]:
                change = hf.patch if way == "attnops" else hf.unpatch
                change(model)
                bar.set_description(way)
                seconds, logits[way] = run(model, tokens, options.steps, CLOCKS[options.clock])
                if turn > 0:  # the first is a warm-up
                    times[way].append(seconds)
                bar.update()
    torch.testing.assert_close(logits["attnops"], logits["transformers"], rtol=1e-3, atol=1e-3)

    # The three quartiles of each column.
    results = {
        way: [quantiles(column, method="inclusive") for column in zip(*times[way], strict=True)]
        for way in WAYS
    }
    info = attnops.info()
    print(f"{options.layers} layers, {options.tokens} tokens, then {options.steps} steps")
    print(f"{options.rounds} rounds, {info.threads} threads, {info.target}, {options.clock} time")
    for i, what in enumerate(PARTS):
        print(f"{what:14}{'median':>9}{'quartiles':>20}{'encoding':>12}{'share':>8}")
        for way in WAYS:
            low, whole, high = (1e3 * s for s in results[way][2 * i])
            part = 1e3 * results[way][2 * i + 1][1]
            print(
                f"  {way:12}{whole:6.1f} ms{low:10.1f} to {high:6.1f}"
                f"{part:9.2f} ms{part / whole:8.1%}"
            )
    draw(results, options.picture)
    print(f"the same logits; picture: {options.picture}")


main()
