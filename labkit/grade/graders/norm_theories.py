"""Mistakes in a global norm, by the norm that each rank then has."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from labkit.grade.graders.norm_inputs import AXES, Given, Held, squared


class Mistake(NamedTuple):
    """A name for it, and the norm that each rank returns."""

    name: str
    explanation: str
    norms: list[float]
    hint: int = 2


Counts = Callable[[int, Held], bool]
"""Whether a rank adds a parameter's squares."""


def own_norms(given: Given, counts: Counts | None = None) -> list[float]:
    """Of what each rank holds, or of what it counts."""
    return [value**0.5 for value in _own(given, counts or (lambda rank, held: True))]


def mistakes(given: Given) -> Iterator[Mistake]:
    """In the order in which they are tried."""
    yield from _of_copies(given)
    yield from _of_what_is_left_out(given)
    yield from _of_axis_orders(given)
    yield from _of_groups(given)
    yield from _of_sums(given)


def _own(given: Given, counts: Counts) -> list[float]:
    return [
        sum(squared(each.gradient) for each in its if counts(rank, each))
        for rank, its in enumerate(given.held)
    ]


def _reduced(given: Given, squares: Sequence[float], over: Sequence[str]) -> list[float]:
    """By rank, the root of the sum over its group along these axes."""
    places = [given.place(rank) for rank in range(len(squares))]
    kept = [axis for axis in AXES if axis not in over]
    return [
        math.sqrt(
            sum(
                value
                for value, its in zip(squares, places)
                if all(its[axis] == place[axis] for axis in kept)
            )
        )
        for place in places
    ]


def _by_counts(given: Given, name: str, why: str, counts: Counts, hint: int = 2) -> Mistake:
    """One that sums over all axes what these ranks count."""
    return Mistake(name, why, _reduced(given, _own(given, counts), AXES), hint)


def _of_copies(given: Given) -> Iterator[Mistake]:
    """A kind of copy is counted every time."""

    def but(axis: str) -> Counts:
        return lambda rank, held: given.counts(
            rank, held._replace(copied_over=tuple(a for a in held.copied_over if a != axis))
        )

    by = functools.partial(_by_counts, given)
    yield by(
        "counts what tp ranks share once for each of them",
        "LayerNorms and biases are not sharded: every tp rank has the same gradient of them, and "
        "the sum over tp has it tp times. One rank of the group counts it, the others do not",
        but("tp"),
    )
    yield by(
        "counts the tied embedding on both stages",
        "the first and the last stage have the same gradient of it, which is one gradient of the "
        "model: one of the two stages leaves it out",
        lambda rank, held: given.counts(rank, held._replace(is_tied=False)),
    )
    yield by(
        "counts averaged gradients once for each dp rank",
        "after data parallelism's all-reduce every dp rank has the same mean: the sum over dp has "
        "it dp times, and the norm is too large by its root",
        but("dp"),
    )
    yield by(
        "counts every copy",
        "the norm is the whole model's, each number once, and not that of all memory: of ranks "
        "with the same gradient one counts it, and of the two stages with the embedding one",
        lambda rank, held: True,
    )


def _of_what_is_left_out(given: Given) -> Iterator[Mistake]:
    """A kind of gradient is counted by no rank."""
    by = functools.partial(_by_counts, given)
    yield by(
        "leaves out the tied embedding",
        "one of the stages counts it: where pp is 1, the only stage is the last as well as the "
        "first",
        lambda rank, held: given.counts(rank, held) and not held.is_tied,
        3,
    )
    yield by(
        "leaves out shards",
        "where a gradient is sharded, each rank has other numbers, and every rank counts its own: "
        "only what is copied is left to the first rank of the group",
        lambda rank, held: (
            given.counts(rank, held) and not any(given.place(rank)[a] for a in ("dp", "tp"))
        ),
    )
    yield by(
        "leaves out what tp ranks share",
        "they are part of the gradient as well: one tp rank counts them",
        lambda rank, held: given.counts(rank, held) and "tp" not in held.copied_over,
    )
    yield by(
        "leaves out what is no matrix",
        "biases, norms and gates are part of the gradient as well; what is copied, copied_over "
        "says, and no shape does",
        lambda rank, held: (
            given.counts(rank, held) and held.gradient is not None and held.gradient.dim() > 1
        ),
    )


def _of_axis_orders(given: Given) -> Iterator[Mistake]:
    """Who counts is worked out of the number of the rank."""
    for order in itertools.permutations(AXES):
        other = replace(given, sizes={axis: given.sizes[axis] for axis in order})
        yield _by_counts(
            given,
            "takes the order of the axes for granted",
            "coordinates were worked out of the number of the rank, as if the axes were always in "
            "one order. Here they are in any: ask the groups, mesh.tp.rank",
            other.counts,
        )


def _of_groups(given: Given) -> Iterator[Mistake]:
    """The sum goes over some axes only."""
    for counts in (given.counts, lambda rank, held: True):
        squares = _own(given, counts)
        yield Mistake(
            "returns the norm of one rank's gradients",
            "it is the whole model's that counts: squares are added up over all ranks, and then "
            "comes the root. Ranks that clip by different norms make different models of one",
            _reduced(given, squares, ()),
        )
    squares = _own(given, given.counts)
    for number in (2, 1):
        for over in itertools.combinations(AXES, number):
            missing = [axis for axis in AXES if axis not in over and given.sizes[axis] > 1]
            if missing and any(given.sizes[axis] > 1 for axis in over):
                yield Mistake(
                    f"does not add up over {' and '.join(missing)}",
                    "ranks along that axis have other parameters, or other shards of them, and "
                    "their squares belong to the sum: over tp, over pp, and over dp where ZeRO "
                    "shards gradients. What is copied along an axis only one of its ranks counts",
                    _reduced(given, squares, over),
                )


def _of_sums(given: Given) -> Iterator[Mistake]:
    """Everything is counted once, and put together in another way."""
    n, norm = len(given.held), given.norm()
    counted = own_norms(given, given.counts)
    yield Mistake(
        "adds up norms and not squares",
        "norms do not add: the norm of two parts is the root of the sum of their squares. Take the "
        "root once, at the end",
        [sum(counted)] * n,
    )
    by_parameter = [
        squared(each.gradient) ** 0.5
        for rank, its in enumerate(given.held)
        for each in its
        if given.counts(rank, each)
    ]
    yield Mistake(
        "adds up norms and not squares",
        "norms do not add: the norm of two parts is the root of the sum of their squares. Take the "
        "root once, at the end",
        [sum(by_parameter)] * n,
    )
    yield Mistake(
        "takes no root", "that is the sum of squares; the norm is its root", [norm**2] * n, 3
    )
    yield Mistake(
        "averages the squares over the ranks",
        'every rank has another part of the sum: op="sum". A mean is for what all of them have',
        [norm / n**0.5] * n,
    )
    yield Mistake(
        "takes the largest norm of a rank",
        "the norm of all parts is at least as large as that of the largest part: add up squares",
        [max(counted)] * n,
    )
    yield Mistake(
        "returns the norm after clipping",
        "the norm before it is what a training run plots: after it there is nothing to see",
        [min(norm, given.max_norm)] * n,
    )


def in_float32(given: Given) -> bool:
    """Whether squares of these gradients are more, or less, than float32 can hold."""
    norm = given.norm()
    return norm > 0 and not 1e-18 < norm < torch.finfo(torch.float32).max ** 0.5
