"""What the distributed operators share: collectives with gradients, and agreement on shapes."""

import zlib
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor

from attnops import _checks

# Numbers that ranks tell each other of a call: as many for every operator, since ranks that
# disagree about the operator must still understand each other.
_NUMBERS = 32
_checks_on = True


def set_checks(on: bool) -> None:
    """Whether calls whose sizes are given compare shapes among the ranks first; they do at first.

    Ranks whose shapes differ raise the same error with it; without it their collectives may hang
    until the group's timeout, or end the process.
    """
    global _checks_on
    _checks_on = on


def checks_on() -> bool:
    return _checks_on


class Shards:
    """The rank's place among the shards of a sequence."""

    def __init__(self, group: dist.ProcessGroup | None, *, trusted: bool = False) -> None:
        """`trusted`: shapes are known to fit together, and every rank has the gradient of a result

        that every rank has, not a share of it. Both are so with DTensor.
        """
        self.trusted = trusted
        if not dist.is_initialized():
            raise ValueError("attnops.distributed: torch.distributed is not initialised")
        self.group = dist.group.WORLD if group is None else group
        self.rank = dist.get_rank(self.group)
        self.size = dist.get_world_size(self.group)
        if self.rank < 0:
            raise ValueError("attnops.distributed: this process is not in the group")

    @classmethod
    def of(cls, group) -> "Shards":
        return group if isinstance(group, Shards) else cls(group)

    def agree(
        self,
        op: str,
        tokens: dict[str, int],
        sizes: dict[str, Sequence[int] | None],
        fixed: Mapping[str, object],
        device: torch.device,
    ) -> list[list[int]]:
        """The sizes of all shards for each of `tokens`, which are the rank's own.

        `fixed` are shapes without their tokens, and options, that all ranks must share.
        """
        for name, given in sizes.items():
            if given is None:
                continue
            if len(given) != self.size:
                _checks.fail(op, f"{name} has {len(given)} sizes; the group has {self.size} ranks")
            own = tokens[name]
            if given[self.rank] != own:
                _checks.fail(
                    op,
                    f"{name} says {given[self.rank]} tokens for rank {self.rank}; its shard has "
                    f"{own}",
                )
        if self.trusted:
            return [list(given or ()) for given in sizes.values()]
        complete = all(given is not None for given in sizes.values())
        if torch.compiler.is_compiling():
            if not complete:
                missing = next(name for name, given in sizes.items() if given is None)
                _checks.fail(op, f"{missing} must be given under torch.compile")
            return [list(given or ()) for given in sizes.values()]
        if complete and not _checks_on:
            return [list(given or ()) for given in sizes.values()]
        return self._exchange(op, tokens, sizes, fixed, device)

    def _exchange(self, op, tokens, sizes, fixed, device) -> list[list[int]]:
        numbers = [zlib.crc32(op.encode())]
        # Every rank must have been given the same sizes, or none.
        numbers.extend(
            0 if given is None else 1 + zlib.crc32(str(list(given)).encode())
            for given in sizes.values()
        )
        numbers.extend(tokens.values())
        texts = {name: _described(value) for name, value in fixed.items()}
        numbers.extend(zlib.crc32(text.encode()) for text in texts.values())
        if len(numbers) > _NUMBERS:
            raise AssertionError(f"{op}: {len(numbers)} numbers to agree on")
        own = torch.tensor(numbers + [0] * (_NUMBERS - len(numbers)), device=device)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(gathered, own, group=self.group)
        all_numbers = [x.tolist() for x in gathered]
        first = 1 + len(sizes) + len(tokens)
        for rank, other in enumerate(all_numbers):
            if other[0] != all_numbers[0][0]:
                _checks.fail(op, f"rank {rank} and rank 0 of the group call different operators")
            for i, name in enumerate(sizes):
                if other[1 + i] != all_numbers[0][1 + i]:
                    _checks.fail(op, f"{name} differs between rank {rank} and rank 0 of the group")
            for i, name in enumerate(texts):
                if other[first + i] != all_numbers[0][first + i]:
                    _checks.fail(
                        op,
                        f"{name} differs between rank {rank} and rank 0 of the group; here it is "
                        f"{texts[name]}",
                    )
        at = 1 + len(sizes)
        return [[other[at + i] for other in all_numbers] for i in range(len(tokens))]

    def start(self, sizes: Sequence[int]) -> int:
        """The number of the rank's first token in the sequence."""
        return sum(sizes[: self.rank])

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum over the ranks; its gradient is the sum of theirs."""
        return _AllReduce.apply(x, self.group)

    def all_gather(self, x: Tensor) -> Tensor:
        """(ranks, …); its gradient is the sum over the ranks of that of the own part."""
        return _AllGather.apply(x, self.group, self.rank)


def _described(value) -> str:
    """A shape with its type, or an option."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {value.dtype}"
    return (
        str(tuple(value))
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )


def without_axis(x: Tensor | None, *axes: int) -> str:
    """The shape of a tensor, the axes of its tokens left out, and its type."""
    if x is None:
        return "None"
    kept = [size for i, size in enumerate(x.shape) if i not in [a % x.ndim for a in axes]]
    return f"{tuple(kept)} {x.dtype}"


def gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(ranks, …), without a gradient."""
    gathered = funcol.all_gather_single(x.contiguous().view(1, -1), 0, group)
    return funcol.wait_tensor(gathered).view(-1, *x.shape)


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return funcol.wait_tensor(funcol.all_reduce(x.contiguous(), "sum", group))

    @staticmethod
    def backward(ctx, d_out: Tensor):
        return funcol.wait_tensor(funcol.all_reduce(d_out.contiguous(), "sum", ctx.group)), None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup, rank: int) -> Tensor:
        ctx.group, ctx.rank = group, rank
        return gather(x, group)

    @staticmethod
    def backward(ctx, d_out: Tensor):
        total = funcol.wait_tensor(funcol.all_reduce(d_out.contiguous(), "sum", ctx.group))
        return total[ctx.rank].clone(), None, None


def softmax_over_sequence(x: Tensor, axis: int, shards: Shards) -> Tensor:
    """Softmax over the tokens of all ranks, in float32, from the log-sum-exp of every rank."""
    wide = x.float()
    own = torch.logsumexp(wide, axis, keepdim=True)
    total = torch.logsumexp(shards.all_gather(own), 0)
    return torch.exp(wide - total)
