"""Bytes, messages, steps and seconds of an all-reduce over two tiers of links.

L ranks on each of H hosts, n = L * H, D bytes. By BlueConnect's account: a reduce-scatter within
each host leaves every rank with D/L, the ranks with the same D/L all-reduce it between the hosts,
and an all-gather within each host ends it.

    per rank              fast                    slow
    steps, messages       2(L-1)                  2(H-1)
    sent bytes            2(L-1)/L D              2(H-1)/H D/L
    flat ring             2(n-1)/n D, or none     2(n-1)/n D for the last rank of a host, or none
    L flat rings          L-1 of L parts of       one part in L of 2(n-1)/n D, for every rank
                          2(n-1)/n D

Against one flat ring it uses L adapters instead of one. Against L rings, which is what NCCL makes,
it saves latencies, and (H-1)/H against (n-1)/n of the bytes on an adapter; its phases, however,
follow each other, unless the tensor goes in blocks. Where the ranks of a host share one adapter,
all L of them send over it at once in the slow phase, each at 1/L of its speed.

In k blocks, t seconds for each of the phases within hosts and x for the phase between them, the
fast links have 2 k t to do and the slow ones k x, one phase of a block beside another of the next:

    k = 1       2 t + x
    k > 1       2 t + 2 max(t, x) + (k-2) max(2 t, x)

Paper: Cho et al., "BlueConnect: Decomposing all-reduce for deep learning on heterogeneous network
hierarchy", SysML 2019.
"""

import math
from collections.abc import Sequence

from labkit.calc.traffic.blocked_traffic import num_blocks
from labkit.calc.traffic.chunks import chunk_numels
from labkit.calc.traffic.collective_cost import Collective, Link, Tiers


class HierarchicalAllReduce(Collective):
    """10 float32 on 2 hosts of 2: every rank carries 5 elements across.

    Rank 0 sends 5 + 5 to its neighbour and 2 + 3 to rank 2: tier_bytes == (40, 20).
    1 GB, 8 ranks, 4 per host, 300 GB/s inside and 25 GB/s across: 15 ms; shared: 45 ms; a flat
    ring 70 ms.
    """

    operation, algorithm = "all_reduce", "hierarchical"
    options = frozenset({"ranks_per_host", "block_bytes"})
    rounds = 2

    @property
    def tier_steps(self) -> Tiers[int]:
        """8 ranks, 4 per host: 6 fast and 2 slow, a flat ring takes 14."""
        return Tiers(2 * (self.world_size // self.num_hosts - 1), 2 * (self.num_hosts - 1))

    @property
    def steps(self) -> int:
        """Of both tiers, for one block."""
        return self.tier_steps.total

    def _sent_numel(self, rank: int) -> int:
        return self._tier_numel(rank).total

    def _tier_numel(self, rank: int) -> Tiers[int]:
        """All blocks but the last are equal."""
        more = self._num_blocks() - 1
        each = max(self.block_bytes // self.itemsize, 1) if self.block_bytes and more else 0
        fast, slow = self._of_block(each, rank)
        last_fast, last_slow = self._of_block(self.numel - more * each, rank)
        return Tiers(more * fast + last_fast, more * slow + last_slow)

    def _of_block(self, numel: int, rank: int) -> Tiers[int]:
        host = self._host_of(rank)
        per_host = self.world_size // self.num_hosts
        place = rank % per_host
        chunks = chunk_numels(numel, per_host)
        across = chunk_numels(chunks[place], self.num_hosts)
        return Tiers(_passed_on_twice(chunks, place), _passed_on_twice(across, host))

    def _num_blocks(self) -> int:
        return num_blocks(self.numel, self.itemsize, self.block_bytes) if self.block_bytes else 1

    def _messages(self, rank: int) -> int:
        return self.steps * self._num_blocks()

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        hosts, per_host = self.num_hosts, self.world_size // self.num_hosts
        k = max(math.ceil(self.nbytes / self.block_bytes), 1) if self.block_bytes else 1
        block = self.nbytes / k
        on_the_slow_link = block if shared else block / per_host
        within = (per_host - 1) * fast.message_seconds(block / per_host)
        across = 2 * (hosts - 1) * slow.message_seconds(on_the_slow_link / hosts)
        if k == 1:
            return 2 * within + across
        between = (k - 2) * max(2 * within, across)
        return 2 * within + 2 * max(within, across) + between


def _passed_on_twice(parts: Sequence[int], member: int) -> int:
    """What a member of a ring sends: on the first round all parts but the one that ends with it,
    on the second all but the one that began at its right neighbour."""
    return 2 * sum(parts) - parts[member] - parts[(member + 1) % len(parts)]
