"""Which layers go to which stage: the cut that makes the slowest stage as fast as can be.

A pipeline goes at the pace of its slowest stage, and layers are not alike: a head over a large
vocabulary costs as much as several blocks, an embedding almost nothing.

    costs 1 4 4 4 4 9, 3 stages     even  [1 4] [4 4] [4 9]   13      best  [1 4 4] [4 4] [9]   9

Exact, by dynamic programming over the number of layers and of stages:
    best(n, k) = the least over i of max(best(i, k - 1), costs[i] + ... + costs[n - 1])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Any

from labkit import arguments
from labkit.pipeline.amounts import plain


def balance(costs: Sequence[float], num_stages: int) -> list[range]:
    """By stage, its layers: neighbours, at least one, and the slowest stage as fast as possible.

    costs: of each layer, with embedding and head, in any unit. Of cuts that are as good it is the
    one whose stages are most alike: the least sum of squares. Time: 2 num_stages * layers**2.
    balance([1, 4, 4, 4, 4, 9], 3) == [range(0, 3), range(3, 5), range(5, 6)]
    ValueError: more stages than layers; a cost below 0. TypeError: no numbers.
    """
    costs = _numbers(costs)
    _check(costs, num_stages)
    slowest, _ = _best_cut(costs, num_stages, max)

    def sum_of_squares(before: float, cost: float) -> float:
        return before + cost * cost if cost <= slowest else inf

    _, stages = _best_cut(costs, num_stages, sum_of_squares)
    return stages


def _best_cut(
    costs: Sequence[float], num_stages: int, add: Callable[[float, float], float]
) -> tuple[float, list[range]]:
    """The cut whose stages' costs, taken together by `add` one after the other, come to least."""
    num_layers = len(costs)
    upto = [0.0, *accumulate(float(cost) for cost in costs)]
    # best[n]: of the first n layers on k stages. starts[k - 1][n]: where the last of them begins.
    best = [0.0] + [inf] * num_layers
    starts: list[list[int]] = []
    for k in range(1, num_stages + 1):
        before, best, start = best, [inf] * (num_layers + 1), [k - 1] * (num_layers + 1)
        for n in range(k, num_layers + 1):
            for i in range(k - 1, n):
                together = add(before[i], upto[n] - upto[i])
                if together < best[n]:
                    best[n], start[n] = together, i
        starts.append(start)
    ends = [num_layers]
    for start in reversed(starts):
        ends.append(start[ends[-1]])
    return best[num_layers], [range(a, b) for a, b in pairwise(reversed(ends))]


def even(num_layers: int, num_stages: int) -> list[range]:
    """By stage, its layers by number alone; the first stages hold one more where it must be.

    ValueError, TypeError: counts under 1, no whole numbers, more stages than layers.
    """
    arguments.whole("num_layers", num_layers, "1 or more")
    arguments.whole("num_stages", num_stages, f"1 to num_layers={num_layers}", most=num_layers)
    share, rest = divmod(num_layers, num_stages)
    starts = [stage * share + min(stage, rest) for stage in range(num_stages + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def stage_costs(costs: Sequence[float], stages: Sequence[range]) -> list[float]:
    """By stage, what its layers cost together. ValueError: a layer that has no cost."""
    costs = _numbers(costs)
    for stage, layers in enumerate(stages):
        for layer in layers:
            if not 0 <= layer < len(costs):
                raise ValueError(
                    f"stage {stage} has layer {layer}, and costs has {len(costs)} numbers: give "
                    "one for each layer, and stages that hold these layers"
                )
    return [sum(costs[layer] for layer in layers) for layers in stages]


def _numbers(costs: Any) -> tuple[float, ...]:
    given = plain(costs)
    if not isinstance(given, tuple) or any(isinstance(each, list | tuple) for each in given):
        shown = " ".join(repr(costs).split())[:80]
        raise TypeError(f"costs={shown}: give a list of numbers, one for each layer")
    for layer, cost in enumerate(given):
        arguments.number(f"costs[{layer}]", cost, "0 or more", least=0)
    return given


def _check(costs: Sequence[float], num_stages: int) -> None:
    arguments.whole("num_stages", num_stages, "1 or more")
    if num_stages > len(costs):
        raise ValueError(
            f"num_stages={num_stages} for {len(costs)} layers: a stage needs a layer; try "
            f"{len(costs)} or fewer"
        )
