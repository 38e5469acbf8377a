"""How a tensor is cut over the ranks: which rows (or columns) of it each rank holds.

A `Cut` is the whole layout of one parameter, so that the same object cuts a rank's share out of the
whole tensor, and puts the shares together again. Rows may be held by several ranks (key-value heads
with more ranks than heads); then the shares must be equal, and any of them is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.comm import Group
from labkit.global_norm import as_part


@dataclass(frozen=True)
class Cut:
    """Rank r holds `held[r]` of dim `dim`; all of it, where `dim` is None (replicated)."""

    dim: int | None = None
    held: tuple[range, ...] = ()

    def __post_init__(self) -> None:
        """TypeError: a dim that is no number, or shares that are no ranges."""
        if self.dim is not None:
            arguments.whole("dim", self.dim, "which dim is cut; None: none is", least=-math.inf)
        if not isinstance(self.held, tuple | list) or not all(
            isinstance(part, range) for part in self.held
        ):
            raise TypeError(
                f"held={self.held!r:.60}: give a range for each rank, such as "
                "(range(0, 4), range(4, 8)), or use even_cut(length, dim, num_ranks)"
            )

    def share(self, whole: Tensor, rank: int) -> Tensor:
        """This rank's part: a view. TypeError for no tensor; ValueError for no rank of the cut."""
        arguments.instance("whole", whole, Tensor, "give the whole tensor")
        if self.dim is None:
            return whole
        allowed = f"a rank, 0 to {len(self.held) - 1}"
        rank = arguments.whole("rank", rank, allowed, least=0, most=len(self.held) - 1)
        part = self.held[rank]
        return whole.narrow(self.dim, part.start, len(part))

    def num_holders(self, group: Group) -> int:
        """How many ranks hold just this rank's part."""
        if self.dim is None:
            return group.size
        return self.held.count(self.held[group.rank])

    def parameter(self, whole: Tensor, rank: int) -> nn.Parameter:
        """This rank's part as a parameter of its own; frozen as the whole is."""
        share = self.share(whole.detach(), rank).clone(memory_format=torch.contiguous_format)
        parameter = nn.Parameter(share, whole.requires_grad)
        if self.dim is not None and len(self.held) > 1 and whole.requires_grad:
            parameter.register_post_accumulate_grad_hook(as_part)
        return parameter

    def whole_shape(self, share: Tensor) -> torch.Size:
        """Of the tensor that a share is part of."""
        shape = list(share.shape)
        if self.dim is not None:
            shape[self.dim] = max(part.stop for part in self.held)
        return torch.Size(shape)

    def gather(self, share: Tensor, group: Group) -> Tensor:
        """The whole tensor, on every rank, from all ranks' shares.

        Wire: an all-gather of the largest share (shorter ones are filled up with zeros).
        """
        if self.dim is None:
            return share.detach().clone()
        rows = share.detach().movedim(self.dim, 0)
        longest = max(map(len, self.held))
        filled = rows.new_zeros(longest, *rows.shape[1:])
        filled[: len(rows)] = rows
        whole = rows.new_empty(max(part.stop for part in self.held), *rows.shape[1:])
        for part, theirs in zip(self.held, group.all_gather(filled).split(longest), strict=True):
            whole[part.start : part.stop] = theirs[: len(part)]
        return whole.movedim(0, self.dim).contiguous()


REPLICATED = Cut()


class ShardedWeight(nn.Module):
    """The weight of a linear layer, or this rank's part of it, under the name it has in GPT."""

    def __init__(self, whole: Tensor, cut: Cut, group: Group) -> None:
        super().__init__()
        self.cuts = {"weight": cut}
        self.weight = cut.parameter(whole, group.rank)


def even_cut(length: int, dim: int, num_ranks: int) -> Cut:
    """As torch.tensor_split cuts: the first `length % n` ranks hold one row more.

    TypeError or ValueError for a length below 0, or no ranks.
    """
    length = arguments.whole("length", length, "rows of the whole tensor, 0 or more", least=0)
    num_ranks = arguments.whole("num_ranks", num_ranks, "1 or more")
    least, more = divmod(length, num_ranks)
    starts = [rank * least + min(rank, more) for rank in range(num_ranks + 1)]
    return Cut(dim, tuple(map(range, starts, starts[1:])))


def head_cut(heads: Sequence[range], head_dim: int, dim: int) -> Cut:
    """Rank r holds all features of the heads `heads[r]`."""
    held = (range(part.start * head_dim, part.stop * head_dim) for part in heads)
    return Cut(dim, tuple(held))
