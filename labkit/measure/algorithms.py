"""The all-reduces that can be measured by name, each with the formula of its time.

ring               2(n-1) messages of one n-th                 labkit.collectives
tree               up to the root and down again
double_tree        two trees with half of the bytes each
halving_doubling   halves, quarters, ... and back
gloo               the library's own: a ring too
shared_memory      no messages: through memory that all ranks see
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from labkit import collectives
from labkit.collectives.stream import BLOCK_BYTES
from labkit.comm import Group, shared_memory_all_reduce
from labkit.measure.alpha_beta_fit import Formula, all_reduce_seconds

_FORMULA = "labkit.measure.alpha_beta_fit.all_reduce_seconds"


def one_latency_seconds(nbytes: float, n: int, alpha: float, beta: float) -> float:
    """Return alpha + nbytes beta: one start and every byte once, if no better formula is known."""
    return alpha + nbytes * beta if n > 1 else 0.0


@dataclass(frozen=True)
class Algorithm:
    """An all-reduce to measure, and the formula that predicts its time.

    all_reduce: fn(x, group) returns the sum of x over the ranks; with an argument `out` it is
    called with out=x and works in place, as all of labkit's do. seconds: (nbytes, n, alpha, beta),
    linear in the last two; without one, one latency and every byte once. is_throttled: whether it
    is made of messages, which a labkit.Topology slows down.
    """

    name: str
    all_reduce: Callable[..., torch.Tensor]
    seconds: Formula = one_latency_seconds
    is_throttled: bool = True

    def reduce(self, x: torch.Tensor, group: Group) -> torch.Tensor:
        """Return the sum of `x` over the ranks, in x itself if the algorithm can do that."""
        if accepts_out(self.all_reduce):
            return self.all_reduce(x, group, out=x)
        return self.all_reduce(x, group)


def _library(x: torch.Tensor, group: Group, *, out: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = group.all_reduce(x, out=out)
    return result


# Trees send blocks of this size; halving-doubling sends its longest messages in such blocks, whose
# way none waits for, so that its formula has no blocks, like the ring's.
_in_blocks = partial(partial, all_reduce_seconds, block_bytes=BLOCK_BYTES)
_NAMED = {
    one.name: one
    for one in (
        Algorithm("ring", collectives.ring_all_reduce, all_reduce_seconds),
        Algorithm("tree", collectives.tree_all_reduce, _in_blocks(algorithm="tree")),
        Algorithm(
            "double_tree",
            collectives.double_tree_all_reduce,
            _in_blocks(algorithm="double_tree"),
        ),
        Algorithm(
            "halving_doubling",
            collectives.halving_doubling_all_reduce,
            partial(all_reduce_seconds, algorithm="halving_doubling"),
        ),
        Algorithm("gloo", _library, all_reduce_seconds, is_throttled=False),
        Algorithm("shared_memory", shared_memory_all_reduce, is_throttled=False),
    )
}
NAMES = tuple(_NAMED)
"""Names that `chosen` knows."""


def chosen(algorithms: Any) -> list[Algorithm]:
    """Return the algorithms of names, of functions and of Algorithms, in this order.

    Raises ValueError for an unknown name, for one given twice and for an empty list, and
    TypeError for anything but these three.
    """
    if isinstance(algorithms, (str, Algorithm)) or callable(algorithms):
        algorithms = [algorithms]
    found = [_one(each) for each in algorithms]
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not found or twice:
        raise ValueError(
            f"algorithms={names}: give one or more, each once; there are {', '.join(NAMES)}, and "
            "measure.Algorithm(name, fn) gives a function of yours another name"
        )
    return found


def _one(algorithm: Any) -> Algorithm:
    if isinstance(algorithm, Algorithm):
        return algorithm
    if isinstance(algorithm, str):
        if algorithm not in _NAMED:
            raise ValueError(
                f"there is no algorithm {algorithm!r}; there are {', '.join(NAMES)}, or pass a "
                "function of yours, fn(x, group)"
            )
        return _NAMED[algorithm]
    if callable(algorithm):
        return Algorithm(getattr(algorithm, "__name__", type(algorithm).__name__), algorithm)
    raise TypeError(
        f"{algorithm!r} is no algorithm: give one of {', '.join(NAMES)}, a function fn(x, group) "
        "that returns the sum, or a measure.Algorithm"
    )


def accepts_out(all_reduce: Callable[..., Any]) -> bool:
    """Return whether a function takes an `out` for its result."""
    try:
        return "out" in inspect.signature(all_reduce).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False
