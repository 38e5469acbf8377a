"""Cost of collectives without a root: rings, Bruck, halving-doubling, tiers, all-to-all.

A ring of n ranks, D bytes. Each rank sends to its right neighbour and receives from its left one.
The tensor is cut into n chunks by torch.tensor_split's rule, so uneven sizes have exact answers:

    per rank              sent bytes      messages, steps     seconds
    reduce-scatter        (n-1)/n D       n-1                 (n-1) (alpha + D/n beta)
    all-gather            (n-1)/n D       n-1                 the same
    all-reduce            2(n-1)/n D      2(n-1)              both

On H hosts of L ranks each, one link of a ring is slow on each host: that from its last rank.
K rings may share the tensor. Ring j takes the ranks of each host in the order j, j+1, ... around,
so that the rings leave a host by K different ranks, each with its adapter:

    slow hops             2H of the 2(n-1) hops of the chunk that comes last, the others are fast
    slowest adapter       2(n-1)/n D / K, of one ring; of all K where the ranks share an adapter
    busiest fast link     2(n-1)/n D, or (K-1)/K of it where every rank is the last of a ring
    seconds               latencies of those hops + the longer of the two rows of bytes

A chunk goes twice around the ring, and so over 2H slow links, except for two links beside each
other. With three ranks or more on a host, both of these are fast for some chunk. With two ranks one
of them is slow, so 2H-1 hops are; with one rank 2(H-1). In a reduce-scatter or an all-gather a
chunk goes once around, except for one link: H slow hops, or H-1 with one rank per host.

Without bytes these seconds are exact. With bytes they are an upper bound: the latency of one
message passes while a link is busy with the bytes of another. If a link took no second message
before the first has arrived, each of the 2(n-1) steps would wait for a slow latency. NCCL estimates
its rings in the same form, but counts 2(H-1) slow latencies whatever L is, which is too few for two
ranks per host or more.

Halving-doubling: n = p + r ranks, p the largest power of two in n. Of ranks 0 to 2r-1 the even ones
hand all of their tensor to the odd ones beside them, and get the sum back. The other p are numbered
in order. If a number of elements is odd, the first half is one longer, and lower numbers keep it.
So after s halvings number i has as many elements left as there are numbers e = i mod 2**s among 0
to numel - 1, as if elements were dealt out like cards.

    per rank              sent bytes                        messages               steps
    halving               D/2 + D/4 + ... = (p-1)/p D       log2 p, in blocks      log2 p
    doubling              the same, backwards               log2 p                 log2 p
    if r > 0, even ones   D, before                         1, in blocks           1
              odd ones    D, after                          1                      1

Summands go in blocks, but no rank waits for one block: seconds and steps do not depend on them.

Bruck's all-gather: rank r sends chunks r, r+1, ... to the rank 1, 2, 4, ... to its left, as many as
it has so far, and in the last step only those that are still missing there.

    per rank              sent bytes                   messages, steps     seconds
    all-gather            D/n (1 + 2 + 4 + ...)        log2 n, rounded     log2 n alpha
                          = (n-1)/n D                  up                  + (n-1)/n D beta

Two tiers of links (BlueConnect): L ranks on each of H hosts, n = L * H. A reduce-scatter within
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
all L of them send over it at once in the slow phase, each at 1/L of its speed. In k blocks, t
seconds for each of the phases within hosts and x for the phase between them, the fast links have
2 k t to do and the slow ones k x, one phase of a block beside another of the next:

    k = 1       2 t + x
    k > 1       2 t + 2 max(t, x) + (k-2) max(2 t, x)

In a pairwise all-to-all, splits[r][s] is the number of elements that rank r has for rank s; the
diagonal stays where it is. In step k of n - 1, rank r sends to r + k and receives from r - k, and
goes on when both are done. An empty split is not sent. Nothing can be combined on the way, so a
rank sends its row, and receives its column, except the diagonal:

    per rank              bytes                               messages
    sent                  sum of splits[r] but splits[r][r]   one per other split that has elements
    received              the same of column r                the same

With equal splits that is (n-1)/n of a rank's tensor in n - 1 messages, which take
(n-1) (alpha + D/n beta), and (n-L)/n of it crosses to other hosts, of L ranks each: in a larger
cluster a larger share is slow. With uneven splits the longest split of a step delays two ranks,
which delay others in the next step. (If a sender goes on before its message has arrived, uneven
exchanges take a little less.) If the ranks of a host share one link to other hosts, messages of one
step on it end together.

Papers: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 69(2), 2009; NCCL, src/graph/tuning.cc; NCCL issue 530; Rabenseifner, "Optimization of
collective reduction operations", ICCS 2004; Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; Cho
et al., "BlueConnect: Decomposing all-reduce for deep learning on heterogeneous network hierarchy",
SysML 2019; Bruck et al., "Efficient algorithms for all-to-all communications in multiport
message-passing systems", IEEE TPDS 8(11), 1997.
"""

import math
from collections.abc import Sequence

from labkit.calc.traffic.cost import Blocked, Collective, Link, Tiers, chunk_numels, num_blocks


class RingReduceScatter(Collective):
    """Chunk s starts at rank s + 1 and goes right until it is complete at rank s."""

    operation, algorithm = "reduce_scatter", "ring"
    options = frozenset({"ranks_per_host", "rings"})

    @property
    def steps(self) -> int:
        """Steps: one per other chunk, in every round."""
        return self.rounds * (self.world_size - 1)

    @property
    def tier_steps(self) -> Tiers[int]:
        """Hops of the chunk that comes last. 64 ranks on 8 hosts, all-reduce: 110 fast, 16 slow."""
        hosts = self.num_hosts
        slow = self.rounds * hosts - self.rounds // (self.world_size // hosts) if hosts > 1 else 0
        return Tiers(self.steps - slow, slow)

    def _sent_numel(self, rank: int) -> int:
        return self._tier_numel(rank).total

    def _tier_numel(self, rank: int) -> Tiers[int]:
        """Return the elements by tier: each ring takes a share of every chunk, by tensor_split's
        rule."""
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
        """Return the rank to which this one sends in a ring; in the first ring it is the next
        rank."""
        per_host = self.world_size // self.num_hosts
        host, place = divmod(rank, per_host)
        if (place - ring) % per_host == per_host - 1:
            host = (host + 1) % self.num_hosts
        return host * per_host + (place + 1) % per_host

    def _sent_of(self, whole: int, own: int, next_one: int) -> int:
        """Return the elements of every chunk but the rank's own, which it ends with."""
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
        """Return elements of every chunk but that of the right neighbour, who has it already."""
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


class HalvingDoublingAllReduce(Blocked):
    """An all-reduce in 6 steps for 8 ranks, where a ring takes 14; 6 for 7 ranks too.

    10 float32 over 4 ranks: rank 0 sends 5, 2, then 3, 5 elements, 60 bytes; rank 3 sends 5, 3, 2
    and 5, which makes 60 too.
    """

    operation, algorithm = "all_reduce", "halving_doubling"
    rounds = 2

    @property
    def steps(self) -> int:
        """Steps: log2 p for each direction, and one more for each if ranks are folded."""
        return 2 * self._power + 2 * (self._num_folded > 0)

    @property
    def _power(self) -> int:
        return self.world_size.bit_length() - 1

    @property
    def _num_folded(self) -> int:
        return self.world_size - 2**self._power

    def _sent_numel(self, rank: int) -> int:
        if self._is_folded(rank):
            return self.numel
        held = self._held(rank)
        is_beside = rank < 2 * self._num_folded
        return held[0] - held[-1] + sum(held[1:]) + is_beside * self.numel

    def _messages(self, rank: int) -> int:
        if self._is_folded(rank):
            return self._num_blocks(self.numel)
        held = self._held(rank)
        given_away = (before - after for before, after in zip(held, held[1:], strict=False))
        is_beside = rank < 2 * self._num_folded
        return sum(map(self._num_blocks, given_away)) + len(held) - 1 + is_beside

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        """Return the seconds: two steps each of D/2, D/4 and so on, and of D if ranks are
        folded."""
        sizes = [self.nbytes / 2**step for step in range(1, self._power + 1)]
        sizes += [self.nbytes] * (self._num_folded > 0)
        return 2 * sum(map(fast.message_seconds, sizes))

    def _is_folded(self, rank: int) -> bool:
        """Return whether the rank is folded into the one beside it."""
        return rank < 2 * self._num_folded and rank % 2 == 0

    def _held(self, rank: int) -> list[int]:
        """Return the elements that a working rank has left after 0, 1, ... log2 p halvings."""
        number = rank - min(self._num_folded, (rank + 1) // 2)  # as many are folded before it
        return [len(range(number % 2**s, self.numel, 2**s)) for s in range(self._power + 1)]


class BruckAllGather(Collective):
    """An all-gather in 3 steps for 5 to 8 ranks, where a ring takes 4 to 7.

    10 float32 over 4 ranks, chunks 3, 3, 2, 2: rank 0 sends 3, then 3 + 3 elements, 36 bytes.
    """

    operation, algorithm = "all_gather", "bruck"

    @property
    def steps(self) -> int:
        """Steps: the logarithm of n to base 2, rounded up."""
        return (self.world_size - 1).bit_length()

    def _sent_numel(self, rank: int) -> int:
        chunks = chunk_numels(self.numel, self.world_size)
        return sum(sum((chunks * 2)[rank : rank + num]) for num in self._num_chunks())

    def _messages(self, rank: int) -> int:
        return self.steps

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        chunk = self.nbytes / self.world_size
        return sum(fast.message_seconds(num * chunk) for num in self._num_chunks())

    def _num_chunks(self) -> list[int]:
        """Return the chunks of each message: 1, 2, 4, ..., and the rest of n - 1."""
        return [min(2**step, self.world_size - 2**step) for step in range(self.steps)]


class HierarchicalAllReduce(Collective):
    """An all-reduce over two tiers. 10 float32 on 2 hosts of 2: each rank carries 5 across.

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
        """Steps of both tiers, for one block."""
        return self.tier_steps.total

    def _sent_numel(self, rank: int) -> int:
        return self._tier_numel(rank).total

    def _tier_numel(self, rank: int) -> Tiers[int]:
        """Return the elements by tier; all blocks but the last are equal."""
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
    """Bytes that a member of a ring sends in its two rounds.

    The first round is of all parts except the one that ends with it. The second is of all parts
    except the one that began at its right neighbour.
    """
    return 2 * sum(parts) - parts[member] - parts[(member + 1) % len(parts)]


class PairwiseAllToAll(Collective):
    """An all-to-all of nbytes of each rank in equal splits, or `splits` of any sizes."""

    operation, algorithm = "all_to_all", "pairwise"
    options = frozenset({"ranks_per_host", "splits"})

    @property
    def steps(self) -> int:
        """Steps: one for each other rank."""
        return self.world_size - 1

    def _total_bytes(self) -> float:
        if self.splits is None:
            return super()._total_bytes()
        return self.itemsize * sum(map(self._sent_numel, range(self.world_size)))

    def _sent(self, rank: int) -> dict[int, int]:
        """Return the elements of each message, by receiver."""
        given = self.splits
        row = given[rank] if given else chunk_numels(self.numel, self.world_size)
        return {peer: numel for peer, numel in enumerate(row) if numel and peer != rank}

    def _sent_numel(self, rank: int) -> int:
        return sum(self._sent(rank).values())

    def _messages(self, rank: int) -> int:
        return len(self._sent(rank))

    def _tier_numel(self, rank: int) -> Tiers[int]:
        sent, host = self._sent(rank), self._host_of(rank)
        fast = sum(numel for peer, numel in sent.items() if self._host_of(peer) == host)
        return Tiers(fast, sum(sent.values()) - fast)

    def _seconds(self, fast: Link, slow: Link, shared: bool) -> float:
        """Simulate the steps: a message starts when both sides have come to its step."""
        n = self.world_size
        if self.splits is None and self.num_hosts == 1:
            return self.steps * fast.message_seconds(self.nbytes / n)
        hosts = [self._host_of(rank) for rank in range(n)]
        sent = [self._sent(rank) for rank in range(n)]
        ready_s = [0.0] * n
        for step in range(1, n):
            done_s = list(ready_s)
            for rank, numel in enumerate(_link_numels(sent, step, hosts, shared)):
                peer = (rank + step) % n
                if peer in sent[rank]:
                    link = fast if hosts[rank] == hosts[peer] else slow
                    took_s = link.message_seconds(numel * self.itemsize)
                    end_s = max(ready_s[rank], ready_s[peer]) + took_s
                    done_s[rank] = max(done_s[rank], end_s)
                    done_s[peer] = max(done_s[peer], end_s)
            ready_s = done_s
        return max(ready_s)


def _link_numels(
    sent: Sequence[dict[int, int]], step: int, hosts: Sequence[int], shared: bool
) -> list[int]:
    """Return the elements that each rank's link carries before the rank's message has arrived."""
    n = len(sent)
    peers = [(rank + step) % n for rank in range(n)]
    own = [sent[rank].get(peer, 0) for rank, peer in enumerate(peers)]
    crossing = [shared and hosts[rank] != hosts[peer] for rank, peer in enumerate(peers)]
    return [
        sum(own[other] for other in range(n) if crossing[other] and hosts[other] == hosts[rank])
        if crossing[rank]
        else own[rank]
        for rank in range(n)
    ]
