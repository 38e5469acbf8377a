"""Bytes, messages, steps and seconds of the backend's collectives with a root.

n ranks, D bytes of the whole tensor:

    broadcast (binomial tree)   ceil(log2 n) steps     ceil(log2 n) (alpha + D beta)
    gather, scatter (direct)    n-1 steps              (n-1) (alpha + D/n beta)

After step s of the tree, 2**(s+1) ranks have the tensor. Gather and scatter go straight to and from
the root, as gloo does; the root's one link carries it all.

Paper: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH", IJHPCA 19(1), 2005.
"""

from labkit.calc.traffic.chunks import chunk_numels
from labkit.calc.traffic.collective_cost import Collective, Link


class BinomialBroadcast(Collective):
    """The whole tensor to each child: the root of 8 sends 3 D, its last child nothing."""

    operation, algorithm = "broadcast", "binomial"
    options = frozenset({"root"})

    @property
    def steps(self) -> int:
        """3 for 8 ranks."""
        return (self.world_size - 1).bit_length()

    def _sent_numel(self, rank: int) -> int:
        return self.numel * self._messages(rank)

    def _messages(self, rank: int) -> int:
        """Counted from the root, rank r has a child r + 2**s for each step s after it got D."""
        from_root = (rank - self.root) % self.world_size
        later_steps = range(from_root.bit_length(), self.steps)
        return sum(from_root + 2**step < self.world_size for step in later_steps)

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        return self.steps * fast.message_seconds(self.nbytes)


class DirectGather(Collective):
    """Each rank sends its shard to the root, which sends nothing."""

    operation, algorithm = "gather", "direct"
    options = frozenset({"root"})

    @property
    def steps(self) -> int:
        """One after the other, over the root's link."""
        return self.world_size - 1

    def _total_bytes(self) -> float:
        return (self.world_size - 1) * self.nbytes / self.world_size

    def _sent_numel(self, rank: int) -> int:
        return 0 if rank == self.root else chunk_numels(self.numel, self.world_size)[rank]

    def _messages(self, rank: int) -> int:
        return int(rank != self.root)

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        return self.steps * fast.message_seconds(self.nbytes / self.world_size)


class DirectScatter(DirectGather):
    """A gather, run backwards: the root sends every other rank its shard."""

    operation = "scatter"

    def _sent_numel(self, rank: int) -> int:
        others = self.numel - chunk_numels(self.numel, self.world_size)[self.root]
        return others if rank == self.root else 0

    def _messages(self, rank: int) -> int:
        return self.steps if rank == self.root else 0
