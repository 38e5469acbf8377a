"""The numbers in a schedule's boxes: outlines of digits, drawn all at once.

As matplotlib's Text each of some hundred numbers would be laid out anew, which takes longer than
all the rest of a picture together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from labkit.viz import style

_LARGEST, _SMALLEST = style.SMALL_POINTS, 5.0  # type sizes
_DIGIT = 0.64  # width of a digit, of the type size
_MARGIN = 0.9  # points that a number leaves free, both sides together


class Number(NamedTuple):
    """A number to be written at a place, in the axes' units, on a colour, if there is room."""

    text: str
    x: float
    y: float
    room: float
    """Width of its box, in points."""
    on: str


def number_size(numbers: Sequence[Number]) -> float:
    """The largest type size at which nine numbers of ten fit, or the smallest there is."""
    sizes = sorted((each.room - _MARGIN) / (_DIGIT * len(each.text)) for each in numbers)
    return max(_SMALLEST, min(_LARGEST, sizes[len(sizes) // 10]))


def fitting(numbers: Sequence[Number], points: float) -> list[Number]:
    """Those that have room at this type size."""
    # Boxes of equal cost differ in the last bits; the size is that at which one of them just fits.
    rest = _MARGIN - 1e-6
    return [each for each in numbers if _DIGIT * points * len(each.text) + rest <= each.room]


def draw_numbers(axes: Axes, numbers: Sequence[Number]) -> None:
    """All in one size; those that do not fit are left out."""
    points = number_size(numbers)
    shown = fitting(numbers, points)
    if not shown:
        return
    collection = PathCollection(
        [outline(each.text) for each in shown],
        offsets=[(each.x, each.y) for each in shown],
        offset_transform=axes.transData,
        facecolors=[style.text_on(each.on) for each in shown],
        linewidths=0,
        zorder=3,
    )
    figure = axes.get_figure()
    assert figure is not None, "axes belong to a picture"
    collection.set_transform(Affine2D().scale(points / 72) + figure.dpi_scale_trans)
    axes.add_collection(collection, autolim=False)


@cache
def outline(text: str) -> Path:
    """The digits' shape, centred on the origin, for a type size of 1."""
    size = 100.0  # of outlines at size 1 a font keeps too few decimals
    path = TextPath((0, 0), text, size=size, prop=FontProperties())
    box, zero = path.get_extents(), TextPath((0, 0), "0", size=size).get_extents()
    middle = Affine2D().translate(-(box.x0 + box.x1) / 2, -(zero.y0 + zero.y1) / 2)
    return Path(path.vertices, path.codes).transformed(middle.scale(1 / size))
