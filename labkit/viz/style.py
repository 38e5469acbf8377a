"""Colours, type sizes and time units shared by all pictures. Without matplotlib.

Communication is saturated and computing is pale blue-grey, so the two differ in lightness and
survive a black-and-white printer; within communication the hues are Okabe and Ito's, which the
common forms of colour blindness keep apart. Where there is room, bars and cells carry text as well.
"""

import colorsys
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple

from labkit.comm.operation import WAITS
from labkit.profile.activity import OTHER_WORK

INK = "#222222"
FAINT_INK = "#6b6b6b"
GRID = "#dddddd"
ALARM = "#a50026"

BASE_POINTS = 10.0
SMALL_POINTS = 8.5
SMALLEST_POINTS = 8.0  # no text in any picture is smaller: leave it out instead
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

_OTHER_WORK_COLOUR = "#ececec"
_WAITS_COLOUR = "#f8e0ae"  # waiting, as the operations are, for one on a thread of the rank's own
# The regions of a training step look the same in every picture; others follow in order.
_STEP_COLOURS = {"forward": "#d3e3f3", "backward": "#a9c6e3", "optimizer": "#83a8cd"}
_REGION_COLOURS = ("#c3d5cd", "#9db8b0", "#cbcce6", "#a5a8cf", "#d9cfc3", "#bcae9d")


class KindFamily(NamedTuple):
    """Kinds of operation that share a colour because they are read as one thing."""

    label: str
    colour: str
    kinds: tuple[str, ...]

    def label_of(self, present: Collection[str]) -> str:
        """For a legend of a picture that has these kinds: no others are named."""
        own = [kind for kind in self.kinds if kind in present]
        return own[0] if len(own) == 1 else self.label


KIND_FAMILIES = (
    KindFamily("send / recv", "#e69f00", ("send", "recv")),
    KindFamily("all_reduce", "#d55e00", ("all_reduce",)),
    KindFamily("reduce_scatter", "#cc79a7", ("reduce_scatter",)),
    KindFamily("all_gather", "#009e73", ("all_gather",)),
    KindFamily("all_to_all", "#f0e442", ("all_to_all",)),
    KindFamily("broadcast, scatter, gather", "#0072b2", ("broadcast", "scatter", "gather")),
    KindFamily("barrier, split", "#444444", ("barrier", "split", "close", "share_memory")),
)
_FAMILY_OF = {kind: family for family in KIND_FAMILIES for kind in family.kinds}

# One colour per rank, light enough for dark text on top; they repeat after eight. Any two differ
# under every common form of colour blindness (tests/unit/test_viz_timeline.py measures it).
_RANK_COLOURS = (
    *("#56b4e9", "#f0b13c", "#88e779", "#e0705a"),
    *("#9c849c", "#8484f0", "#eab8d9", "#84b49c"),
)


class Series(NamedTuple):
    """Look of one of several curves, which differ in colour, marker and line at once."""

    colour: str
    marker: str
    line: Literal["-", "--"]

    @property
    def size(self) -> float:
        """Size in points; hollow markers need more."""
        return 7.5 if self.marker in ("X", "P") else 5.5


# All-reduces look the same in every picture; other curves take the remaining looks, in order.
_SERIES_OF = {
    "ring": Series("#0072b2", "o", "-"),
    "tree": Series("#009e73", "^", "-"),
    "double_tree": Series("#56b4e9", "v", "-"),
    "halving_doubling": Series("#d55e00", "s", "-"),
    "gloo": Series("#444444", "X", "--"),
    "shared_memory": Series("#cc79a7", "P", "--"),
}
_OTHER_SERIES = (
    Series("#e69f00", "D", "-"),
    Series("#7a5195", "h", "-"),
    Series("#8c6d31", "p", "-"),
)

# Kinds of memory by a meter's and a calculator's names: the same kind has the same colour.
_MEMORY_COLOURS = {
    "parameters": "#0072b2",
    "gradients": "#e69f00",
    "master": "#56b4e9",
    "moments": "#009e73",
    "optimizer states": "#009e73",
    "casts": "#a6cee3",
    "whole units": "#8c6d31",
    "buffers": "#8c6d31",
    "activations": "#d55e00",
    "recomputed layer": "#f2a98a",
    "head inputs": "#9e3a00",
    "logits and loss": "#cc79a7",
    "gradients of the loss": "#eac4da",
    "gathered gradients": "#f5cf7a",
    "stage buffers": "#6b7a8f",
}


def series(names: Sequence[str]) -> dict[str, Series]:
    """Return a look for each curve by name: no two alike before all looks are taken."""
    taken = [_SERIES_OF[name] for name in names if name in _SERIES_OF]
    free = [look for look in (*_OTHER_SERIES, *_SERIES_OF.values()) if look not in taken]
    free = free or list(_OTHER_SERIES)
    others = [name for name in names if name not in _SERIES_OF]
    chosen = {name: free[number % len(free)] for number, name in enumerate(others)}
    return {name: _SERIES_OF.get(name) or chosen[name] for name in names}


def kind_family(kind: str) -> KindFamily:
    """Return the family of an operation's kind; an unknown kind gets one of its own, in grey."""
    return _FAMILY_OF.get(kind, KindFamily(kind, "#777777", (kind,)))


def memory_colour(kind: str) -> str:
    """Return the colour of a kind of memory, or grey."""
    return _MEMORY_COLOURS.get(kind, "#b8b8b8")


def region_colours(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each region name, a step's own first; OTHER_WORK is the palest,
    and WAITS, which is not computing, is the last."""
    named = [name for name in dict.fromkeys(names) if name not in (OTHER_WORK, WAITS)]
    others = [name for name in named if region_label(name) not in _STEP_COLOURS]
    colours = {name: _REGION_COLOURS[i % len(_REGION_COLOURS)] for i, name in enumerate(others)}
    steps = [name for label in _STEP_COLOURS for name in named if region_label(name) == label]
    return {
        OTHER_WORK: _OTHER_WORK_COLOUR,
        **{name: _STEP_COLOURS[region_label(name)] for name in steps},
        **colours,
        **({WAITS: _WAITS_COLOUR} if WAITS in names else {}),
    }


def region_label(name: str) -> str:
    """Return a region's name in a legend: `forward` for `forward of 3`, which looks the same."""
    label = name.partition(" of ")[0]
    return label if label in _STEP_COLOURS else name


def rank_colour(rank: int) -> str:
    """Return the colour of a rank's data, wherever it goes."""
    return _RANK_COLOURS[rank % len(_RANK_COLOURS)]


def text_on(colour: str) -> str:
    """Return black or white, whichever reads better on `colour` (a "#rrggbb")."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    return INK if luma > 0.55 else "#ffffff"


def paler(colour: str, amount: float = 0.6) -> str:
    """Move `colour` ("#rrggbb") towards white by `amount` of the way."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    hue, lightness, saturation = colorsys.rgb_to_hls(*channels)
    pale = colorsys.hls_to_rgb(hue, lightness + (1 - lightness) * amount, saturation)
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in pale)


def tint(colour: str, amount: float) -> str:
    """Mix `colour` ("#rrggbb") with white; `amount` is the colour's share.

    For shades that stand for amounts: with `paler` a middle one is more vivid than the strongest.
    """
    channels = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(each + (255 - each) * amount):02x}" for each in channels)


class TimeUnit(NamedTuple):
    """A unit for an axis: `per_second` of it make a second."""

    name: str
    per_second: float


def time_unit(span_s: float) -> TimeUnit:
    """Return microseconds, milliseconds or seconds, so that an axis over `span_s` is readable."""
    if span_s < 2e-3:
        return TimeUnit("µs", 1e6)
    if span_s < 2.0:
        return TimeUnit("ms", 1e3)
    return TimeUnit("s", 1.0)
