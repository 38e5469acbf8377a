"""Bytes, messages, steps and seconds of a halving-doubling all-reduce.

n = p + r ranks, p the largest power of two in n, D bytes. Of ranks 0 to 2r-1 the even ones hand
all of their tensor to the odd ones beside them, and get the sum back. The other p are numbered in
order. A half of an odd number of elements is one longer if it is the first, which lower numbers
keep: so after s halvings number i has as many elements left as there are e = i mod 2**s among 0 to
numel - 1, as if elements were dealt out like cards.

    per rank              sent bytes                        messages               steps
    halving               D/2 + D/4 + ... = (p-1)/p D       log2 p, in blocks      log2 p
    doubling              the same, backwards               log2 p                 log2 p
    if r > 0, even ones   D, before                         1, in blocks           1
              odd ones    D, after                          1                      1

What is to be added goes in blocks, but nothing waits for one: seconds and steps know none.

Papers: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur,
Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from labkit.calc.traffic.blocked_traffic import Blocked
from labkit.calc.traffic.collective_cost import Link


class HalvingDoublingAllReduce(Blocked):
    """6 steps for 8 ranks, where a ring takes 14; 6 for 7 ranks too.

    10 float32 over 4 ranks: rank 0 sends 5, 2, then 3, 5 elements, 60 bytes; rank 3 sends 5, 3, 2
    and 5, which makes 60 too.
    """

    operation, algorithm = "all_reduce", "halving_doubling"
    rounds = 2

    @property
    def steps(self) -> int:
        """log2 p there and back, and one more each where ranks are folded."""
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
        """Two steps each of D/2, D/4 and so on, and of D where ranks are folded."""
        sizes = [self.nbytes / 2**step for step in range(1, self._power + 1)]
        sizes += [self.nbytes] * (self._num_folded > 0)
        return 2 * sum(map(fast.message_seconds, sizes))

    def _is_folded(self, rank: int) -> bool:
        """Into the rank beside it."""
        return rank < 2 * self._num_folded and rank % 2 == 0

    def _held(self, rank: int) -> list[int]:
        """Elements that a working rank has left after 0, 1, ... log2 p halvings."""
        number = rank - min(self._num_folded, (rank + 1) // 2)  # as many are folded before it
        return [len(range(number % 2**s, self.numel, 2**s)) for s in range(self._power + 1)]
