"""Three pictures of ZeRO: which rank holds what, when units are whole, and live bytes of steps.

    held_states                                unit_timeline
            zero1                              root unit  = ........................
    rank 0  ########  parameters               layers.0    =[forward]      =[backward]-
            ########  gradients                layers.1      =   [forward]=[backward]-
            ##        optimizer states
    rank 1  ...                                = all-gather     - reduce-scatter

`unit_timeline` reads a journal of FullyShardedModule: its labels "weights of UNIT" and "gradients
of UNIT", and regions "forward of UNIT" and "backward of UNIT", which the layers themselves enter.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.calc.units import bytes_text
from labkit.comm.operation import Timeline
from labkit.viz import style
from labkit.viz.memory import KINDS_FROM_BELOW, clean
from labkit.viz.picture import Picture
from labkit.viz.style import tint

_WIDTH = 9.0  # inches, as all that follow
_LEFT, _RIGHT, _HEADER = 1.85, 0.1, 0.66
_BLOCK, _GAP = 0.66, 0.24  # a rank's states, and the space below them
_NAMES, _UNIT, _STEP_HEADER, _FOOTER = 0.95, 0.29, 0.3, 0.78
_NOTHING = "#f1f1f1"
_WEIGHTS, _GRADIENTS = (style.kind_family(k).colour for k in ("all_gather", "reduce_scatter"))
_PHASES = style.region_colours(["forward", "backward"])
_OUTLINE: dict[str, Any] = {"edgecolor": style.FAINT_INK, "linewidth": 0.6}


def held_states(
    held: Mapping[str, Sequence[Mapping[str, float]]],
    bytes_per_parameter: Mapping[str, float],
    num_parameters: int,
    *,
    title: str = "what each rank holds: area is bytes",
) -> Picture:
    """Draw the states that each rank holds, for several strategies side by side.

    held: strategy -> for each rank, its bytes by kind. bytes_per_parameter: by kind, of all ranks
    together. It is the height; the width stands for all parameters, so area is memory. A shard is
    drawn in one piece, at its rank's place. Returns a Picture. ValueError for nothing to draw.
    """
    if not held or not all(held.values()):
        raise ValueError("nothing to draw: pass {strategy: [bytes by kind of rank 0, ...]}")
    num_ranks = max(map(len, held.values()))
    rows = (_BLOCK + _GAP) * num_ranks
    picture = Picture(_WIDTH, _HEADER + rows, f"{title}: {', '.join(held)}")
    picture.text(0.1 / _WIDTH, 1 - 0.2 / (_HEADER + rows), title, **style.TITLE)
    width = (_WIDTH - _LEFT - _RIGHT) / len(held)
    for place, (name, of_ranks) in enumerate(held.items()):
        bounds = (_LEFT + place * width, 0, 0.93 * width, rows)
        axes = picture.add_axes(_fractions(bounds, _HEADER + rows))
        axes.set_xlim(0, 1)
        axes.set_ylim(rows, 0)
        axes.axis("off")
        axes.set_title(name, loc="left", fontsize=style.BASE_POINTS + 1, fontweight="bold")
        for rank, own in enumerate(of_ranks):
            top = (_BLOCK + _GAP) * rank
            _draw_states(axes, rank, own, bytes_per_parameter, num_parameters, top, place == 0)
            if place == 0:
                axes.text((0.1 - _LEFT) / (0.93 * width), top + _BLOCK / 2, f"rank {rank}", **_NAME)
    return picture


_NAME = style.SMALL | {"fontsize": style.BASE_POINTS}


def _draw_states(
    axes: Axes,
    rank: int,
    own: Mapping[str, float],
    bytes_per_parameter: Mapping[str, float],
    num_parameters: int,
    top: float,
    is_named: bool,
) -> None:
    inches = _BLOCK / sum(bytes_per_parameter.values())
    below = top + _BLOCK
    for kind, nbytes in bytes_per_parameter.items():
        share = own.get(kind, 0) / (nbytes * num_parameters)
        begin = 0.0 if share > 0.99 else rank * share
        height, middle = inches * nbytes, top + inches * nbytes / 2
        axes.barh(middle, 1, height, color=_NOTHING)
        axes.barh(middle, share, height, begin, color=style.rank_colour(rank), edgecolor="white")
        if is_named:
            axes.text(-0.03, middle, kind, **style.FAINT | {"ha": "right"})
        top += height
    text = bytes_text(sum(own.values()))
    axes.text(1, below + 0.11, text, **style.SMALL | {"ha": "right"})


class _Span(NamedTuple):
    """A time of one unit: "weights" or "gradients" on the way, "whole", "forward", "backward"."""

    what: str
    unit: str
    start_s: float
    end_s: float


def unit_timeline(
    timeline: Timeline, steps: Mapping[str, str], *, title: str = "units of one rank"
) -> Picture:
    """Draw when each unit's weights travel, are whole and are used, and its gradients travel.

    steps: heading -> name of a region of the journal; one below the other, on one axis from 0. A
    row is a unit. Returns a Picture. ValueError for a region that is not in the journal exactly
    once, or in which no unit was gathered.
    """
    spans = {heading: _spans_of(timeline, name) for heading, name in steps.items()}
    units = list(dict.fromkeys(span.unit for own in spans.values() for span in own))
    panel = _STEP_HEADER + _UNIT * len(units)
    height = 0.35 + panel * len(steps) + _FOOTER
    picture = Picture(_WIDTH, height, f"{title}: {', '.join(steps)}")
    picture.text(0.1 / _WIDTH, 1 - 0.18 / height, title, **style.TITLE)
    longest_s = max(span.end_s for own in spans.values() for span in own)
    unit = style.time_unit(longest_s)
    for place, (heading, own) in enumerate(spans.items()):
        bottom = _FOOTER + panel * (len(steps) - 1 - place)
        bounds = (_NAMES, bottom, _WIDTH - _NAMES - _RIGHT, _UNIT * len(units))
        axes = picture.add_axes(_fractions(bounds, height))
        axes.set_title(heading, loc="left", fontsize=style.BASE_POINTS, fontweight="bold", pad=3)
        for span in own:
            _draw_span(axes, span, units.index(span.unit), unit.per_second)
        axes.set_xlim(0, 1.01 * unit.per_second * longest_s)
        axes.set_ylim(len(units), 0)
        clean(axes)
        axes.grid(visible=False, axis="y")
        axes.set_yticks([row + 0.5 for row in range(len(units))], units)
        axes.tick_params(labelbottom=place == len(steps) - 1)
    axes.set_xlabel(unit.name, fontsize=style.SMALL_POINTS, color=style.FAINT_INK)
    picture.legend(
        handles=[Patch(label=label, **look) for label, look in _LOOKS.values()],
        loc="lower center",
        ncols=len(_LOOKS),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.4,
    )
    return picture


_LOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    "weights": ("weights: all-gather", {"facecolor": _WEIGHTS}),
    "whole": ("weights whole in memory", {"facecolor": tint(_WEIGHTS, 0.8)}),
    "forward": ("forward", {"facecolor": _PHASES["forward"], **_OUTLINE}),
    "backward": ("backward", {"facecolor": _PHASES["backward"], **_OUTLINE}),
    "gradients": ("gradients: reduce-scatter", {"facecolor": _GRADIENTS}),
}
# Top and height within a row of 1: what travels is below what computes.
_PLACES = {"whole": (0.1, 0.8), "forward": (0.12, 0.42), "backward": (0.12, 0.42)}
_TRAVELS = (0.6, 0.3)
_LAYERS = {"whole": 1, "forward": 2, "backward": 2}


def _draw_span(axes: Axes, span: _Span, row: int, per_second: float) -> None:
    top, height = _PLACES.get(span.what, _TRAVELS)
    _, look = _LOOKS[span.what]
    start, length = per_second * span.start_s, per_second * (span.end_s - span.start_s)
    axes.barh(
        row + top + height / 2,
        length,
        height,
        start,
        color=look["facecolor"],
        zorder=_LAYERS.get(span.what, 3),
        **(_OUTLINE if span.what in _PHASES else {}),
    )


def _spans_of(timeline: Timeline, name: str) -> list[_Span]:
    """Return the spans within a region, in seconds from its start; those of travels come first."""
    regions = [each for each in timeline.regions if each.name == name]
    if len(regions) != 1:
        raise ValueError(f"{len(regions)} regions of this journal have the name {name!r}; give one")
    zero_s, last_s = regions[0].start_s, regions[0].end_s or timeline.end_s
    used = [
        _Span(each.name.partition(" of ")[0], each.name.partition(" of ")[2], start_s, end_s)
        for each in timeline.regions
        if each.name.startswith(("forward of ", "backward of "))
        and 0 <= (start_s := each.start_s - zero_s) <= (end_s := (each.end_s or last_s) - zero_s)
        and end_s <= last_s - zero_s
    ]
    moved = _travels(timeline, zero_s, last_s, used)
    if not moved:
        raise ValueError(f"no unit was gathered in region {name!r}; give one of a sharded module")
    return [*moved, *_whole(moved, used), *used]


def _travels(
    timeline: Timeline, zero_s: float, last_s: float, used: Sequence[_Span]
) -> list[_Span]:
    """Return one span for each gather and reduction: a ring's messages in a row are one."""
    found: list[_Span] = []
    for each in timeline.operations:
        what, _, unit = (each.label or "").partition(" of ")
        if what not in ("weights", "gradients") or not zero_s <= each.posted_s <= last_s:
            continue
        start_s, end_s = each.posted_s - zero_s, (each.done_s or last_s) - zero_s
        if found and found[-1][:2] == (what, unit):
            last = found[-1]
            if not any(last.end_s <= use.start_s <= start_s for use in used):  # the same collective
                start_s, end_s = last.start_s, max(end_s, last.end_s)
                found.pop()
        found.append(_Span(what, unit, start_s, end_s))
    return found


def _whole(moved: Iterable[_Span], used: Sequence[_Span]) -> list[_Span]:
    """Return when weights are whole: from the end of a gather to the unit's last use before its
    next gather. The root unit, which enters no region, is used as long as any unit is."""
    gathers = [span for span in moved if span.what == "weights"]
    found = []
    for span in gathers:
        later = [g.start_s for g in gathers if g.unit == span.unit and g.start_s > span.start_s]
        own = [use for use in used if use.unit == span.unit] or used
        ends = [use.end_s for use in own if span.end_s < use.end_s < min(later, default=1e9)]
        if ends:
            found.append(_Span("whole", span.unit, span.end_s, max(ends)))
    return found


def memory_steps(
    steps: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    title: str = "live bytes, allocation by allocation",
) -> Picture:
    """Draw live bytes by kind of several steps side by side on one scale, and each peak.

    steps: heading -> kind -> bytes after each allocation or release, of equal length, as
    `Usage.bytes_of` has them. Returns a Picture. ValueError for a step without any change.
    """
    for heading, bytes_of in steps.items():
        if not any(map(any, bytes_of.values())):
            raise ValueError(f"{heading}: nothing was ever alive; give a Meter's usage.bytes_of")
    totals = {name: [sum(now) for now in zip(*own.values())] for name, own in steps.items()}
    highest = max(map(max, totals.values()))
    height = 3.5
    picture = Picture(_WIDTH, height, f"{title}: {', '.join(steps)}")
    picture.text(0.1 / _WIDTH, 1 - 0.2 / height, title, **style.TITLE)
    width = (_WIDTH - 0.8) / len(steps)
    present = [k for k in KINDS_FROM_BELOW if any(any(own.get(k, ())) for own in steps.values())]
    for place, (heading, bytes_of) in enumerate(steps.items()):
        bounds = (0.75 + place * width, 0.62, width - 0.12, 2.2)
        axes = picture.add_axes(_fractions(bounds, height))
        axes.set_title(heading, loc="left", fontsize=style.BASE_POINTS, fontweight="bold", pad=3)
        total, below = totals[heading], [0.0] * len(totals[heading])
        for kind in present:
            above = [low + now for low, now in zip(below, bytes_of.get(kind, below))]
            colour = style.memory_colour(kind)
            axes.fill_between(range(len(total)), below, above, color=colour, linewidth=0)
            below = above
        when = total.index(max(total))
        axes.plot([when], [total[when]], "o", color=style.ALARM, markersize=5)
        look = style.SMALL | {"ha": "center", "va": "bottom", "fontweight": "bold"}
        axes.text(when, total[when] + 0.03 * highest, bytes_text(total[when]), **look)
        axes.set_xlim(0, len(total) - 1)
        axes.set_ylim(0, 1.15 * highest)
        clean(axes)
        axes.set_xticks([])
        axes.yaxis.set_major_formatter(lambda value, _: bytes_text(value))
        axes.tick_params(labelleft=place == 0)
    picture.legend(
        handles=[Patch(color=style.memory_colour(kind), label=kind) for kind in present],
        loc="lower center",
        ncols=len(present),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.4,
    )
    return picture


def _fractions(
    bounds: tuple[float, float, float, float], height: float
) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height in inches as shares of the picture."""
    left, bottom, wide, high = bounds
    return left / _WIDTH, bottom / height, wide / _WIDTH, high / height
