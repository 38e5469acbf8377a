"""What an all-reduce costs in the alpha-beta model, and what it costs by the usual mistakes.

A cost is two numbers: seconds = latencies * alpha + share * D * beta, for D bytes over n ranks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

RING, TREE = "ring", "tree"
ALGORITHMS = (RING, TREE)


class Cost(NamedTuple):
    """Latencies one after the other, and how many times D goes over the busiest way."""

    latencies: float
    share: float

    def seconds(self, alpha: float, beta: float, nbytes: float) -> float:
        """Of an all-reduce of `nbytes`."""
        return self.latencies * alpha + self.share * nbytes * beta


def cost(algorithm: str, n: int) -> Cost:
    """Ring: 2(n-1) messages of D/n. Tree: up and down, ceil(log2 n) messages of D each way."""
    if algorithm == RING:
        return Cost(2 * (n - 1), 2 * (n - 1) / n)
    levels = 2 * (n - 1).bit_length()
    return Cost(levels, levels)


@dataclass(frozen=True)
class Theory:
    """A mistake, and the cost of one algorithm by it."""

    name: str
    explanation: str
    cost: Callable[[int], Cost]


_PHASES = (
    "counts one phase of two",
    "an all-reduce is a reduction and a distribution, and each takes as many steps as the other: "
    "a ring n - 1 and n - 1, a tree ceil(log2 n) up and as many down",
)
_LATENCY_ONCE = (
    "pays the latency once",
    "every message costs alpha, and the messages of a collective come one after the other: as many "
    "alphas as there are steps",
)
_NO_LATENCY = (
    "leaves the latency out",
    "every message costs alpha besides its bytes. For small tensors that is nearly all of it",
)
_NO_BYTES = ("leaves the bytes out", "a message of m bytes costs m * beta besides alpha")
_ONE_MESSAGE = (
    "takes the whole collective for one message",
    "alpha + D beta is one message from one rank to another. An all-reduce is many of them: count "
    "the steps, and the bytes that a rank sends in each",
)
_BITS = (
    "bits for bytes",
    "it differs by a factor of 8. nbytes are bytes, and beta is seconds per byte; network speeds "
    "are given in bits",
)
_RING = (
    Theory(*_NO_LATENCY, lambda n: Cost(0, 2 * (n - 1) / n)),
    Theory(*_NO_BYTES, lambda n: Cost(2 * (n - 1), 0)),
    Theory(*_PHASES, lambda n: Cost(n - 1, (n - 1) / n)),
    Theory(
        "each step carries the whole tensor",
        "a ring cuts the tensor into n segments, and a step sends one of them, D/n bytes. That is "
        "why the bytes per rank stay below 2 D for any n",
        lambda n: Cost(2 * (n - 1), 2 * (n - 1)),
    ),
    Theory(*_LATENCY_ONCE, lambda n: Cost(1, 2 * (n - 1) / n)),
    Theory(*_LATENCY_ONCE, lambda n: Cost(2, 2 * (n - 1) / n)),
    Theory(*_ONE_MESSAGE, lambda n: Cost(1, 1)),
    Theory(
        "counts n steps instead of n - 1",
        "a segment that has been through n - 1 links has met all n ranks",
        lambda n: Cost(2 * n, 2),
    ),
    Theory(*_BITS, lambda n: Cost(2 * (n - 1), 16 * (n - 1) / n)),
    Theory(*_BITS, lambda n: Cost(2 * (n - 1), (n - 1) / n / 4)),
)
_TREE = (
    Theory(*_NO_LATENCY, lambda n: Cost(0, _levels(n))),
    Theory(*_NO_BYTES, lambda n: Cost(_levels(n), 0)),
    Theory(*_PHASES, lambda n: Cost(_levels(n) / 2, _levels(n) / 2)),
    Theory(
        "cuts the tensor in the tree",
        "a tree sends the whole tensor in each step; only the ring cuts it into n segments",
        lambda n: Cost(_levels(n), _levels(n) / n),
    ),
    Theory(*_LATENCY_ONCE, lambda n: Cost(1, _levels(n))),
    Theory(
        "the tree passes the tensor on in one go",
        "a rank passes the tensor on when it has all of it, so its bytes take their time again in "
        "each of the steps: D beta is paid as often as alpha",
        lambda n: Cost(_levels(n), 2),
    ),
    Theory(*_ONE_MESSAGE, lambda n: Cost(1, 1)),
    Theory(
        "counts fractions of a step",
        "steps come whole: with 6 ranks it takes 3 of them, ceil(log2 6), and not 2.58",
        lambda n: Cost(2 * math.log2(n), 2 * math.log2(n)),
    ),
    Theory(
        "rounds log2 n down",
        "after floor(log2 n) steps of doubling there are ranks that have nothing yet",
        lambda n: Cost(2 * (n.bit_length() - 1), 2 * (n.bit_length() - 1)),
    ),
    Theory(
        "rounds log2 n to the nearest",
        "log2 5 is 2.32 and log2 9 is 3.17, and 2 or 3 steps do not reach the last rank there: "
        "ceil(log2 n) rounds up",
        lambda n: Cost(2 * round(math.log2(n)), 2 * round(math.log2(n))),
    ),
    Theory(
        "counts n - 1 steps in the tree",
        "the ranks that have been reached double in each step: ceil(log2 n) steps, not n - 1",
        lambda n: Cost(2 * (n - 1), 2 * (n - 1)),
    ),
    Theory(
        "takes the tree for a ring",
        "it is the ring's time. In a tree there are fewer steps, and the whole tensor in each",
        lambda n: cost(RING, n),
    ),
    Theory(*_BITS, lambda n: Cost(_levels(n), 8 * _levels(n))),
    Theory(*_BITS, lambda n: Cost(_levels(n), _levels(n) / 8)),
)
THEORIES = {RING: _RING, TREE: _TREE}


def _levels(n: int) -> float:
    """Steps up and down."""
    return cost(TREE, n).latencies
