"""Bytes, messages, steps and seconds of the ring: formulas, written apart from the code they judge.

n ranks, D bytes. Each rank sends to its right neighbour and receives from its left one. A ring cuts
the tensor into n chunks by torch.tensor_split's rule, so uneven sizes have exact answers too:

    per rank              sent bytes      messages, steps     seconds
    reduce-scatter        (n-1)/n D       n-1                 (n-1) (alpha + D/n beta)
    all-gather            (n-1)/n D       n-1                 the same
    all-reduce            2(n-1)/n D      2(n-1)              both

Over H hosts of L ranks, host after host, one link of each host's ring is slow: from its last rank.
K rings may share the tensor. Ring j takes the ranks of each host in the order j, j+1, ... around,
so that the rings leave a host by K different ranks, each with its adapter:

    of 2(n-1) steps       2(H-1) wait for a slow link, the others for a fast one
    slowest adapter       2(n-1)/n D / K, of one ring; of all K where the ranks share an adapter
    busiest fast link     2(n-1)/n D, or (K-1)/K of it where every rank is the last of a ring
    seconds               latencies of the steps + the longer of the two rows of bytes

That is how NCCL estimates its rings. It is an upper bound: while a link is busy with the bytes of
one message, the latency of another passes.

Papers: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 69(2), 2009. Source: NCCL, src/graph/tuning.cc; NCCL issue 530.
"""

from labkit.calc.traffic.chunks import chunk_numels
from labkit.calc.traffic.collective_cost import Collective, Link, Tiers


class RingReduceScatter(Collective):
    """Chunk s starts at rank s + 1 and goes right until it is complete at rank s."""

    operation, algorithm = "reduce_scatter", "ring"
    options = frozenset({"ranks_per_host", "rings"})

    @property
    def steps(self) -> int:
        """One per other chunk, in every round."""
        return self.rounds * (self.world_size - 1)

    @property
    def tier_steps(self) -> Tiers[int]:
        """64 ranks on 8 hosts, all-reduce: 112 fast and 14 slow."""
        slow = self.rounds * (self.num_hosts - 1)
        return Tiers(self.steps - slow, slow)

    def _sent_numel(self, rank: int) -> int:
        return self._tier_numel(rank).total

    def _tier_numel(self, rank: int) -> Tiers[int]:
        """Each ring takes a share of every chunk, by tensor_split's rule again."""
        chunks = chunk_numels(self.numel, self.world_size)
        fast = slow = 0
        for ring in range(self.rings):
            right = self._right_of(rank, ring)
            own, next_one = (chunk_numels(chunks[each], self.rings)[ring] for each in (rank, right))
            whole = sum(chunk_numels(chunk, self.rings)[ring] for chunk in chunks)
            sent = self._sent_of(whole, own, next_one)
            if self._host_of(rank) == self._host_of(right):
                fast += sent
            else:
                slow += sent
        return Tiers(fast, slow)

    def _right_of(self, rank: int, ring: int) -> int:
        """The rank to which this one sends in a ring; in the first ring the next number."""
        per_host = self.world_size // self.num_hosts
        host, place = divmod(rank, per_host)
        if (place - ring) % per_host == per_host - 1:
            host = (host + 1) % self.num_hosts
        return host * per_host + (place + 1) % per_host

    def _sent_of(self, whole: int, own: int, next_one: int) -> int:
        """Every chunk but its own, which is the one that it ends with."""
        return whole - own

    def _messages(self, rank: int) -> int:
        return self.rings * self.steps

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        per_host, steps = self.world_size // self.num_hosts, self.tier_steps
        nbytes = self.steps / self.world_size * self.nbytes
        on_fast = on_slow = 0.0
        if per_host > 1:
            is_last_of_one = self.num_hosts > 1 and self.rings == per_host
            on_fast = nbytes * (1 - is_last_of_one / per_host)
        if self.num_hosts > 1:
            on_slow = nbytes if shared else nbytes / self.rings
        latency = steps.fast * fast.alpha + steps.slow * slow.alpha
        return latency + max(on_fast * fast.beta, on_slow * slow.beta)


class RingAllGather(RingReduceScatter):
    """Chunk s starts at rank s and goes right."""

    operation = "all_gather"

    def _sent_of(self, whole: int, own: int, next_one: int) -> int:
        """Every chunk but its right neighbour's, who has that already."""
        return whole - next_one


class RingAllReduce(RingReduceScatter):
    """A reduce-scatter and an all-gather.

    10 float32 over 4 ranks, chunks 3, 3, 2, 2: rank 0 sends (7 + 7) * 4, rank 2 (8 + 8) * 4.
    1 GB, 8 ranks, 4 per host, 300 GB/s inside and 25 GB/s across: 70 ms; over 4 rings 17.5 ms.
    """

    operation = "all_reduce"
    rounds = 2

    def _sent_of(self, whole: int, own: int, next_one: int) -> int:
        return 2 * whole - own - next_one
