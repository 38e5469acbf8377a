"""Colours, type sizes and time units shared by every picture.

Communication is saturated and computing is pale blue-grey, so the two differ in lightness and
survive a black-and-white printer; within communication the hues are Okabe and Ito's, which the
common forms of colour blindness keep apart. Where there is room, bars and cells carry text as well.
"""

import colorsys
from collections.abc import Sequence
from typing import Any, NamedTuple

INK = "#222222"
FAINT_INK = "#6b6b6b"
GRID = "#dddddd"
ALARM = "#a50026"

BASE_POINTS = 10.0
SMALL_POINTS = 8.5
TITLE_POINTS = 12.0

# Arguments of matplotlib's text().
TITLE: dict[str, Any] = {
    "fontsize": TITLE_POINTS,
    "fontweight": "bold",
    "va": "center",
    "color": INK,
}
SMALL: dict[str, Any] = {"fontsize": SMALL_POINTS, "va": "center", "color": INK}
FAINT: dict[str, Any] = SMALL | {"color": FAINT_INK}

OTHER_WORK = "other work"
_OTHER_WORK_COLOUR = "#ececec"
# The regions of a training step look the same in every picture; others follow in order.
_STEP_COLOURS = {"forward": "#d3e3f3", "backward": "#a9c6e3", "optimizer": "#83a8cd"}
_REGION_COLOURS = ("#c3d5cd", "#9db8b0", "#cbcce6", "#a5a8cf", "#d9cfc3", "#bcae9d")


class KindFamily(NamedTuple):
    """Kinds of operation that share a colour because they are read as one thing."""

    label: str
    colour: str
    kinds: tuple[str, ...]


KIND_FAMILIES = (
    KindFamily("send / recv", "#e69f00", ("send", "recv")),
    KindFamily("all_reduce", "#d55e00", ("all_reduce",)),
    KindFamily("reduce_scatter", "#cc79a7", ("reduce_scatter",)),
    KindFamily("all_gather", "#009e73", ("all_gather",)),
    KindFamily("all_to_all", "#f0e442", ("all_to_all",)),
    KindFamily("broadcast, scatter, gather", "#0072b2", ("broadcast", "scatter", "gather")),
    KindFamily("barrier, split", "#444444", ("barrier", "split")),
)
_FAMILY_OF = {kind: family for family in KIND_FAMILIES for kind in family.kinds}

# One colour per rank, light enough for dark text on top; they repeat after eight. Any two differ
# under every common form of colour blindness (tests/unit/test_viz_timeline.py measures it).
_RANK_COLOURS = (
    *("#56b4e9", "#f0b13c", "#c5e0a8", "#e0705a"),
    *("#9c849c", "#8484f0", "#f6c6e0", "#84b49c"),
)


def kind_family(kind: str) -> KindFamily:
    """The family of an operation's kind; a kind not known here gets one of its own, in grey."""
    return _FAMILY_OF.get(kind, KindFamily(kind, "#777777", (kind,)))


def region_colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each region name, a step's own first; OTHER_WORK is the palest."""
    named = [name for name in dict.fromkeys(names) if name != OTHER_WORK]
    others = [name for name in named if name not in _STEP_COLOURS]
    colours = {name: _REGION_COLOURS[i % len(_REGION_COLOURS)] for i, name in enumerate(others)}
    step_first = [name for name in _STEP_COLOURS if name in named] + others
    return {
        OTHER_WORK: _OTHER_WORK_COLOUR,
        **{name: _STEP_COLOURS.get(name) or colours[name] for name in step_first},
    }


def rank_colour(rank: int) -> str:
    """The colour that stands for a rank's data wherever it goes."""
    return _RANK_COLOURS[rank % len(_RANK_COLOURS)]


def text_on(colour: str) -> str:
    """Black or white, whichever reads better on `colour` (a "#rrggbb")."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    return INK if luma > 0.55 else "#ffffff"


def paler(colour: str, amount: float = 0.6) -> str:
    """`colour` ("#rrggbb") moved towards white by `amount` of the way."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    hue, lightness, saturation = colorsys.rgb_to_hls(*channels)
    pale = colorsys.hls_to_rgb(hue, lightness + (1 - lightness) * amount, saturation)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in pale)


class TimeUnit(NamedTuple):
    """A unit for an axis: `per_second` of it make a second."""

    name: str
    per_second: float


def time_unit(span_s: float) -> TimeUnit:
    """Microseconds, milliseconds or seconds, so that an axis over `span_s` has readable numbers."""
    if span_s < 2e-3:
        return TimeUnit("µs", 1e6)
    if span_s < 2.0:
        return TimeUnit("ms", 1e3)
    return TimeUnit("s", 1.0)
