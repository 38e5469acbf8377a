"""Which hosts hold copies of a host's state, and how often failures take all of them.

ring(4, 2)      [[1], [2], [3], [0]]: each host, and the others that hold its state
groups(4, 2)    [[1], [0], [3], [2]]
"""

from collections.abc import Sequence

Holders = Sequence[Sequence[int]]


def ring(n: int, m: int) -> Holders:
    """Each host's state is with the next ones."""
    return [[(host + step) % n for step in range(1, m)] for host in range(n)]


def groups(n: int, m: int) -> Holders:
    """Hosts of a group hold each other's states."""
    return [[o for o in range(h - h % m, h - h % m + m) if o != h] for h in range(n)]


def fatal_share(holders: Holders, k: int) -> float:
    """Which part of all sets of k failures has all hosts of a state, by sets as bits."""
    fatal = {sum(1 << each for each in {host, *its}) for host, its in enumerate(holders)}
    failed = [bits for bits in range(1 << len(holders)) if bits.bit_count() == k]
    return sum(any(bits & its == its for its in fatal) for bits in failed) / len(failed)
