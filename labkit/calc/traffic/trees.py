"""Cost of collectives on trees: reduces and broadcasts, double trees, gather and scatter at a root.

Along a binary tree, and a chain: n ranks, D bytes, k blocks. Ranks are counted from the root; the
children of v are 2v+1 and 2v+2. D goes once along each edge, up or down:

    per rank        sent bytes                            messages
    reduce          D, the root none                      k
    broadcast       D for each child                      k for each child
    all-reduce      D for each edge of the rank           k for each edge

A rank sends one message and receives one at a time, so v's first child is one step behind v and the
second child two, and the next block follows two steps later. `first` is the number of steps that
the last rank is behind the root, 2 log2(n+1) - 2 in a full tree:

    steps of a reduce, of a broadcast       first + 2(k-1)          2 ranks: k
    steps of an all-reduce                  twice that

In a chain every rank has the next one as its only child. The first block arrives after n - 1 steps,
and every step brings one more:

    steps       n - 1 + k - 1
    seconds     (n + k - 2) (alpha + D/k beta)          least for k = sqrt((n-2) D beta / alpha)

In a double-tree all-reduce each half of the tensor goes up and down a tree of its own. (The first
half of an odd number is longer by one.) The root of the tree over numbers 1 to m is the largest
power of two in m. Its left subtree has the numbers before it and its right subtree those after it,
made in the same way. In tree 0, rank r is number r + 1. Tree 1 is tree 0 shifted left by one rank,
cyclically.

    per rank      sent bytes                                              messages
    all-reduce    D/2 for each edge of tree 0 + D/2 for each of tree 1    k for each edge

Steps, with k blocks of each half: in the paper's schedule a rank's two edges in each direction take
turns. So a level costs 2 steps at most and a further block 2, up and down again:
4 (floor(log2 n) + k - 1), or 2k for two ranks. This is an upper bound; some n need fewer.

The backend's collectives with a root:

    broadcast (binomial tree)   ceil(log2 n) steps     ceil(log2 n) (alpha + D beta)
    gather, scatter (direct)    n-1 steps              (n-1) (alpha + D/n beta)

After step s of the tree, 2**(s+1) ranks have the tensor. Gather and scatter go directly to and from
the root, as in gloo; the root's one link carries all bytes.

Papers: Sanders and Sibeyn, IPL 86(1), 2003; van de Geijn and Watts, "SUMMA: scalable universal
matrix multiplication algorithm", Concurrency: Practice and Experience 9(4), 1997; Sanders, Speck
and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
Computing 35(12), 2009; Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", IJHPCA 19(1), 2005.
"""

from labkit.calc.traffic.cost import Blocked, Collective, Link, chunk_numels


class TreeBroadcast(Blocked):
    """A broadcast along a tree, everything to each child. 4 steps for 8 ranks, 2 more per block."""

    operation, algorithm = "broadcast", "tree"
    options = frozenset({"root", "block_bytes"})

    def _num_sends(self, rank: int) -> int:
        """Times that a rank sends the tensor."""
        return self._num_children(rank)

    def _num_children(self, rank: int) -> int:
        """Return the number of children: v's first child is 2v + 1."""
        from_root = (rank - self.root) % self.world_size
        return min(max(self.world_size - 1 - 2 * from_root, 0), 2)

    def _sent_numel(self, rank: int) -> int:
        return self.numel * self._num_sends(rank)

    def _messages(self, rank: int) -> int:
        return self._num_blocks(self.numel) * self._num_sends(rank)

    def _first_and_every(self) -> tuple[int, int]:
        """Return the steps from the root to the last rank, and from one block to the next.

        v + 1 in binary is a 1 followed by the path from the root to v: 0 is a first child, which
        costs one step, 1 a second child, which costs two. The longest path is that of the last
        rank, or of an earlier one whose path begins alike and then has only 1s.
        """
        n = self.world_size
        ways = (n, *((n >> i << i) - 1 for i in range(n.bit_length())))
        first = max(way.bit_length() + way.bit_count() - 2 for way in ways if way > 0)
        return first, min(n - 1, 2)


class TreeReduce(TreeBroadcast):
    """A reduce along a tree: partial sums to the parent."""

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
    """A broadcast along a chain; the rank before the root sends nothing. 7 steps for 8 ranks."""

    algorithm = "ring"

    def _num_children(self, rank: int) -> int:
        return int((rank + 1) % self.world_size != self.root)

    def _first_and_every(self) -> tuple[int, int]:
        return self.world_size - 1, 1


class DoubleTreeAllReduce(Blocked):
    """An all-reduce on two trees: 12 steps for 8 ranks, 4 more per block.

    1001 float32 over 4 ranks, halves 501 and 500: rank 1 has three edges in tree 0 and one in
    tree 1, and sends (3 * 501 + 500) * 4.
    """

    operation, algorithm = "all_reduce", "double_tree"
    rounds = trees = 2

    def _sent_numel(self, rank: int) -> int:
        """Return the elements that a rank sends: a half along each edge of its tree, up or down."""
        return sum(edges * half for edges, half in self._edges_and_halves(rank))

    def _messages(self, rank: int) -> int:
        """Return the messages of a rank; an empty half is one block."""
        return sum(edges * self._num_blocks(half) for edges, half in self._edges_and_halves(rank))

    def _edges_and_halves(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return, for each tree, the neighbours of `rank` and the number of elements."""
        n, shorter = self.world_size, self.numel // 2
        return (
            (_neighbours(rank + 1, n), self.numel - shorter),
            (_neighbours((rank + 1) % n + 1, n), shorter),
        )

    def _first_and_every(self) -> tuple[int, int]:
        """Return two steps per level and two per block; one each for two ranks."""
        every = min(self.world_size - 1, 2)
        depth = self.world_size.bit_length() - 1
        return every * depth, every


def _neighbours(number: int, size: int) -> int:
    """Return parent and children of `number` in the tree over 1 to `size`, searched from the
    root."""
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


class BinomialBroadcast(Collective):
    """The whole tensor to each child: the root of 8 sends 3 D, its last child nothing."""

    operation, algorithm = "broadcast", "binomial"
    options = frozenset({"root"})

    @property
    def steps(self) -> int:
        """Steps of the binomial tree: 3 for 8 ranks."""
        return (self.world_size - 1).bit_length()

    def _sent_numel(self, rank: int) -> int:
        return self.numel * self._messages(rank)

    def _messages(self, rank: int) -> int:
        """Return a rank's messages: counted from the root, r has a child r + 2**s for each later
        step s."""
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
        """Steps: one message after the other over the root's link."""
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
