"""Prioritised replay in shards: each rank keeps transitions, and draws go by priority over all.

    rank 0   transitions, sum tree    total 5.0 -+
    rank 1   transitions, sum tree    total 1.5 -+-> all_gather: 5.0 | 1.5 | 3.5, together 10.0
    rank 2   transitions, sum tree    total 3.5 -+

    random numbers, equal on all ranks      0.31        0.55        0.93
    place on a line of all priorities       3.1         5.5         9.3
    which shard, by the totals              rank 0      rank 1      rank 2
    which slot, down the tree of the shard  3.1 -> 2    0.5 -> 0    2.8 -> 4

    all_to_all   rows with their weights    from the shard to the learner of the draw
    all_to_all   new priorities             from the learner back to the shard

The line is that of one memory with all shards behind each other. So the ranks draw what one process
would draw with the same numbers, whatever the sizes of the shards. Every rank knows the shard of
each draw, from the totals alone, and so how many rows it receives from whom.

Layout: a rank has its transitions, (capacity, W), and a tree of sums of their priorities, float64.
The B draws are dealt out in blocks: rank r learns from every draw k with k * n // B = r.
Wire, for n ranks: each sends 16 bytes to every other, a row of W + 1 numbers for each draw from its
shard that another rank learns from, and 8 bytes for each draw that it learns from and another owns.

A weight (N P)^-beta undoes the bias of a transition's probability, P = p / total. The weights are
divided by the largest that any transition of any shard has now, that of the smallest priority. N
and the total then cancel: the weight is (p / smallest)^-beta, at most 1.
Papers: Schaul et al., "Prioritized experience replay", arXiv:1511.05952, sections 3.3 and 3.4;
Horgan et al., "Distributed prioritized experience replay" (Ape-X), arXiv:1803.00933.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group

FAN_OUT = 64
"""Children of an inner node. With 2, as in the paper, a draw among 50,000 slots takes 16 steps."""


class SumTree:
    """Priorities of slots, in a tree: an inner node is the sum of its children.

    levels[1]      9          6           here with 2 children of each node
    levels[0]    4   5      6   0         leaves: the priorities of slots 0, 1, 2 and 3
    """

    def __init__(self, capacity: int) -> None:
        """All priorities are 0."""
        self.levels: list[Tensor] = []
        num = capacity
        while num > 1 or not self.levels:
            parents = -(-num // FAN_OUT)
            self.levels.append(torch.zeros(parents * FAN_OUT, dtype=torch.float64))
            num = parents
        self.priorities = self.levels[0][:capacity]
        """By slot, (capacity,): a view of the leaves."""

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return self.levels[-1].sum().item()

    def set(self, slots_N: Tensor, priorities_N: Tensor) -> None:
        """Set priorities, and the sums above them."""
        self.levels[0][slots_N] = priorities_N
        for lower, upper in itertools.pairwise(self.levels):
            slots_N = slots_N // FAN_OUT
            upper[slots_N] = lower.view(-1, FAN_OUT)[slots_N].sum(1)

    def find(self, places_N: Tensor) -> Tensor:
        """Return the slot at each place on the line of all priorities, (N,) from 0 to the total.

        A slot of priority 0 is never found, not even at a place that rounding moved to the end.
        """
        nodes_N, places_N1 = torch.zeros_like(places_N, dtype=torch.int64), places_N[:, None]
        for level in reversed(self.levels):
            children_NF = level.view(-1, FAN_OUT)[nodes_N]
            ends_NF = children_NF.cumsum(1)
            last_used_N = ends_NF.argmax(1)  # the first of all ends that are equal to the last one
            child_N = torch.minimum((ends_NF <= places_N1).sum(1), last_used_N)
            starts_NF = ends_NF - children_NF
            places_N1 = places_N1 - starts_NF.gather(1, child_N[:, None])
            nodes_N = FAN_OUT * nodes_N + child_N
        return nodes_N


class Sample(NamedTuple):
    """The draws that one rank learns from, and where priorities go back to."""

    rows_BW: Tensor
    weights_B: Tensor
    """Importance weights, above 0 and at most 1."""
    num_from: list[int]
    """By rank: how many of these rows are its own. The rows are in the order of their ranks."""
    slots: Tensor
    """The drawn slots of this rank's shard, in the order of the ranks that learn from them."""
    num_to: list[int]
    """By rank: how many of `slots` it learns from."""


class ShardedReplay:
    """One rank's shard of a memory, which draws over the shards of all ranks.

    memory = ShardedReplay(world, capacity=10_000, width=11)
    memory.add(rows_NW, priorities_N)                   # this rank's own experience
    sample = memory.sample(64, beta=0.4)                # 64 in all, and 64 / n for this rank
    errors = learn(sample.rows_BW, sample.weights_B)
    memory.update(sample, (errors.abs() + 0.01) ** 0.6)
    """

    def __init__(
        self,
        group: Group,
        capacity: int,
        width: int,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Make an empty shard. capacity: rows on this rank; may differ from the others'.

        width: W, the numbers of a row. seed: equal on all ranks, since they draw the same numbers.
        TypeError and ValueError for a capacity or width that is not a whole number, 1 or more.
        """
        self.group = group
        self.capacity = arguments.whole("capacity", capacity, "1 or more rows on this rank")
        width = arguments.whole("width", width, "1 or more numbers in a row")
        self.rows_NW = torch.zeros(self.capacity, width, dtype=dtype)
        self.tree = SumTree(self.capacity)
        self.num_added = 0
        """Rows added so far. Those beyond the capacity have replaced the oldest."""
        self._random = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        """The number of rows that this rank has now."""
        return min(self.num_added, self.capacity)

    def add(self, rows_NW: Tensor, priorities_N: Tensor) -> None:
        """Add rows to this rank's shard, instead of its oldest ones if it is full. Sends nothing.

        ValueError: shapes that do not fit, more rows than the capacity, or a priority that is not
        finite or not above 0, which nobody would ever draw or anybody else besides.
        """
        num, width = self.rows_NW.shape
        if rows_NW.shape != (len(rows_NW), width) or len(rows_NW) > num:
            raise ValueError(
                f"rows of shape {tuple(rows_NW.shape)}: give (N, {width}), N at most {num}"
            )
        _check_priorities(priorities_N, len(rows_NW))
        slots_N = (self.num_added + torch.arange(len(rows_NW))) % self.capacity
        self.rows_NW[slots_N] = rows_NW.to(self.rows_NW.dtype)
        self.tree.set(slots_N, priorities_N.double())
        self.num_added += len(rows_NW)

    def sample(self, batch: int, beta: float) -> Sample:
        """Draw `batch` rows in proportion to their priorities, over all ranks; every rank calls it.

        A row may be drawn several times. Returns the draws of this rank's block. beta: 1 undoes
        the bias of the draws in full, 0 not at all. ValueError if the memory is empty everywhere.
        """
        group = self.group
        least = self.tree.priorities[: len(self)].min().item() if len(self) else torch.inf
        mine = torch.tensor([[self.tree.total, least]], dtype=torch.float64)
        totals_n, least_n = group.all_gather(mine).unbind(1)
        total = totals_n.sum()
        if not total:
            raise ValueError("the memory is empty on all ranks: add transitions before you sample")

        # First the shard of each draw, equal on all ranks. Then the slot, on the shard's rank.
        places_B = torch.rand(batch, dtype=torch.float64, generator=self._random) * total
        ends_n = totals_n.cumsum(0)
        last_used = int(totals_n.nonzero().max())  # for a place that rounding moved to the end
        owners_B = torch.searchsorted(ends_n, places_B, right=True).clamp(max=last_used)
        learners_B = torch.arange(batch) * group.size // batch
        is_mine_B = owners_B == group.rank
        places = places_B[is_mine_B] - (ends_n - totals_n)[group.rank]
        slots = self.tree.find(places.clamp(min=0))

        weights = (self.tree.priorities[slots] / least_n.min()) ** -beta
        rows = torch.cat([self.rows_NW[slots], weights[:, None].to(self.rows_NW.dtype)], 1)
        num_to = learners_B[is_mine_B].bincount(minlength=group.size).tolist()
        num_from = owners_B[learners_B == group.rank].bincount(minlength=group.size).tolist()
        received = group.all_to_all(rows, num_to, num_from)
        return Sample(received[:, :-1], received[:, -1], num_from, slots, num_to)

    def update(self, sample: Sample, priorities_B: Tensor) -> None:
        """Send new priorities, (B,), to the ranks that own the rows of a sample; every rank calls.

        A row that was drawn several times keeps one of them: the learners' are equal up to
        rounding. ValueError as in `add`.
        """
        _check_priorities(priorities_B, len(sample.rows_BW))
        back = self.group.all_to_all(priorities_B.double(), sample.num_from, sample.num_to)
        self.tree.set(sample.slots, back)


def _check_priorities(priorities_N: Tensor, num: int) -> None:
    if priorities_N.shape != (num,):
        raise ValueError(f"priorities of shape {tuple(priorities_N.shape)}: give one by row, {num}")
    if not ((priorities_N > 0) & priorities_N.isfinite()).all():
        raise ValueError(
            f"priorities from {priorities_N.min().item()} to {priorities_N.max().item()}: give "
            "finite ones above 0, such as (abs(error) + 0.01) ** 0.6"
        )
