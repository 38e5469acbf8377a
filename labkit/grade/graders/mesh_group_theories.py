"""Wrong ideas of whom a rank talks to along axes, and the groups that they lead to."""

import itertools
from collections.abc import Callable

from labkit.grade.by_theory import Theory
from labkit.grade.graders.mesh_questions import Asked, places, right_group
from labkit.grade.graders.mesh_theories import (
    NEXT_SIZE,
    SLOWEST_FIRST,
    next_size,
    reversed_places,
    stride,
)


def _where(keep: Callable[[Asked, int], bool]) -> Callable[[Asked], list[int]]:
    """Ranks that agree with this one along those axes which `keep` says."""

    def answer(asked: Asked) -> list[int]:
        everyone = places(asked.lengths)
        mine = everyone[asked.rank]
        kept = [axis for axis in range(len(mine)) if keep(asked, axis)]
        return [
            number
            for number, its in enumerate(everyone)
            if all(its[axis] == mine[axis] for axis in kept)
        ]

    return answer


def first_is_fastest(asked: Asked) -> list[int]:
    """The group in a mesh that is numbered the other way round."""
    everyone = reversed_places(asked)
    mine, free = everyone[asked.rank], asked.chosen
    others = [axis for axis in range(len(mine)) if axis not in free]
    return [n for n, its in enumerate(everyone) if all(its[i] == mine[i] for i in others)]


def group_of_0(asked: Asked) -> list[int]:
    """That of the mesh's first rank."""
    right = right_group(asked)
    return [rank - right[0] for rank in right]


def only(asked: Asked, which: int) -> list[int]:
    """The group along one of the axes."""
    return right_group(Asked(asked.sizes, asked.rank, (asked.axes[which],)))


def _neighbours(asked: Asked) -> list[int]:
    size = len(right_group(asked))
    first = asked.rank // size * size
    return list(range(first, first + size))


def _as_given(asked: Asked) -> list[int]:
    """The axis that is named last varies fastest."""
    first = right_group(asked)[0]
    steps = [
        [at * stride(asked, axis) for at in range(asked.lengths[axis])] for axis in asked.chosen
    ]
    return [first + sum(each) for each in itertools.product(*steps)]


def _bynext_size(asked: Asked) -> list[int]:
    mine, free = places(asked.lengths)[asked.rank], asked.chosen
    first = asked.rank - sum(mine[axis] * next_size(asked, axis) for axis in free)
    steps = [[at * next_size(asked, axis) for at in range(asked.lengths[axis])] for axis in free]
    return sorted(first + sum(each) for each in itertools.product(*steps))


def _turned(asked: Asked) -> list[int]:
    right = right_group(asked)
    at = right.index(asked.rank)
    return right[at:] + right[:at]


def _cross(asked: Asked) -> list[int]:
    return sorted({rank for which in range(len(asked.axes)) for rank in only(asked, which)})


def _from_here(asked: Asked) -> list[int]:
    right = right_group(asked)
    return [asked.rank + rank - right[0] for rank in right]


_ORDER = (
    "the ranks are in another order",
    "every group has the right ranks, and they come by number: along joined axes the slower axis "
    "of the mesh varies slowest, however the axes are named. Position in a group is the rank in it",
)
ONE_AXIS = (
    "takes one of several axes",
    "over dp and ep the ranks are all that differ in dp, in ep, or in both: as many as the product "
    "of their sizes",
)

GROUPS: tuple[Theory[Asked], ...] = (
    Theory(*SLOWEST_FIRST, first_is_fastest),
    Theory(
        "gives the ranks that agree along the axes",
        "the group along tp has every tp coordinate once, and agrees in all others: those with "
        "this rank's tp coordinate are the group over all other axes",
        _where(lambda asked, axis: axis in asked.chosen),
        1,
    ),
    Theory(
        "forgets that slower axes stay as they are",
        "the ranks that are `stride` apart go on through the whole mesh: the group ends after as "
        "many of them as the axis is long",
        _where(lambda asked, axis: axis not in asked.chosen and axis > min(asked.chosen)),
    ),
    Theory(
        "takes neighbours for a group",
        "only along the last axis are a group's numbers next to each other; along another one they "
        "are a stride apart",
        _neighbours,
        1,
    ),
    Theory(*NEXT_SIZE, _bynext_size, 3),
    Theory(
        "begins at this rank",
        "the first of the group has coordinate 0 along the axes: go back by coordinate * stride "
        "first",
        _from_here,
        3,
    ),
    Theory(
        "gives rank 0's group to all ranks",
        "there is one group along an axis for each place along all the others; this rank's begins "
        "at its own coordinates, with 0 along the axes",
        group_of_0,
    ),
    Theory(
        "leaves this rank out",
        "a rank belongs to its own group: along an axis of size 1 it is alone there",
        lambda asked: [rank for rank in right_group(asked) if rank != asked.rank],
        3,
    ),
    Theory(*_ORDER, _as_given, 3),
    Theory(*_ORDER, _turned, 3),
    Theory(*_ORDER, lambda asked: right_group(asked)[::-1], 3),
    Theory(
        "joins the groups and not the axes",
        "over dp and ep belong also the ranks that differ from this one in both: the groups along "
        "dp and along ep are a cross, and the joined axes a rectangle",
        _cross,
        1,
    ),
    Theory(*ONE_AXIS, lambda asked: only(asked, 0)),
    Theory(*ONE_AXIS, lambda asked: only(asked, -1)),
    Theory(
        "has no group along an axis of one rank",
        "there the rank is alone, and its group has one member: itself",
        lambda asked: right_group(asked) if len(right_group(asked)) > 1 else [],
        3,
    ),
)
