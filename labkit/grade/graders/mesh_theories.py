"""Wrong ideas of where a rank is, and the coordinates that they lead to."""

import math
from collections.abc import Callable

from labkit.grade.by_theory import Theory
from labkit.grade.graders.mesh_questions import Asked, places, right_coordinates

SLOWEST_FIRST = (
    "takes the first axis for the fastest",
    "the axes are given slowest first: neighbours along the last one have neighbouring numbers. "
    "Peel the coordinates off from the end",
)
NEXT_SIZE = (
    "takes the size of the next axis for the stride",
    "one step along an axis skips all ranks of all faster axes: the stride is the product of their "
    "sizes, and not the size of one of them",
)


def stride(asked: Asked, axis: int) -> int:
    """As it is: the product of the sizes of all faster axes."""
    return math.prod(asked.lengths[axis + 1 :])


def next_size(asked: Asked, axis: int) -> int:
    """Of the axis after this one; 1 after the last."""
    return asked.lengths[axis + 1] if axis + 1 < len(asked.lengths) else 1


def reversed_places(asked: Asked) -> tuple[tuple[int, ...], ...]:
    """Of every rank, were the first axis the fastest."""
    return tuple(place[::-1] for place in places(asked.lengths[::-1]))


def _each(find: Callable[[Asked, int, int], int]) -> Callable[[Asked], dict[str, int]]:
    """Coordinates from (what is asked, the number of an axis, its size)."""

    def answer(asked: Asked) -> dict[str, int]:
        of_axes = enumerate(asked.sizes)
        return {name: find(asked, axis, size) for axis, (name, size) in of_axes}

    return answer


def _without_ones(asked: Asked) -> dict[str, int]:
    right = right_coordinates(asked)
    return {name: right[name] for name, size in asked.sizes if size > 1}


COORDINATES: tuple[Theory[Asked], ...] = (
    Theory(
        *SLOWEST_FIRST, lambda asked: dict(zip(asked.names, reversed_places(asked)[asked.rank]))
    ),
    Theory(
        "does not take the rest modulo the size",
        "rank // stride counts the steps along this axis and along all slower ones; only the rest "
        "by the axis's own size is its coordinate",
        _each(lambda asked, axis, _: asked.rank // stride(asked, axis)),
        3,
    ),
    Theory(
        "forgets the stride",
        "rank % size is the coordinate along the last axis only: each slower one changes once in "
        "`stride` ranks, so divide by the stride first",
        _each(lambda asked, _, size: asked.rank % size),
        3,
    ),
    Theory(
        *NEXT_SIZE,
        _each(lambda asked, axis, size: asked.rank // next_size(asked, axis) % size),
        3,
    ),
    Theory(
        "counts an axis's own size in its stride",
        "the stride of an axis is the product of the faster sizes, its own not among them: the "
        "last axis has a stride of 1",
        _each(lambda asked, axis, size: asked.rank // (stride(asked, axis) * size) % size),
        3,
    ),
    Theory(
        "takes the modulus of another axis",
        "a coordinate runs from 0 to the size of its own axis, less 1: take rank // stride modulo "
        "that size",
        _each(
            lambda asked, axis, _: (
                asked.rank // stride(asked, axis) % asked.lengths[(axis + 1) % len(asked.lengths)]
            )
        ),
        3,
    ),
    Theory(
        "takes the modulus of another axis",
        "a coordinate runs from 0 to the size of its own axis, less 1: take rank // stride modulo "
        "that size",
        _each(lambda asked, axis, _: asked.rank // stride(asked, axis) % asked.lengths[axis - 1]),
        3,
    ),
    Theory(
        "gives the coordinates to the axes in the other order",
        "they are peeled off fastest first, and the names are slowest first: one of the two lists "
        "has to be turned round",
        lambda asked: dict(zip(asked.names, places(asked.lengths)[asked.rank][::-1])),
        3,
    ),
    Theory(
        "counts from 1",
        "coordinates begin at 0, as ranks do",
        _each(lambda asked, axis, size: asked.rank // stride(asked, axis) % size + 1),
        3,
    ),
    Theory(
        "leaves out axes of one rank",
        "an axis of size 1 has a coordinate as well, 0: what is written for the mesh then works "
        "whatever the sizes are",
        _without_ones,
        3,
    ),
)
