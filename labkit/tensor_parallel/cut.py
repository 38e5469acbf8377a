"""How a tensor is cut over the ranks: which rows (or columns) of it each rank holds.

A `Cut` is the whole layout of one parameter, so that the same object cuts a rank's share out of the
whole tensor, and puts the shares together again. Rows may be held by several ranks (key-value heads
with more ranks than heads); then the shares must be equal, and any of them is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit.comm import Group


@dataclass(frozen=True)
class Cut:
    """Rank r holds `held[r]` of dim `dim`; all of it, where `dim` is None (replicated)."""

    dim: int | None = None
    held: tuple[range, ...] = ()

    def share(self, whole: Tensor, rank: int) -> Tensor:
        """This rank's part: a view."""
        if self.dim is None:
            return whole
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
        return nn.Parameter(share, whole.requires_grad)

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
    """As torch.tensor_split cuts: the first `length % n` ranks hold one row more."""
    least, more = divmod(length, num_ranks)
    starts = [rank * least + min(rank, more) for rank in range(num_ranks + 1)]
    return Cut(dim, tuple(map(range, starts, starts[1:])))


def head_cut(heads: Sequence[range], head_dim: int, dim: int) -> Cut:
    """Rank r holds all features of the heads `heads[r]`."""
    held = (range(part.start * head_dim, part.stop * head_dim) for part in heads)
    return Cut(dim, tuple(held))
