"""Data parallelism against one process with the whole batch: how far off is the gradient?"""

from collections.abc import Callable

import torch
from torch import nn

from labkit import Group
from labkit.data_parallel import DDP
from labkit.interview.runs.real_run import real_run, run

FEATURES, HIDDEN = 8, 16
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "none": lambda _: nn.Identity(),
}


@real_run
def distance(norm: str = "none", shares: tuple[int, ...] = (16, 16, 16, 16)) -> float:
    """|averaged - serial| / |serial| of the first layer's gradient, in float64.

    norm: "batch", "layer" or "none". shares: examples of each rank. Each rank's loss is the mean
    over its share, and gradients are averaged over ranks, as DDP does it.
    """
    if norm not in NORMS:
        raise ValueError(f"norm={norm!r}: give one of {', '.join(NORMS)}")
    return run(_far_off, len(shares), args=(norm, shares)).values[0]


def _network(norm: str) -> nn.Sequential:
    torch.manual_seed(0)
    first = nn.Linear(FEATURES, HIDDEN, bias=False)
    return nn.Sequential(first, NORMS[norm](HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)).double()


def _far_off(world: Group, norm: str, shares: tuple[int, ...]) -> float:
    serial, replica = _network(norm), _network(norm)
    model = DDP(replica, world)
    x = torch.randn(sum(shares), FEATURES).double()  # after the seed: the same on every rank
    y = x[:, :1] * x[:, 1:2]
    ((serial(x) - y) ** 2).mean().backward()
    mine, my_y = (each.split(shares)[world.rank] for each in (x, y))
    ((model(mine) - my_y) ** 2).mean().backward()
    expected, found = (next(each.parameters()).grad for each in (serial, replica))
    assert expected is not None and found is not None
    return float((found - expected).norm() / expected.norm())
