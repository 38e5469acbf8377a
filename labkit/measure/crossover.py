"""Where one algorithm stops being the faster one: measured, and by the model.

The model's part is labkit.calc.crossing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.calc.crossing import Crossing
from labkit.calc.units import bytes_text


@dataclass(frozen=True)
class Crossover:
    """`small` is the faster one for small tensors, `large` for large ones, and where they meet.

    None: they don't meet among the sizes measured, or, by the model, at no size up to 1 TiB.
    """

    small: str
    large: str
    measured_bytes: float | None
    predicted_bytes: float | None

    def __repr__(self) -> str:
        """Both sizes in one line."""
        measured, predicted = (
            "nowhere" if nbytes is None else f"at {bytes_text(nbytes)}"
            for nbytes in (self.measured_bytes, self.predicted_bytes)
        )
        return (
            f"Crossover({self.small} below, {self.large} above: "
            f"measured {measured}, by the model {predicted})"
        )


def crossover(
    first: str, second: str, measured: Crossing | None, predicted: Crossing | None
) -> Crossover | None:
    """Both crossings as one; None where there is neither.

    The model says which is the faster below where the two contradict each other.
    """
    found = predicted or measured
    if found is None:
        return None
    if measured is not None and measured.first_is_below != found.first_is_below:
        measured = None
    small, large = (first, second) if found.first_is_below else (second, first)
    return Crossover(
        small,
        large,
        None if measured is None else measured.nbytes,
        None if predicted is None else predicted.nbytes,
    )


def measured_crossing(
    sizes: Sequence[float], first: Sequence[float], second: Sequence[float]
) -> Crossing | None:
    """The one change of places that fits the measured times best; None where there is none.

    sizes: ascending; first, second: seconds at each. Noise may make curves that are close change
    places more than once. Of all ways to say "one below this size, the other above" (or one
    everywhere) the one is taken that contradicts the times least: by the sum of |log ratio| over
    the sizes at which it is wrong. Between two sizes the log ratio is taken as straight over the
    logarithm of the size.
    """
    lead = [math.log(one / other) for one, other in zip(first, second)]  # below 0: first is faster
    best, found = min(sum(lead), -sum(lead)), None
    for sign in (1, -1):
        for split in range(1, len(lead)):
            score = sign * (sum(lead[:split]) - sum(lead[split:]))
            if score < best - 1e-12:
                best, found = score, (split, sign == 1)
    if found is None:
        return None
    split, first_is_below = found
    # The best split has the lead change its sign right there, or a neighbour would be better.
    low, high = lead[split - 1], lead[split]
    share = low / (low - high) if low != high else 0.0
    left, right = sizes[split - 1], sizes[split]
    # Rounding must not push it out of the interval that it lies in.
    return Crossing(min(max(left * (right / left) ** share, left), right), first_is_below)
