"""The published tensor product attention models: sizes and costs. Nothing here needs torch."""

from __future__ import annotations

from attnops_bench.tables import BYTES, Case, Column

DIM, RANKS = 64, (6, 2, 2)
HEADS = (34, 47, 61, 78)
# to, toc: separate operations on the factors, eager and compiled; ts, tsc: K and V are built first,
# then scaled_dot_product_attention; _up: computed in float32, rounded at the end.
PEERS = (
    Column("to", "peer"),
    Column("toc", "peer", compiled=True),
    Column("ts", "peer"),
    Column("tsc", "peer", compiled=True),
    Column("to_up", "peer"),
    Column("toc_up", "peer", compiled=True),
    Column("ts_up", "peer"),
    Column("tsc_up", "peer", compiled=True),
)


def factor_bytes(case: Case, queries: int) -> tuple[int, int]:
    """The bytes of the factors of queries, and of keys and values, of all batches."""
    q, k, v = RANKS
    token = case.options["heads"] + DIM
    of_all = case.options["batch"] * BYTES[case.dtype]
    return of_all * queries * q * token, of_all * case.n * (k + v) * token


def score_products(heads: int) -> int:
    """Multiply-adds of the scores of a query and a key, in the better order."""
    q, k, _ = RANKS
    return min(q * k * (DIM + heads), heads * k * DIM)
