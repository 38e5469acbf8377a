"""Ways to cut that are not the best one: each what a rule of thumb makes of costs and stages."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise

from labkit.grade.graders.balance_questions import Layers, Stages

ClosesStage = Callable[[float, float, float], bool]
"""From what the stage costs, what the next layer would add, and the aim: whether it is full."""


def stages_between(cuts: Sequence[int]) -> Stages:
    """The stages between neighbouring cuts."""
    return [list(range(start, stop)) for start, stop in pairwise(cuts)]


def full_after(cost: float, following: float, aim: float) -> bool:
    """As soon as the aim is reached."""
    return cost >= aim


def full_before(cost: float, following: float, aim: float) -> bool:
    """Before the aim is passed."""
    return cost + following > aim


def full_nearest(cost: float, following: float, aim: float) -> bool:
    """Where the cost is nearest to the aim."""
    return abs(cost - aim) <= abs(cost + following - aim)


def filled(layers: Layers, is_full: ClosesStage, aims_anew: bool) -> Stages:
    """Stage by stage up to the average, of all or of what is left; a layer is left for each."""
    costs, p = layers.costs, layers.num_stages
    cuts, average = [0], sum(costs) / p
    for stage in range(p - 1):
        start = cuts[-1]
        aim = sum(costs[start:]) / (p - stage) if aims_anew else average
        stop = start + 1
        most = len(costs) - (p - stage - 1)
        while stop < most and not is_full(sum(costs[start:stop]), costs[stop], aim):
            stop += 1
        cuts.append(stop)
    return stages_between([*cuts, len(costs)])


def filled_variants(layers: Layers) -> Iterator[Stages]:
    """All ways in which stages are filled up."""
    for is_full in (full_after, full_before, full_nearest):
        for aims_anew in (False, True):
            yield filled(layers, is_full, aims_anew)


def at_quantiles(layers: Layers, rounds_to: str) -> Stages:
    """Cuts where the sum so far is k parts of num_stages: "up", "down" or "nearest"."""
    upto = [0, *accumulate(layers.costs)]
    p, num_layers = layers.num_stages, len(layers.costs)
    cuts = [0]
    for k in range(1, p):
        aim = upto[-1] * k / p
        at = bisect_left(upto, aim)
        is_lower_nearer = at > 0 and aim - upto[at - 1] <= upto[at] - aim
        if rounds_to == "down" or (rounds_to == "nearest" and is_lower_nearer):
            at -= upto[at] > aim
        cuts.append(min(max(at, cuts[-1] + 1), num_layers - (p - k)))
    return stages_between([*cuts, num_layers])


def quantile_variants(layers: Layers) -> Iterator[Stages]:
    """All ways to round."""
    for rounds_to in ("up", "down", "nearest"):
        yield at_quantiles(layers, rounds_to)


def halved(layers: Layers) -> Stages:
    """In two parts by their shares of the stages, as good as can be; then each part again."""

    def cut(start: int, stop: int, p: int) -> list[int]:
        if p == 1:
            return [start]
        left = p // 2
        right = p - left

        def worse(at: int) -> float:
            first, second = layers.costs[start:at], layers.costs[at:stop]
            return max(sum(first) / left, sum(second) / right)

        at = min(range(start + left, stop - right + 1), key=worse)
        return [*cut(start, at, left), *cut(at, stop, right)]

    return stages_between([*cut(0, len(layers.costs), layers.num_stages), len(layers.costs)])


def fewest_squares(layers: Layers) -> int:
    """The least sum of squares of the stages' costs: what is best by another measure."""
    upto = [0, *accumulate(layers.costs)]

    @cache
    def best(n: int, p: int) -> int:
        if p == 1:
            return upto[n] ** 2
        return min(best(i, p - 1) + (upto[n] - upto[i]) ** 2 for i in range(p - 1, n))

    return best(len(layers.costs), layers.num_stages)


def squares(layers: Layers, stages: Stages) -> int:
    """The sum of squares of what the stages cost."""
    return sum(sum(layers.costs[layer] for layer in stage) ** 2 for stage in stages)
