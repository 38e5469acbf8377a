"""Which layers go to which stage: the cut that makes the slowest stage as fast as can be.

A pipeline goes at the pace of its slowest stage, and layers are not alike: a head over a large
vocabulary costs as much as several blocks, an embedding almost nothing.

    costs 1 4 4 4 4 9, 3 stages     even  [1 4] [4 4] [4 9]   13      best  [1 4 4] [4 4] [9]   9

Exact, by dynamic programming over the number of layers and of stages:
    best(n, k) = the least over i of max(best(i, k - 1), costs[i] + ... + costs[n - 1])
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from labkit import arguments


def balance(costs: Sequence[float], num_stages: int) -> list[range]:
    """By stage, its layers: neighbours, at least one, and the dearest stage as cheap as possible.

    costs: of each layer, with embedding and head, in any unit. Where several cuts are as good, the
    early stages get more. Time: num_stages * layers**2.
    balance([1, 4, 4, 4, 4, 9], 3) == [range(0, 3), range(3, 5), range(5, 6)]
    ValueError: more stages than layers; a cost below 0. TypeError: no numbers.
    """
    _check(costs, num_stages)
    num_layers = len(costs)
    upto = [0.0, *accumulate(float(cost) for cost in costs)]
    # best[k][n]: the dearest of k stages that hold the first n layers; cut[k][n]: where the last
    # of them begins. Layers that are too few for k stages cost infinity.
    best = [[0.0] + [float("inf")] * num_layers]
    cut: list[list[int]] = [[0] * (num_layers + 1)]
    for k in range(1, num_stages + 1):
        best.append([float("inf")] * (num_layers + 1))
        cut.append([0] * (num_layers + 1))
        for n in range(k, num_layers + 1):
            for i in range(k - 1, n):
                dearest = max(best[k - 1][i], upto[n] - upto[i])
                if dearest <= best[k][n]:  # "<=": of equally good cuts the latest
                    best[k][n], cut[k][n] = dearest, i
    ends = [num_layers]
    for k in range(num_stages, 0, -1):
        ends.append(cut[k][ends[-1]])
    return [range(start, stop) for start, stop in pairwise(reversed(ends))]


def even(num_layers: int, num_stages: int) -> list[range]:
    """By stage, its layers by number alone; the first stages hold one more where it must be."""
    arguments.whole("num_stages", num_stages, f"1 to num_layers={num_layers}", most=num_layers)
    share, rest = divmod(num_layers, num_stages)
    starts = [stage * share + min(stage, rest) for stage in range(num_stages + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def stage_costs(costs: Sequence[float], stages: Sequence[range]) -> list[float]:
    """By stage, what its layers cost together."""
    return [sum(costs[layer] for layer in layers) for layers in stages]


def _check(costs: Sequence[float], num_stages: int) -> None:
    for layer, cost in enumerate(costs):
        arguments.number(f"costs[{layer}]", cost, "0 or more", least=0)
    arguments.whole("num_stages", num_stages, "1 or more")
    if num_stages > len(costs):
        raise ValueError(
            f"num_stages={num_stages} for {len(costs)} layers: a stage needs a layer; try "
            f"{len(costs)} or fewer"
        )
