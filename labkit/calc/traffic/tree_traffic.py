"""Bytes, messages, steps and seconds of reduces and broadcasts along a binary tree, and a chain.

n ranks, D bytes, k blocks. Ranks are counted from the root; the children of v are 2v+1 and 2v+2. D
goes once along each edge, up or down:

    per rank        sent bytes                            messages
    reduce          D, the root none                      k
    broadcast       D for each child                      k for each child
    all-reduce      D for each edge of the rank           k for each edge

A rank sends one message and receives one at a time, so v's first child is one step behind v and the
second two, and the next block follows two steps later. `first` is how far the last rank is behind
the root, 2 log2(n+1) - 2 in a full tree:

    steps of a reduce, of a broadcast       first + 2(k-1)          2 ranks: k
    steps of an all-reduce                  twice that

In a chain every rank has the next one as its only child. The first block arrives after n - 1 steps,
and every step brings one more:

    steps       n - 1 + k - 1
    seconds     (n + k - 2) (alpha + D/k beta)          least for k = sqrt((n-2) D beta / alpha)

Papers: Sanders and Sibeyn, IPL 86(1), 2003; van de Geijn and Watts, "SUMMA: scalable universal
matrix multiplication algorithm", Concurrency: Practice and Experience 9(4), 1997.
"""

from labkit.calc.traffic.blocked_traffic import Blocked


class TreeBroadcast(Blocked):
    """Everything to each child. 4 steps for 8 ranks, 2 more per block."""

    operation, algorithm = "broadcast", "tree"
    options = frozenset({"root", "block_bytes"})

    def _num_sends(self, rank: int) -> int:
        """How often a rank sends the tensor."""
        return self._num_children(rank)

    def _num_children(self, rank: int) -> int:
        """Before v's children come 2v + 1 ranks; of those after them, at most two are its own."""
        from_root = (rank - self.root) % self.world_size
        return min(max(self.world_size - 1 - 2 * from_root, 0), 2)

    def _sent_numel(self, rank: int) -> int:
        return self.numel * self._num_sends(rank)

    def _messages(self, rank: int) -> int:
        return self._num_blocks(self.numel) * self._num_sends(rank)

    def _first_and_every(self) -> tuple[int, int]:
        """Steps from the root to the last rank, and from one block to the next.

        v + 1 in binary is a 1 and then the way from the root to v: 0 is a first child, which costs
        a step, 1 a second one, which costs two. So it costs a step per digit and one more per 1.
        Most of them has the last rank, or one before it whose way begins alike and ends in 1s only.
        """
        n = self.world_size
        ways = (n, *((n >> i << i) - 1 for i in range(n.bit_length())))
        first = max(way.bit_length() + way.bit_count() - 2 for way in ways if way > 0)
        return first, min(n - 1, 2)


class TreeReduce(TreeBroadcast):
    """Partial sums to the parent."""

    operation = "reduce"

    def _num_sends(self, rank: int) -> int:
        return int(rank != self.root)


class TreeAllReduce(TreeBroadcast):
    """A reduce to rank 0, and a broadcast from there. 8 steps for 8 ranks, where a ring takes 14.

    1000 float32 over 8 ranks: rank 0 sends 8000 bytes, rank 1 12000, rank 3 8000, rank 7 4000.
    """

    operation = "all_reduce"
    options = frozenset({"block_bytes"})
    rounds = 2

    def _num_sends(self, rank: int) -> int:
        return int(rank != 0) + self._num_children(rank)


class RingBroadcast(TreeBroadcast):
    """Along a chain; the rank before the root sends nothing. 7 steps for 8 ranks."""

    algorithm = "ring"

    def _num_children(self, rank: int) -> int:
        return int((rank + 1) % self.world_size != self.root)

    def _first_and_every(self) -> tuple[int, int]:
        return self.world_size - 1, 1
