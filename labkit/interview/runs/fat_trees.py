"""A fat tree with one degraded uplink: what GPUs reach, and how the lab finds it. Nothing is run.

64 nodes with 8 GPUs and 8 adapters of 50 GB/s each, 4 nodes per leaf switch, 4 leaves per pod. The
uplink of one leaf has a quarter of its bandwidth.
"""

import math
from collections import Counter
from collections.abc import Sequence

from labkit import FatTree, Link
from labkit.measure.slow_links import bisect, rounds_of_pairs

HEALTHY = FatTree(
    hosts=64,
    ranks_per_host=8,
    slow_links_per_host=8,
    hosts_per_leaf=4,
    leaves_per_pod=4,
    fast=Link(450e9),
    slow=Link(50e9),
)
LEAF = "leaf 5"
DEGRADED = HEALTHY.degraded(LEAF, 0.25)


def uplink(tree: str = "degraded") -> float:
    """Bytes per second that leave this leaf at most, in the "degraded" or the "healthy" tree."""
    num_gpus = len(DEGRADED.ranks_below(LEAF))
    return num_gpus * reached(num_gpus, tree)


def reached(num_gpus: int, tree: str = "degraded") -> float:
    """Bytes per second of each GPU, where so many below this leaf send to the next leaf at once.

    They share every port on their ways equally.
    """
    network = {"degraded": DEGRADED, "healthy": HEALTHY}[tree]
    below = network.ranks_below(LEAF)
    paths = [network.path(gpu, gpu + len(below)) for gpu in below[:num_gpus]]
    load = Counter(port.number for path in paths for port in path)
    return min(1 / (load[port.number] * port.beta) for path in paths for port in path)


def gpus_at_full_speed() -> int:
    """How many GPUs below this leaf can send at once without being slower than one alone."""
    counts = range(1, len(DEGRADED.ranks_below(LEAF)) + 1)
    return max(count for count in counts if math.isclose(reached(count), reached(1)))


def measurements(num_leaves: int) -> int:
    """How many measurements `measure.bisect_uplinks` takes at most, whichever leaf it is."""
    return max(_measurements(num_leaves, leaf) for leaf in range(num_leaves))


def pairs_of_nodes() -> tuple[int, int]:
    """How many pairs of nodes there are, and the rounds of pairs that share no node."""
    rounds = rounds_of_pairs(HEALTHY.hosts)
    return sum(map(len, rounds)), len(rounds)


def without_collision(num_flows: int, num_uplinks: int) -> float:
    """Probability that a hash puts every flow on an uplink of its own."""
    return math.perm(num_uplinks, num_flows) / num_uplinks**num_flows


def _measurements(num_leaves: int, degraded: int) -> int:
    asked: list[Sequence[int]] = []

    def is_slow(leaves: Sequence[int]) -> bool:
        asked.append(leaves)
        return degraded in leaves

    if bisect(range(num_leaves), is_slow) != degraded:
        raise RuntimeError(f"bisection over {num_leaves} leaves did not find leaf {degraded}")
    return len(asked)
