"""Bytes, messages, steps and seconds of a pairwise all-to-all with splits of any sizes.

splits[r][s] is how many elements rank r has for rank s; the diagonal stays where it is. In step k
of n - 1, rank r sends to r + k and receives from r - k, and goes on when both are done. An empty
split is no message. Nothing can be combined on the way, so a rank sends the rest of its row, and
receives the rest of its column:

    per rank              bytes                               messages
    sent                  sum of splits[r] but splits[r][r]   one per other split that has elements
    received              the same of column r                the same

With equal splits that is (n-1)/n of a rank's tensor in n - 1 messages, which take
(n-1) (alpha + D/n beta), and what crosses to other hosts, of L ranks each, is (n-L)/n of it: the
larger the cluster, the more of it is slow. With uneven ones the longest split of a step holds up
two ranks, and in the next step those hold up theirs. (Where a sender goes on before its message has
arrived, uneven exchanges take a little less.) Where the ranks of a host share one link to the
others, messages of one step that share it are done together.

Paper: Bruck et al., "Efficient algorithms for all-to-all communications in multiport
message-passing systems", IEEE TPDS 8(11), 1997.
"""

from collections.abc import Sequence

from labkit.calc.traffic.chunks import chunk_numels
from labkit.calc.traffic.collective_cost import Collective, Link, Tiers


class PairwiseAllToAll(Collective):
    """nbytes of each rank in equal splits, or `splits` of any sizes."""

    operation, algorithm = "all_to_all", "pairwise"
    options = frozenset({"ranks_per_host", "splits"})

    @property
    def steps(self) -> int:
        """One for each other rank."""
        return self.world_size - 1

    def _total_bytes(self) -> float:
        if self.splits is None:
            return super()._total_bytes()
        return self.itemsize * sum(map(self._sent_numel, range(self.world_size)))

    def _sent(self, rank: int) -> dict[int, int]:
        """By receiver, the elements of each message."""
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
        """Play the steps through: a message starts when both sides have come to its step."""
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
    """By rank: the elements that its link carries before its message of this step is through."""
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
