"""A model that cleans noisy images, trained with attnops and with plain PyTorch operations.

Each patch of an image sees all others, by flao_fal on a grid. All ways have the same weights and
images and take turns, each in a process of its own, which tells the memory that it needs.
"""

import argparse
import ctypes
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import matplotlib
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

import attnops
from attnops.nn import GatedLinearAttention

matplotlib.use("Agg")
from matplotlib import pyplot as plt

PATCH, NOISE = 2, 0.5
COMPILED = ", compiled"  # the whole model, by torch.compile
COLOURS = {
    "PyTorch": "#fdae6b",
    "PyTorch" + COMPILED: "#e6550d",
    "attnops": "#6baed6",
    "attnops" + COMPILED: "#08519c",
}


class PlainAttention(GatedLinearAttention):
    """The same layer in PyTorch operations."""

    def forward(self, x: Tensor, *, shape: tuple[int, int]) -> Tensor:
        q, k, v, g = (
            project(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj, self.g_proj)
        )
        rows, columns = (torch.arange(n, dtype=torch.float32) for n in shape)
        angles = torch.cat(  # of a token: half of the features by row, half by column
            [
                (rows[:, None, None] * self.theta).expand(*shape, -1),
                (columns[:, None] * self.theta).expand(*shape, -1),
            ],
            -1,
        ).flatten(0, 1)
        cos, sin = angles.cos(), angles.sin()
        q, k = (torch.cat([y * cos, y * sin], -1) for y in (F.silu(q), F.silu(k)))
        out = torch.sigmoid(g) * (q @ (k.mT @ v))
        return self.out_proj(self.norm(out).transpose(1, 2).flatten(2))


LAYERS = {"PyTorch": PlainAttention, "attnops": GatedLinearAttention}


class Cleaner(nn.Module):
    """Patches (B,N,PATCH²) of noisy images to patches of clean ones."""

    def __init__(self, way: str, width: int, heads: int, layers: int) -> None:
        super().__init__()
        layer = LAYERS[way.removesuffix(COMPILED)]
        self.embed = nn.Linear(PATCH**2, width)
        self.attentions = nn.ModuleList(layer(width, heads, axes=2) for _ in range(layers))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.head = nn.Linear(width, PATCH**2)

    def forward(self, patches: Tensor, shape: tuple[int, int]) -> Tensor:
        x = self.embed(patches)
        for i, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            x = x + attention(self.norms[2 * i](x), shape=shape)
            x = x + feed(self.norms[2 * i + 1](x))
        return self.head(x)


def draw_images(generator: torch.Generator, count: int, size: int) -> Tensor:
    """Squares and discs of random grey over each other, (B,size,size)."""
    row, column = torch.arange(size)[:, None], torch.arange(size)
    images = torch.zeros(count, size, size)
    for image in images:
        for shape in range(8):
            y, x, radius, grey = torch.rand(4, generator=generator).tolist()
            down, right = (row - y * size).abs(), (column - x * size).abs()
            radius = (0.1 + 0.2 * radius) * size
            disc = down**2 + right**2 < radius**2
            image[disc if shape % 2 else torch.maximum(down, right) < radius] = 2 * grey - 1
    return images


def cut(images: Tensor) -> Tensor:
    """(B,R·PATCH,C·PATCH) to patches (B,R·C,PATCH²)."""
    cells = images.unflatten(2, (-1, PATCH)).unflatten(1, (-1, PATCH))
    return cells.transpose(2, 3).flatten(3).flatten(1, 2)


def joined(patches: Tensor, grid: int) -> Tensor:
    """Patches as images again."""
    cells = patches.unflatten(2, (PATCH, PATCH)).unflatten(1, (grid, grid))
    return cells.transpose(2, 3).flatten(3).flatten(1, 2)


def status(field: str) -> float:
    """Of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def work(pipe: Connection, way: str, options: argparse.Namespace) -> None:
    """Trains as many steps as it is told; 0 is the end."""
    torch.manual_seed(0)
    model = Cleaner(way, options.width, options.heads, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, eps=1e-5)
    generator = torch.Generator().manual_seed(1)
    shape = (options.grid, options.grid)

    def draw_batch(count: int) -> tuple[Tensor, Tensor]:
        clean = cut(draw_images(generator, count, options.grid * PATCH))
        return clean, clean + NOISE * torch.randn(clean.shape, generator=generator)

    # A first pass, in which libraries allocate what they keep and the model is compiled.
    clean, noisy = draw_batch(options.batch)
    run: Callable[[Tensor, tuple[int, int]], Tensor] = model
    if way.endswith(COMPILED):
        run = torch.compile(model, dynamic=False)
        F.mse_loss(run(noisy, shape), clean).backward()
    else:
        F.mse_loss(run(noisy[:, :1], (1, 1)), clean[:, :1]).backward()
    optimizer.zero_grad()
    ctypes.CDLL(None).malloc_trim(0)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from here on
    pipe.send("ready")
    for steps in iter(pipe.recv, 0):
        done = []
        for _ in range(steps):
            clean, noisy = draw_batch(options.batch)
            start, used = time.perf_counter(), time.process_time()
            loss = F.mse_loss(run(noisy, shape), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds = (time.perf_counter() - start, time.process_time() - used)
            done.append((loss.item(), *seconds))
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        pipe.send((done, gradient.tolist()))
    peak = status("VmHWM") - before
    clean, noisy = draw_batch(1)
    with torch.no_grad():
        pictures = [
            joined(x, options.grid)[0].tolist() for x in (noisy, model(noisy, shape), clean)
        ]
    pipe.send((peak, pictures))


def save_picture(results: dict[str, dict], path: str) -> None:
    """The losses of all ways, their time and memory, and an image."""
    figure, axes = plt.subplots(1, 6, figsize=(12, 2.6), width_ratios=[2, 1.2, 1.2, 1, 1, 1])
    for i, (way, result) in enumerate(results.items()):
        losses = [loss for loss, *_ in result["steps"]]
        style, width = ("-", 4) if i == 0 else (":", 2)
        axes[0].plot(losses, style, color=COLOURS[way], linewidth=width, label=way)
    axes[0].set(xlabel="step", title="loss", ylim=0)
    axes[0].legend(fontsize=8)
    for axis, name, title in ((axes[1], "CPU ms", "CPU ms a step"), (axes[2], "peak", "MB")):
        heights = [result[name] for result in results.values()]
        bars = axis.bar(list(results), heights, color=[COLOURS[way] for way in results])
        axis.bar_label(bars, fmt="{:.0f}")
        axis.set(title=title, xticks=[], yticks=[])
        axis.margins(y=0.15)
    for axis, image, title in zip(
        axes[3:], results["attnops"]["pictures"], ("noisy", "cleaned", "true"), strict=True
    ):
        axis.imshow(image, cmap="gray", vmin=-1.2, vmax=1.2)
        axis.set(title=title, xticks=[], yticks=[])
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=int, default=16, help="patches in a row and in a column")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--compile", action="store_true", help="compiled models, too")
    parser.add_argument("--picture", default="train_bidirectional.png")
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    ways = [way for way in COLOURS if options.compile or not way.endswith(COMPILED)]
    pipes, processes = {}, []
    for way in ways:
        pipes[way], end = context.Pipe()
        processes.append(context.Process(target=work, args=(end, way, options), daemon=True))
        processes[-1].start()
    for pipe in pipes.values():
        pipe.recv()

    results: dict[str, dict] = {way: {"steps": [], "gradients": []} for way in ways}
    rounds = [1] + [5] * (-(-(options.steps - 1) // 5))
    with tqdm(total=sum(rounds) * len(ways), disable=None) as bar:
        for turn, steps in enumerate(rounds):
            # Each is the first as often as the last.
            for way in ways[:: -1 if turn % 2 else 1]:
                pipes[way].send(steps)
                done, gradient = pipes[way].recv()
                results[way]["steps"] += done
                results[way]["gradients"].append(torch.tensor(gradient))
                bar.update(steps)
                bar.set_description(f"{way}, loss {done[-1][0]:.4f}")
    for way, result in results.items():
        pipes[way].send(0)
        result["peak"], result["pictures"] = pipes[way].recv()
        result["ms"] = median(seconds for _, seconds, _ in result["steps"][1:]) * 1e3
        result["CPU ms"] = median(seconds for *_, seconds in result["steps"][1:]) * 1e3
    for process in processes:
        process.join()

    plain, fused = results["PyTorch"], results["attnops"]
    first, same = (r["gradients"][0] for r in (plain, fused))
    losses, twins = (torch.tensor([loss for loss, *_ in r["steps"]]) for r in (plain, fused))
    apart = (twins / losses - 1).abs()
    info = attnops.info()
    print(f"{options.grid**2} tokens, {len(losses)} steps, {info.threads} threads, {info.target}")
    print(f"{'':19}{'loss':>8}{'step':>12}{'of the CPU':>12}{'memory':>12}")
    for way, r in results.items():
        print(
            f"{way:19}{r['steps'][-1][0]:8.4f}{r['ms']:9.1f} ms"
            f"{r['CPU ms']:9.1f} ms{r['peak']:9.0f} MB"
        )
    print(f"gradients of the first step differ by {(first - same).norm() / first.norm():.1e},")
    print(f"losses by {apart[:10].max():.1e} in 10 steps and {apart.max():.1e} in all")
    save_picture(results, options.picture)
    print(f"picture: {options.picture}")
    assert (first - same).norm() < 1e-4 * first.norm()
    assert apart[:10].max() < 1e-3
    assert apart.max() < 1e-2
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    main()
