"""Bytes, messages, steps and seconds of the ring: formulas, written apart from the code they judge.

n ranks, D bytes. Each rank sends to its right neighbour and receives from its left one. A ring cuts
the tensor into n chunks by torch.tensor_split's rule, so uneven sizes have exact answers too:

    per rank              sent bytes      messages, steps     seconds
    reduce-scatter        (n-1)/n D       n-1                 (n-1) (alpha + D/n beta)
    all-gather            (n-1)/n D       n-1                 the same
    all-reduce            2(n-1)/n D      2(n-1)              both

A ring over several hosts, host after host, has one slow link per host in it: from the last rank of
each. A rank sends in each step what came in the one before, so the ring goes at their pace.

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 69(2), 2009.
"""

from labkit.calc.traffic.chunks import chunk_numels
from labkit.calc.traffic.collective_cost import Collective, Link, Tiers


class RingReduceScatter(Collective):
    """Chunk s starts at rank s + 1 and goes right until it is complete at rank s."""

    operation, algorithm = "reduce_scatter", "ring"

    @property
    def steps(self) -> int:
        """One per other chunk, in every round."""
        return self.rounds * (self.world_size - 1)

    def _sent_numel(self, rank: int) -> int:
        """Every chunk but its own, which is the one that it ends with."""
        return self.numel - self._chunk(rank)

    def _messages(self, rank: int) -> int:
        return self.steps

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        return self.steps * slow.message_seconds(self.nbytes / self.world_size)

    def _chunk(self, number: int) -> int:
        return chunk_numels(self.numel, self.world_size)[number % self.world_size]


class RingAllGather(RingReduceScatter):
    """Chunk s starts at rank s and goes right."""

    operation = "all_gather"

    def _sent_numel(self, rank: int) -> int:
        """Every chunk but its right neighbour's, who has that already."""
        return self.numel - self._chunk(rank + 1)


class RingAllReduce(RingReduceScatter):
    """A reduce-scatter and an all-gather.

    10 float32 over 4 ranks, chunks 3, 3, 2, 2: rank 0 sends (7 + 7) * 4, rank 2 (8 + 8) * 4.
    """

    operation = "all_reduce"
    options = frozenset({"ranks_per_host"})
    rounds = 2

    @property
    def tier_steps(self) -> Tiers[int]:
        """All at the pace of the slow links, if there are any."""
        return Tiers(0, self.steps) if self.num_hosts > 1 else Tiers(self.steps, 0)

    def _sent_numel(self, rank: int) -> int:
        return 2 * self.numel - self._chunk(rank) - self._chunk(rank + 1)

    def _tier_numel(self, rank: int) -> Tiers[int]:
        sent = self._sent_numel(rank)
        return Tiers(0, sent) if self._host_of(rank) != self._host_of(rank + 1) else Tiers(sent, 0)

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        chunk_bytes = self.nbytes / self.world_size
        links = [fast] * (self.ranks_per_host != 1) + [slow] * (self.num_hosts > 1)
        return self.steps * max((link.message_seconds(chunk_bytes) for link in links), default=0)
