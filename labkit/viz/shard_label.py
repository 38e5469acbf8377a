"""Words that fit: inside the parts of a tensor, all in one way, and in a line above it.

A part says who holds what on two lines or one, on three, or upright; where that is too much, who
alone; and where even the number of a rank is too much, nothing.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from labkit.viz import style
from labkit.viz.text_size import text_inches

_SMALLEST_POINTS = 7.0
_AIR = 0.02  # inches left free on each side


class Box(NamedTuple):
    """A rectangle in inches; y grows downwards."""

    x: float
    y: float
    width: float
    height: float


class Label(NamedTuple):
    """What to write in a box, such as "ranks 0, 1" and "rows 0-7"; a white ground on stripes."""

    box: Box
    who: str
    what: str
    is_on_stripes: bool


class _Way(NamedTuple):
    text: str
    degrees: int
    points: float

    def fits(self, box: Box) -> bool:
        width, height = text_inches(self.text, self.points)
        if self.degrees:
            width, height = height, width
        return width + 2 * _AIR <= box.width and height + 2 * _AIR <= box.height


def draw_labels(axes: Axes, labels: Sequence[Label]) -> None:
    """In the best way that fits in all boxes, or else in each box in its own best way.

    A box in which nothing fits stays empty and does not count. Units of `axes` are inches.
    """
    ways = [_ways(label) for label in labels]
    fitting = [
        [number for number, way in enumerate(own) if way.fits(label.box)]
        for label, own in zip(labels, ways)
    ]
    common = set.intersection(*(set(each) for each in fitting if each)) if any(fitting) else set()
    for label, own, numbers in zip(labels, ways, fitting):
        if numbers:
            _write(axes, label, own[min(common or numbers)])


def draw_line(axes: Axes, x: float, y: float, text: str, room: float, look: dict[str, Any]) -> None:
    """One line of text, in smaller type where it is longer than `room` inches."""
    width, _ = text_inches(text, look["fontsize"], look.get("fontweight", "normal"))
    points = look["fontsize"] * min(1, room / max(width, 1e-9))
    axes.text(x, y, text, **look | {"fontsize": points})


def _ways(label: Label) -> list[_Way]:
    """From the best to read to the least, the same for every label."""
    who, what = label.who, label.what
    both = [each for each in (who, *what.split(" ", 1)) if each]
    forms = (
        ("\n".join(filter(None, (who, what))), 0),
        (", ".join(filter(None, (who, what))), 0),
        ("\n".join(both), 0),
        ("\n".join(filter(None, (who, what))), 90),
        (who, 0),
        (who, 90),
        (who.removeprefix("ranks ").removeprefix("rank "), 0),
    )
    sizes = (style.SMALL_POINTS, _SMALLEST_POINTS)
    return [_Way(text, degrees, points) for text, degrees in forms for points in sizes]


def _write(axes: Axes, label: Label, way: _Way) -> None:
    x, y, width, height = label.box
    look: dict[str, Any] = {"ha": "center", "linespacing": 1.1, "zorder": 5}
    look |= {"rotation": way.degrees, "fontsize": way.points}
    if label.is_on_stripes:
        look["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
    axes.text(x + width / 2, y + height / 2, way.text, **style.SMALL | look)
