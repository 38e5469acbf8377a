"""Where two models of seconds by bytes change places.

seconds  |  ring           ring
         |- - - - - - - x      below x the tree is faster, above it the ring
         |  tree     .     tree
         +----------------------- bytes
"""

import math
from collections.abc import Callable
from typing import NamedTuple

SMALLEST_BYTES, LARGEST_BYTES = 1.0, 2.0**40
_SAMPLES_PER_DOUBLING = 10  # formulas with blocks have steps in them
_HALVINGS = 60
_ROUNDING = 1e-13
"""Two that differ by less may be one and the same, added up in another order."""


class Crossing(NamedTuple):
    """Two curves change places at `nbytes`; `first_is_below`: the first is faster below it."""

    nbytes: float
    first_is_below: bool


def predicted_crossing(
    first: Callable[[float], float],
    second: Callable[[float], float],
    largest_bytes: float = LARGEST_BYTES,
) -> Crossing | None:
    """The smallest size from 1 byte to `largest_bytes` at which they do; None: nowhere."""
    doublings = math.log2(largest_bytes / SMALLEST_BYTES)
    num_samples = math.ceil(doublings * _SAMPLES_PER_DOUBLING)

    def lead(nbytes: float) -> float:
        return first(nbytes) - second(nbytes)

    low = at_low = 0.0  # the last size at which they differ
    for number in range(num_samples + 1):
        high = SMALLEST_BYTES * 2 ** (doublings * number / num_samples)
        at_high = lead(high)
        if abs(at_high) <= _ROUNDING * abs(first(high)):
            continue  # they meet, and may change places
        if low and (at_high > 0) != (at_low > 0):
            return Crossing(_bisected(lead, low, high), at_low < 0)
        low, at_low = high, at_high
    return None


def _bisected(lead: Callable[[float], float], low: float, high: float) -> float:
    """Where `lead` changes its sign between two sizes, by their geometric mean."""
    is_above = lead(low) > 0
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if (lead(middle) > 0) == is_above:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)
