"""Bytes, messages, steps and seconds of a double-tree all-reduce.

n ranks in order, D bytes. Each half of the tensor, the first of an odd number longer by one, goes
up and down a tree of its own. The tree over numbers 1 to m: its root is the largest power of two in
m, to its left is the tree over those before it, to its right one over those behind it, made in the
same way. In tree 0, rank r is number r + 1. Tree 1 is tree 0 moved to the left by one rank, round
the end.

    per rank      sent bytes                                              messages
    all-reduce    D/2 for each edge of tree 0 + D/2 for each of tree 1    k for each edge

Steps, with k blocks of each half: by the paper's schedule a rank's two edges in either direction
take turns, so that a level costs 2 steps at most and a further block 2, up and down again:
4 (floor(log2 n) + k - 1), or 2k for two ranks. That suffices; some n need fewer.
Paper: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
scan", Parallel Computing 35(12), 2009.
"""

from labkit.calc.traffic.blocked_traffic import Blocked


class DoubleTreeAllReduce(Blocked):
    """12 steps for 8 ranks, 4 more per block.

    1001 float32 over 4 ranks, halves 501 and 500: rank 1 has three edges in tree 0 and one in
    tree 1, and sends (3 * 501 + 500) * 4.
    """

    operation, algorithm = "all_reduce", "double_tree"
    rounds = trees = 2

    def _sent_numel(self, rank: int) -> int:
        """A half along each edge of its tree, up or down."""
        return sum(edges * half for edges, half in self._edges_and_halves(rank))

    def _messages(self, rank: int) -> int:
        """An empty half is a block too."""
        return sum(edges * self._num_blocks(half) for edges, half in self._edges_and_halves(rank))

    def _edges_and_halves(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Of each tree: the neighbours of `rank`, and the elements."""
        n, shorter = self.world_size, self.numel // 2
        return (
            (_neighbours(rank + 1, n), self.numel - shorter),
            (_neighbours((rank + 1) % n + 1, n), shorter),
        )

    def _first_and_every(self) -> tuple[int, int]:
        """Two steps per level and two per block; one where nobody has two children: two ranks."""
        every = min(self.world_size - 1, 2)
        depth = self.world_size.bit_length() - 1
        return every * depth, every


def _neighbours(number: int, size: int) -> int:
    """Parent and children of `number` in the tree over 1 to `size`: found by going down to it."""
    has_parent = False
    while True:
        root = 1 << (size.bit_length() - 1)
        if number == root:
            return has_parent + (root > 1) + (size > root)
        if number < root:
            size = root - 1
        else:
            number, size = number - root, size - root
        has_parent = True
