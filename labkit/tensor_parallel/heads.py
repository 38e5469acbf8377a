"""Which attention heads a rank holds.

H query heads are dealt out in blocks of H/n. With grouped-query attention (G key-value heads, each
for H/G query heads) a rank needs the key-value heads of its query heads, and no other:

    G = 4, n = 2    rank 0: kv heads 0, 1                  rank 1: 2, 3
    G = 2, n = 4    rank 0 and 1: kv head 0, both whole    rank 2 and 3: 1      copies of n/G ranks

Copies get gradients from different query heads: what is true of the head is their sum.
vLLM copies heads so, for inference. Megatron-LM refuses more ranks than key-value heads, or, in
newer versions, cuts the heads and gathers keys and values: no copies, but activations to send.
Paper: Ainslie et al., "GQA", arXiv:2305.13245.
"""

from __future__ import annotations

from math import gcd

from labkit import arguments


class HeadShares:
    """By rank. ValueError where n does not divide H, or neither of G and n divides the other."""

    def __init__(self, num_heads: int, num_kv_heads: int, num_ranks: int) -> None:
        H = self.num_heads = arguments.whole("num_heads", num_heads, "1 or more")
        G = self.num_kv_heads = arguments.whole("num_kv_heads", num_kv_heads, "1 or more")
        n = self.num_ranks = arguments.whole("num_ranks", num_ranks, "1 or more")
        if n not in (choices := head_choices(H, G)):
            what = f"{H} heads" if H == G else f"{H} heads with {G} key-value heads"
            raise ValueError(
                f"{n} ranks cannot share {what} evenly; these numbers of ranks can: "
                f"{', '.join(map(str, choices))}"
            )

    def queries(self, rank: int) -> range:
        """The query heads of a rank."""
        rank = self._checked(rank)
        each = self.num_heads // self.num_ranks
        return range(rank * each, (rank + 1) * each)

    def keys(self, rank: int) -> range:
        """The key-value heads of a rank: those that its query heads read."""
        heads_per_kv = self.num_heads // self.num_kv_heads
        mine = self.queries(rank)
        return range(mine[0] // heads_per_kv, mine[-1] // heads_per_kv + 1)

    @property
    def num_copies(self) -> int:
        """Ranks that hold the same key-value heads."""
        return self.num_ranks // gcd(self.num_ranks, self.num_kv_heads)

    def copies(self, rank: int) -> int:
        """Which set of copies a rank belongs to; its ranks are next to each other."""
        return self._checked(rank) // self.num_copies

    def _checked(self, rank: int) -> int:
        allowed = f"a rank, 0 to {self.num_ranks - 1}"
        return arguments.whole("rank", rank, allowed, least=0, most=self.num_ranks - 1)


def head_choices(num_heads: int, num_kv_heads: int) -> list[int]:
    """Numbers of ranks that share the heads evenly: they divide H, and divide G or are divided."""
    num_heads = arguments.whole("num_heads", num_heads, "1 or more")
    num_kv_heads = arguments.whole("num_kv_heads", num_kv_heads, "1 or more")
    return [
        n for n in arguments.divisors(num_heads) if num_kv_heads % n == 0 or n % num_kv_heads == 0
    ]
