"""Hashes the results and gradients of every operator, to show that two builds give the same bits.

    python scripts/result_bits.py > bits.json
    python scripts/result_bits.py --compare old.json new.json

The first form runs a few hundred calls on every SIMD target of the CPU with 1 and 2 threads, and
prints a JSON object with a line for each: operator/target/type/…/threads and the SHA-256 of the
results' bytes. Inputs are the same on every machine. All NaNs count as one: their payload is not
promised. The second form lists the cases that differ or are in one file only, by operator and
target, and ends with 1 if there are any, with 2 if a file cannot be read.
"""

import argparse
import hashlib
import itertools
import json
import math
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import attnops
from attnops.nn import TPACache

TYPES = ("float32", "float16", "bfloat16")
TYPE_PAIRS = (  # of a tensor and its theta
    ("float32", "float32"),
    ("float16", "float32"),
    ("float16", "float16"),
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
)
KEEPS = ("none", "kv", "kv_qkv")
SPLITS = ("auto", "b", "bh", "bn")
# How a tensor lies in memory; laid_out makes it so. As many as make every turn meet all of them.
LAYOUTS = (
    "contiguous",
    "swapped",
    "gaps",
    "broadcast 0",
    "broadcast 1",
    "broadcast 2",
    "spread",
    "unaligned",
    "every second",
)
THREADS = (1, 2)
# Of inputs: rows whose softmax needs its maximum are among them.
SCALES = (1.0, 2.0, 1.0, 40.0)

# A case is its name, operator/type/…, and a function without arguments that returns its results.
Case = tuple[str, Callable[[], Sequence[Tensor]]]


def numbers(name: str, count: int) -> np.ndarray:
    """Float32 numbers, nearly normal, that depend on the name alone.

    A sum of four uniform integers: exact, and no part of a random stream that may change.
    """
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(count)
    total = sum((raw >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48))
    return ((total.astype(np.float64) - 2 * 0xFFFF) * (math.sqrt(3) / 0x10000)).astype(np.float32)


@lru_cache(maxsize=16)  # those of a case, which every target takes
def tensor(name: str, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> Tensor:
    """A contiguous tensor of such numbers times scale."""
    values = torch.from_numpy(numbers(name, math.prod(shape))) * scale
    return values.reshape(shape).to(getattr(torch, dtype))


def laid_out(
    name: str, shape: Sequence[int], dtype: str, layout: str = "contiguous", scale: float = 1.0
) -> Tensor:
    """A tensor of three or four axes that lies in memory as the layout says."""

    def make(*memory_shape: int) -> Tensor:
        return tensor(name, memory_shape, dtype, scale)

    *outer, last = shape
    if layout == "swapped" and len(shape) == 4:
        return make(shape[0], shape[2], shape[1], last).transpose(1, 2)
    if layout == "gaps":
        return make(*outer, last + 3)[..., 1 : last + 1]
    if layout.startswith("broadcast"):
        axis = int(layout.split()[1])
        if axis < len(outer):
            return make(*shape[:axis], 1, *shape[axis + 1 :]).expand(tuple(shape))
    if layout == "spread":  # every second of axis 1
        return make(shape[0], 2 * shape[1], *shape[2:])[:, ::2]
    if layout == "unaligned":
        return make(math.prod(shape) + 1)[1:].view(tuple(shape))
    if layout == "every second":  # feature
        return make(*outer, 2 * last)[..., ::2]
    return make(*shape)


def with_gradients(
    run: Callable[..., Tensor], inputs: Sequence[Tensor], d_name: str, d_layout: str
) -> list[Tensor]:
    """run(*inputs) and the gradients of the inputs."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = run(*inputs)
    d_out = laid_out(d_name, out.shape, str(out.dtype).removeprefix("torch."), d_layout)
    return [out.detach(), *torch.autograd.grad(out, inputs, d_out)]


def activations(sequence: int) -> tuple[tuple[str, int | None], ...]:
    """Every activation with its dim; the sequence is the given axis."""
    return (
        ("none", None),
        ("relu", None),
        ("sigmoid", None),
        ("silu", None),
        ("softmax", -1),
        ("softmax", sequence),
    )


def case_name(*parts) -> str:
    """operator/type/…, with lists as 2x3."""
    texts = ("x".join(map(str, part)) if isinstance(part, tuple) else str(part) for part in parts)
    return "/".join(text for text in texts if text)


def lrpe_rotate_cases() -> Iterator[Case]:
    """Activations × types × sizes; forms of theta, offsets and layouts take turns."""
    # B, N, H, D; the last is larger than the caches' share, and written past them.
    shapes = ((2, 33, 3, 6), (3, 17, 5, 66), (2, 67, 3, 128), (1, 1, 1, 2), (3, 0, 2, 4))
    large = (2, 1031, 8, 128)
    offsets = (0, 5, -7, 1_000_003, -(2**31), 2**31)
    turn = itertools.count()

    def case(types, act, shape, axes=4) -> Case:
        i = next(turn)
        batch, length, heads, features = shape
        pairs = features // 2
        thetas = ((heads, pairs), (1, pairs), (heads, 1), (heads, pairs // 2 + 1), (1, 1))
        theta_shape = thetas[i % len(thetas)]
        if axes == 3:
            shape, theta_shape = (batch, length, features), (1, theta_shape[1])
        offset = offsets[i % len(offsets)]
        layout, d_layout = LAYOUTS[i % len(LAYOUTS)], LAYOUTS[i // 3 % len(LAYOUTS)]
        scale = SCALES[i // 3 % len(SCALES)]
        name = case_name(
            "lrpe_rotate",
            *types,
            *act,
            shape,
            theta_shape,
            offset,
            f"times {scale}",
            layout,
            f"d {d_layout}",
        )

        def run():
            x = laid_out(f"{name} x", shape, types[0], layout, scale)
            theta = tensor(f"{name} theta", theta_shape, types[1])
            call = partial(attnops.lrpe_rotate, theta=theta, offset=offset, act=act[0], dim=act[1])
            return with_gradients(call, [x], f"{name} d", d_layout)

        return name, run

    for types, act in itertools.product(TYPE_PAIRS, activations(1)):
        for shape in shapes[:3]:
            yield case(types, act, shape)
    for dtype in TYPES:
        for act in activations(1):
            yield case((dtype, dtype), act, (2, 29, 1, 10), axes=3)
        for shape in shapes[3:]:
            yield case((dtype, "float32"), ("silu", None), shape)
        for act in (("none", None), ("softmax", -1), ("softmax", 1)):
            yield case((dtype, "float32"), act, large)


def md_lrpe_cosine_cases() -> Iterator[Case]:
    """Activations × types × grids, with angles on the fly and from a table."""
    # B, H, D, shape, l, offset
    grids = (
        (2, 3, 7, (33,), 0, 1_000_003),
        (2, 2, 48, (5, 7), 10, 0),
        (1, 3, 130, (3, 4, 5), 1, 0),
        (1, 1, 1, (1,), 0, 0),
        (3, 2, 66, (2, 3, 2, 2), 0, 0),
        (2, 2, 5, (0,), 3, -7),
        (1, 2, 9, (4, 0), 0, 0),
    )
    large = (2, 4, 128, (32, 33), 10, 0)
    many = (4, 8, 128, (2053,), 0, 9)  # batches that stream past the angles side by side
    turn = itertools.count()

    def case(types, act, grid, with_table) -> Case:
        i = next(turn)
        batch, heads, features, shape, l, offset = grid
        angles = -(-features // len(shape)) + i % 2
        theta_shape = (heads if i % 3 else 1, angles)
        layout, d_layout = LAYOUTS[i % len(LAYOUTS)], LAYOUTS[i // 3 % len(LAYOUTS)]
        scale = SCALES[i // 3 % len(SCALES)]
        x_shape = (batch, heads, l + math.prod(shape), features)
        name = case_name(
            "md_lrpe_cosine",
            *types,
            *act,
            x_shape,
            shape,
            f"l {l}",
            theta_shape,
            offset,
            f"times {scale}",
            layout,
            f"d {d_layout}",
            "table" if with_table else "",
        )

        def run():
            x = laid_out(f"{name} x", x_shape, types[0], layout, scale)
            theta = tensor(f"{name} theta", theta_shape, types[1])
            options = {"shape": shape, "l": l, "act": act[0], "dim": act[1]}
            if with_table:
                table = attnops.lrpe_table(theta, shape, features, offset)
                options |= {"theta": None, "table": table}
            else:
                options |= {"theta": theta, "offset": offset}
            return with_gradients(
                lambda x: attnops.md_lrpe_cosine(x, **options), [x], f"{name} d", d_layout
            )

        return name, run

    paths = activations(2)
    for types, act in itertools.product(TYPE_PAIRS, paths):
        for grid in grids[:3]:
            yield case(types, act, grid, with_table=grid is grids[1])
    for dtype in TYPES:
        for grid, with_table in itertools.product(grids[3:], (False, True)):
            yield case((dtype, dtype), paths[next(turn) % len(paths)], grid, with_table)
        for act in (paths[0], paths[4], paths[5]):
            yield case((dtype, "float32"), act, large, with_table=dtype == "float16")
    yield case(("float32", "float32"), paths[0], many, with_table=False)


def lrpe_table_cases() -> Iterator[Case]:
    """Tables on a line, with offsets, and in grids."""
    tables = (
        ((3, 24), (67,), 24, 1_000_003),
        ((1, 5), (1,), 5, -(2**31)),
        ((2, 17), (5, 7), 33, 0),
        ((1, 44), (3, 4, 5), 130, 0),
        ((2, 3), (4, 0), 5, 0),
    )
    for dtype, (theta_shape, shape, features, offset) in itertools.product(TYPES, tables):
        name = case_name("lrpe_table", dtype, theta_shape, shape, features, offset)

        def run(name=name, dtype=dtype, args=(theta_shape, shape, features, offset)):
            theta = tensor(f"{name} theta", args[0], dtype)
            return [attnops.lrpe_table(theta, *args[1:])]

        yield name, run


def attention_inputs(
    name: str, sizes: Sequence[int], dtype: str, layouts: Sequence[str], scale: float = 1.0
) -> list[Tensor]:
    """q, k, v and g for B, H, N, M, D and E."""
    B, H, N, M, D, E = sizes
    shapes = ((B, H, N, D), (B, H, M, D), (B, H, M, E), (B, H, N, E))
    return [
        laid_out(f"{name} {letter}", shape, dtype, layout, scale)
        for letter, shape, layout in zip("qkvg", shapes, layouts, strict=True)
    ]


def turned(items: Sequence, i: int) -> tuple:
    """The items from i on, and those before it behind them."""
    i %= len(items)
    return (*items[i:], *items[:i])


def flao_cases() -> Iterator[Case]:
    """Keeps × types × sizes; layouts take turns."""
    # B, H, N, M, D, E
    sizes = (
        (2, 3, 5, 7, 8, 8),
        (1, 1, 1, 1, 1, 1),
        (1, 2, 33, 65, 17, 31),
        (2, 2, 131, 70, 40, 24),
        (1, 2, 300, 257, 128, 128),
        (1, 1, 67, 129, 200, 136),
        (1, 1, 2503, 2111, 8, 8),
        (2, 2, 530, 1031, 64, 48),
    )
    empty = (
        (1, 2, 0, 5, 4, 4),
        (1, 2, 5, 0, 4, 4),
        (1, 2, 5, 6, 0, 4),
        (1, 2, 5, 6, 4, 0),
        (0, 2, 5, 6, 4, 3),
    )
    calls = itertools.chain(
        itertools.product(TYPES, KEEPS, sizes), itertools.product(TYPES, ("kv_qkv",), empty)
    )
    for i, (dtype, keep, size) in enumerate(calls):
        layouts = turned(LAYOUTS, i)[:4]
        d_layout = LAYOUTS[i // 2 % len(LAYOUTS)]
        name = case_name("flao", dtype, keep, size, layouts[0], f"d {d_layout}")

        def run(name=name, dtype=dtype, keep=keep, size=size, layouts=layouts, d=d_layout):
            inputs = attention_inputs(name, size, dtype, layouts)
            return with_gradients(partial(attnops.flao, keep=keep), inputs, f"{name} d", d)

        yield name, run


def flao_fal_cases() -> Iterator[Case]:
    """Encodings × types × activations, each of q, k, v and g with each; sizes, keeps take turns."""
    # lrpe, shape, offset, l; N and M follow from a shape.
    encodings = (
        ("none", None, 0, 0),
        ("cosine", None, 1_000_003, 0),
        ("cosine", None, -7, 3),
        ("cosine", (37,), 5, 2),
        ("cosine", (13, 11), 0, 1),
        ("cosine", (3, 4, 5), 0, 0),
        ("rotate", None, 1_000_003, 0),
        ("rotate", None, -7, 3),
        ("rotate", (37,), 5, 2),
        ("rotate", (13, 11), 0, 1),
        ("rotate", (3, 4, 5), 0, 0),
    )
    # B, H, N, M, D, E
    sizes = (
        (2, 3, 5, 7, 8, 8),
        (1, 2, 33, 65, 18, 31),
        (1, 2, 150, 257, 64, 48),
        (1, 1, 67, 129, 136, 130),
        (2, 1, 3, 3, 2, 1),
    )
    large = ((1, 1, 2503, 2111, 8, 8), (1, 2, 300, 530, 128, 128))
    acts = activations(2)
    turn = itertools.count()

    def case(dtype, encoding, size, chosen) -> Case:
        i = next(turn)
        lrpe, shape, offset, l = encoding
        B, H, N, M, D, E = size
        if shape is not None:
            N = M = l + math.prod(shape)
        axes = 1 if shape is None else len(shape)
        width = D // 2 if lrpe == "rotate" else D
        angles = -(-width // axes)
        if lrpe == "rotate" and axes == 1:
            angles = (angles, 1, angles // 2 + 1)[i % 3]
        theta_shape = (H if i % 2 else 1, angles)
        theta_type = dtype if i % 3 == 0 else "float32"
        keep = KEEPS[i % len(KEEPS)]
        scale = SCALES[i // 3 % len(SCALES)]
        layouts = turned(LAYOUTS, i)[:4]
        d_layout = LAYOUTS[i // 2 % len(LAYOUTS)]
        size = (B, H, N, M, D, E)
        act_names = tuple(f"{act}{'' if dim is None else dim}" for act, dim in chosen)
        name = case_name(
            "flao_fal",
            dtype,
            lrpe,
            "line" if shape is None else shape,
            offset,
            f"l {l}",
            size,
            " ".join(act_names),
            f"theta {theta_type}",
            theta_shape,
            keep,
            f"times {scale}",
            layouts[0],
            f"d {d_layout}",
        )

        def run():
            options = {"lrpe": lrpe, "shape": shape, "offset": offset, "l": l, "keep": keep}
            for letter, (act, dim) in zip("qkvg", chosen, strict=True):
                options |= {f"{letter}_act": act, f"{letter}_dim": dim}
            if lrpe != "none":
                options["theta"] = tensor(f"{name} theta", theta_shape, theta_type)
            inputs = attention_inputs(name, size, dtype, layouts, scale)
            return with_gradients(
                partial(attnops.flao_fal, **options), inputs, f"{name} d", d_layout
            )

        return name, run

    for i, (dtype, encoding, _) in enumerate(itertools.product(TYPES, encodings, range(4))):
        # Every activation of q meets every one of k.
        chosen = [acts[j % len(acts)] for j in (i, i // 6, i // 2 + i // 36, i // 3 + i // 18)]
        yield case(dtype, encoding, sizes[i % len(sizes)], chosen)
    for i, (dtype, size) in enumerate(itertools.product(TYPES, large)):
        for encoding in (encodings[1], encodings[6]):
            yield case(dtype, encoding, size, turned(acts, i)[:4])
    for dtype, size in itertools.product(TYPES, ((1, 2, 0, 5, 4, 4), (1, 2, 5, 0, 4, 4))):
        yield case(dtype, encodings[1], size, acts[2:])


def tpa_decode_cases() -> Iterator[Case]:
    """Splits × types × sizes; layouts and scales take turns."""
    # B, M, H, R, D, E
    sizes = (
        (1, 7, 3, 2, 8, 8),
        (1, 1, 1, 1, 1, 1),
        (2, 65, 5, 3, 17, 31),
        (3, 300, 32, 16, 128, 128),
        (1, 2111, 7, 4, 64, 48),
        (2, 257, 33, 1, 130, 136),
        (2, 0, 3, 2, 8, 8),
        (0, 5, 3, 2, 8, 8),
        (2, 33, 4, 0, 8, 8),
    )
    scales = (
        {},
        {"scale": 1.0},
        {"scale_q": 0.25, "scale_v": 3.0},
        {"scale": 0.5, "scale_k": -2.0},
    )
    for i, (dtype, size) in enumerate(itertools.product(TYPES, sizes)):
        B, M, H, R, D, E = size
        layout = LAYOUTS[i * 2 % len(LAYOUTS)]
        options = scales[i % len(scales)]
        shapes = {
            "aq": (B, 1, H, R),
            "ak": (B, M, H),
            "av": (B, M, H),
            "bq": (B, 1, R, D),
            "bk": (B, M, D),
            "bv": (B, M, E),
        }
        texts = " ".join(f"{key} {value}" for key, value in options.items())
        inputs_name = case_name("tpa_decode", dtype, size, texts, layout)
        for split in SPLITS:

            def run(
                shapes=shapes,
                name=inputs_name,
                dtype=dtype,
                layout=layout,
                options=options,
                s=split,
            ):
                inputs = {
                    key: laid_out(f"{name} {key}", shape, dtype, layout)
                    for key, shape in shapes.items()
                }
                return [attnops.tpa_decode(**inputs, **options, split=s)]

            yield case_name(inputs_name, split), run


def tpa_cases() -> Iterator[Case]:
    """Both passes of tpa, and decoding with ranks and from an int8 cache; layouts take turns."""
    # B, N, M, H, R_q (0 for full queries), R_k, R_v, D, E
    sizes = (
        (1, 1, 7, 3, 2, 1, 3, 8, 8),
        (2, 37, 65, 5, 3, 2, 2, 17, 31),
        (1, 150, 219, 2, 0, 3, 1, 24, 9),
        (2, 1, 700, 34, 6, 2, 2, 64, 64),
        (1, 0, 5, 3, 2, 2, 2, 8, 8),
    )
    for i, (dtype, size) in enumerate(itertools.product(TYPES, sizes)):
        B, N, M, H, Rq, Rk, Rv, D, E = size
        layout = LAYOUTS[i * 2 % len(LAYOUTS)]
        query = {"aq": (B, N, H, Rq), "bq": (B, N, Rq, D)} if Rq else {"q": (B, N, H, D)}
        keys = {"ak": (B, M, H, Rk), "av": (B, M, H, Rv), "bk": (B, M, Rk, D), "bv": (B, M, Rv, E)}
        name = case_name("tpa", dtype, size, layout)

        def inputs(shapes=query | keys, name=name, dtype=dtype, layout=layout):
            made = {
                key: laid_out(f"{name} {key}", shape, dtype, layout)
                for key, shape in shapes.items()
            }
            return {"aq": None, "bq": None} | made

        def run(inputs=inputs, causal=i % 2 == 0):
            args = inputs()
            given = [x.requires_grad_() for x in args.values() if x is not None]
            out = attnops.tpa(**args, causal=causal)
            return [out, *torch.autograd.grad(out.float().square().sum(), given)]

        yield name, run
        if N != 1:
            continue
        for split in SPLITS:

            def decode(inputs=inputs, split=split, lengths=(M, M // 2)[:B]):
                options = {"lengths": torch.tensor(lengths), "return_lse": True, "split": split}
                return attnops.tpa_decode(**inputs(), **options)

            yield case_name("tpa_decode", dtype, size, layout, "lengths", split), decode

        def from_cache(inputs=inputs, size=size):
            B, _, M, H, _, Rk, Rv, D, E = size
            args = inputs()
            cache = TPACache(B, M, H, D, Rk, Rv, value_dim=E, dtype=torch.int8, page_size=16)
            cache.join(B)
            cache.append(*(args[key] for key in ("ak", "av", "bk", "bv")))
            return [cache.decode(args["aq"], args["bq"])]

        yield case_name("tpa_cache", dtype, size, layout, "int8"), from_cache


FAMILIES = (
    lrpe_rotate_cases,
    md_lrpe_cosine_cases,
    lrpe_table_cases,
    flao_cases,
    flao_fal_cases,
    tpa_decode_cases,
    tpa_cases,
)


def digest(results: Sequence[Tensor]) -> str:
    """SHA-256 of the types, shapes and bytes of tensors."""
    sha = hashlib.sha256()
    for result in results:
        sha.update(f"{result.dtype}{tuple(result.shape)}".encode())
        if result.isnan().any():
            result = torch.where(result.isnan(), torch.full_like(result, math.nan), result)
        sha.update(result.contiguous().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()


def hash_all() -> dict[str, str]:
    """The hash of every case on every target with every number of threads."""
    hashes: dict[str, str] = {}
    for name, run in itertools.chain.from_iterable(family() for family in FAMILIES):
        operator, rest = name.split("/", 1)
        for target, threads in itertools.product(attnops.supported_targets(), THREADS):
            attnops.set_target(target)
            torch.set_num_threads(threads)
            key = f"{operator}/{target}/{rest}/{threads} threads"
            if key in hashes:
                raise RuntimeError(f"two cases have the name {key}")
            hashes[key] = digest(run())
    return hashes


def compare(old: dict[str, str], new: dict[str, str]) -> int:
    """Prints what differs, by operator and target; 1 if anything does."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            what = "differs"
            if key not in old or key not in new:
                what = f"only in the {'old' if key in old else 'new'}"
            groups[" ".join(key.split("/")[:2])].append(f"{what}: {key}")
    sizes = Counter(" ".join(key.split("/")[:2]) for key in old.keys() | new.keys())
    for group, lines in sorted(groups.items()):
        print(f"{group}: {len(lines)} of {sizes[group]}")
        print("\n".join(f"  {line}" for line in lines))
    print(f"{sum(map(len, groups.values()))} of {len(old.keys() | new.keys())} cases differ")
    return 1 if groups else 0


def read(path: Path) -> dict[str, str]:
    """The hashes in a file; raises ValueError if it holds none."""
    hashes = json.loads(path.read_text())
    if not isinstance(hashes, dict) or not hashes:
        raise ValueError("it holds no hashes")
    return hashes


def main() -> int:
    """Hashes or compares, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    files = parser.parse_args().compare
    if files is None:
        json.dump(hash_all(), sys.stdout, indent=0, sort_keys=True)
        print()
        return 0
    contents = []
    for path in files:
        try:
            contents.append(read(path))
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
    return compare(*contents)


if __name__ == "__main__":
    sys.exit(main())
