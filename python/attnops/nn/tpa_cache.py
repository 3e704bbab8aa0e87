"""A cache of the factors of keys and values, which serves a changing batch of sequences."""

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from attnops import _checks, _choices

_OP = "tpa_cache"
_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int8)
_FACTORS = ("ak", "av", "bk", "bv")


class TPACache:
    """The factors of the tokens of some sequences, contiguous or in pages.

    A token has (k_rank + v_rank)·(heads + head_dim) numbers.

    Parameters
    ----------
    sequences : int
        How many there is room for.
    capacity : int
        The most tokens of a sequence; without page_size it has room for them from the beginning.
    heads, head_dim, k_rank, v_rank : int
    value_dim : int, optional
        The features of v; head_dim unless given.
    dtype : torch.dtype
        float32, float16 or bfloat16, or int8: then each token of ak and av and each row of bk and
        bv has a scale, and the numbers are multiples of it, from -127 to 127.
    page_size : int, optional
        Sequences take pages of that many tokens as they grow and give them back when they leave.
    pages : int, optional
        How many there are; enough for all sequences at full capacity unless given.
    theta : Tensor, optional
        (1, head_dim/2) or (head_dim/2): the rows of bk are rotated in halves by position times
        theta when they are written.

    Examples
    --------
    >>> import torch
    >>> from attnops.nn import TPACache
    >>> cache = TPACache(2, 64, heads=4, head_dim=8, dtype=torch.float32)
    >>> first = cache.join()
    >>> cache.length(first)
    0
    """

    def __init__(
        self,
        sequences: int,
        capacity: int,
        heads: int,
        head_dim: int = 64,
        k_rank: int = 2,
        v_rank: int = 2,
        *,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.bfloat16,
        page_size: int | None = None,
        pages: int | None = None,
        theta: Tensor | None = None,
    ) -> None:
        if dtype not in _TYPES:
            _checks.fail(_OP, f"dtype must be float32, float16, bfloat16 or int8; it is {dtype}")
        self.capacity = capacity
        self.paged = page_size is not None
        if page_size is None:
            if pages is not None:
                _checks.fail(_OP, "pages is for a cache with a page_size")
            page_size, pages = capacity, sequences
        if pages is None:
            pages = sequences * -(-capacity // page_size)
        sizes = {
            "sequences": sequences,
            "capacity": capacity,
            "page_size": page_size,
            "pages": pages,
            "heads": heads,
            "head_dim": head_dim,
            "k_rank": k_rank,
            "v_rank": v_rank,
        }
        for name, size in sizes.items():
            if size < 1:
                _checks.fail(_OP, f"{name} must be at least 1; it is {size}")
        self.page_size = page_size
        self.theta = None if theta is None else theta.detach().float().reshape(1, -1)
        front = (pages, page_size)
        value_dim = head_dim if value_dim is None else value_dim
        shapes = ((heads, k_rank), (heads, v_rank), (k_rank, head_dim), (v_rank, value_dim))
        self.factors = tuple(torch.zeros(*front, *shape, dtype=dtype) for shape in shapes)
        self.scales: tuple[Tensor | None, ...] = (None,) * 4
        if dtype == torch.int8:
            scales = ((), (), (k_rank,), (v_rank,))
            self.scales = tuple(torch.zeros(*front, *shape) for shape in scales)
        self._lengths: list[int | None] = [None] * sequences
        # Without pages of a given size, sequence i has page i.
        self._pages: list[list[int]] = [[] if self.paged else [i] for i in range(sequences)]
        self._free = list(reversed(range(pages))) if self.paged else []
        self._users = [0] * pages

    @property
    def dtype(self) -> torch.dtype:
        """Of the factors."""
        return self.factors[0].dtype

    @property
    def sequences(self) -> list[int]:
        """The numbers of the sequences that have joined."""
        return [i for i, length in enumerate(self._lengths) if length is not None]

    @property
    def free_pages(self) -> int:
        """How many pages no sequence has."""
        return len(self._free)

    @property
    def nbytes(self) -> int:
        """The memory of all factors and scales."""
        return sum(x.nbytes for x in (*self.factors, *self.scales) if x is not None)

    def length(self, sequence: int) -> int:
        """How many tokens a sequence has."""
        length = self._lengths[sequence] if 0 <= sequence < len(self._lengths) else None
        if length is None:
            _checks.fail(_OP, f"there is no sequence {sequence}")
        return length

    @overload
    def join(self, count: None = None) -> int: ...

    @overload
    def join(self, count: int) -> list[int]: ...

    def join(self, count: int | None = None) -> int | list[int]:
        """The number of a new sequence without tokens; with a count, a list of so many."""
        free = [i for i, length in enumerate(self._lengths) if length is None]
        wanted = 1 if count is None else count
        if len(free) < wanted:
            _checks.fail(_OP, f"{wanted} sequences cannot join; there is room for {len(free)}")
        for i in free[:wanted]:
            self._lengths[i] = 0
        return free[0] if count is None else free[:wanted]

    def fork(self, sequence: int) -> int:
        """A new sequence with the tokens of another one, whose pages it shares."""
        length = self.length(sequence)
        if not self.paged:
            _checks.fail(_OP, "fork needs a cache with a page_size")
        new = self.join()
        self._lengths[new] = length
        self._pages[new] = list(self._pages[sequence])
        for page in self._pages[new]:
            self._users[page] += 1
        return new

    def leave(self, sequence: int) -> None:
        """Ends a sequence; the pages that no other one has are free."""
        self.length(sequence)
        self._lengths[sequence] = None
        if not self.paged:
            return
        for page in self._pages[sequence]:
            self._users[page] -= 1
            if self._users[page] == 0:
                self._free.append(page)
        self._pages[sequence] = []

    def append(
        self,
        ak: Tensor,
        av: Tensor,
        bk: Tensor,
        bv: Tensor,
        sequences: Sequence[int] | None = None,
    ) -> None:
        """Writes tokens, ak (B,N,H,R_k) and so on, behind those of B sequences.

        They have the type of the cache, or any if that is int8. All sequences that have joined, in
        the order of their numbers, unless they are given.
        """
        _checks.are_tensors(_OP, ak=ak, av=av, bk=bk, bv=bv)
        chosen = self._chosen(sequences)
        if ak.ndim != 4 or ak.shape[0] != len(chosen):
            _checks.fail(
                _OP,
                "ak must have 4 axes (B,N,H,R) and as many batches as there are sequences, "
                f"{len(chosen)}; its shape is {_checks.shape(ak)}",
            )
        added = ak.shape[1]
        lengths = torch.tensor([self.length(i) for i in chosen], dtype=torch.int64)
        for i in chosen:
            if self.length(i) + added > self.capacity:
                _checks.fail(
                    _OP,
                    f"sequence {i} would have {self.length(i) + added} tokens; "
                    f"the capacity is {self.capacity}",
                )
        undo = self._grow(chosen, added) if self.paged else None
        try:
            torch.ops.attnops.tpa_cache_append(
                ak,
                av,
                bk,
                bv,
                *self.factors,
                *self.scales,
                lengths,
                self._table(chosen),
                self.theta,
            )
        except Exception:
            if undo is not None:
                self._pages, self._free, self._users = undo
            raise
        for i in chosen:
            self._lengths[i] = self.length(i) + added

    def decode(
        self,
        aq: Tensor | None = None,
        bq: Tensor | None = None,
        *,
        q: Tensor | None = None,
        sequences: Sequence[int] | None = None,
        scale: float | None = None,
        scale_q: float | None = None,
        scale_k: float | None = None,
        scale_v: float | None = None,
        split: str = "auto",
        precision: str | None = None,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """One query for each sequence, as in tpa_decode, to all its tokens where they are."""
        for name, value in (("aq", aq), ("bq", bq), ("q", q)):
            _checks.no_gradient("tpa_decode", name, value)
        chosen = self._chosen(sequences)
        lengths = torch.tensor([self.length(i) for i in chosen], dtype=torch.int64)
        out, lse = torch.ops.attnops.tpa_cache_decode(
            aq,
            bq,
            q,
            *self.factors,
            *self.scales,
            lengths,
            self._table(chosen),
            scale,
            scale_q,
            scale_k,
            scale_v,
            _choices.number("tpa_decode", "split", _choices.SPLITS, split),
            _choices.precision("tpa_decode", precision),
        )
        return (out, lse) if return_lse else out

    def gather(self, sequence: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """A sequence's ak, av, bk and bv, (1,M,…); contiguous ones of the dtype are not copied."""
        length = self.length(sequence)
        gathered = []
        for factor, scale in zip(self.factors, self.scales, strict=True):
            x = self._tokens(factor, sequence, length)
            if scale is not None:
                s = self._tokens(scale, sequence, length)
                x = x.float() * s.reshape(*s.shape, *[1] * (x.ndim - s.ndim))
            gathered.append(x.to(dtype))
        return tuple(gathered)

    def _tokens(self, x: Tensor, sequence: int, length: int) -> Tensor:
        pages = self._pages[sequence]
        if not self.paged:
            return x[pages[0] : pages[0] + 1, :length]
        used = torch.tensor(pages[: -(-length // self.page_size)], dtype=torch.int64)
        return x[used].flatten(0, 1)[:length].unsqueeze(0)

    def _chosen(self, sequences: Sequence[int] | None) -> list[int]:
        chosen = self.sequences if sequences is None else list(sequences)
        if len(set(chosen)) != len(chosen):
            _checks.fail(_OP, f"sequences must be different ones; they are {chosen}")
        return chosen

    def _table(self, chosen: list[int]) -> Tensor:
        width = max([1, *(len(self._pages[i]) for i in chosen)])
        rows = [self._pages[i] + [0] * (width - len(self._pages[i])) for i in chosen]
        return torch.tensor(rows, dtype=torch.int64).reshape(len(chosen), width)

    def _grow(self, chosen: list[int], added: int):
        """Takes pages for the new tokens; a shared page that is written to is copied."""
        size = self.page_size
        copied = [
            i
            for i in chosen
            if added > 0 and self.length(i) % size != 0 and self._users[self._pages[i][-1]] > 1
        ]
        needed = len(copied) + sum(
            -(-(self.length(i) + added) // size) - len(self._pages[i]) for i in chosen
        )
        if needed > len(self._free):
            _checks.fail(
                _OP,
                f"ak has {added} tokens a sequence, which need {needed} pages; "
                f"{len(self._free)} are free",
            )
        undo = ([list(pages) for pages in self._pages], list(self._free), list(self._users))
        for i in chosen:
            pages = self._pages[i]
            if i in copied and self._users[pages[-1]] > 1:
                shared, pages[-1] = pages[-1], self._take()
                self._users[shared] -= 1
                for x in (*self.factors, *self.scales):
                    if x is not None:
                        x[pages[-1]] = x[shared]
            while len(pages) * size < self.length(i) + added:
                pages.append(self._take())
        return undo

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page
