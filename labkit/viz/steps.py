"""The time of a step by part: a simulated step's timeline, and traced steps as bars of terms.

simulated_step: a row per class of ranks, a box per operation.

    dp 0, pp 0              |0|1|2|    |  0  |  1  |  2  |R|U|
    dp 1 and 6 more, pp 0   |0|1|2|  | 0 | 1 | 2 |        |R|U|     R, U, G: after the pipeline
                            ___________________________________     the longest path, in its row

step_terms: a stacked bar per rank, of one trace or of several side by side.

    healthy  rank 0  |====== compute ======|- transfer -|s|h|   94.0 ms
             rank 1  |====== compute ======|-- transfer --|h|   96.6 ms
    slow     rank 0  |====== compute ======|- transfer -|~~~ straggler ~~~|h|  122.7 ms
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import mean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.calc.simulate import RankClass, SimulatedStep, StepSpan
from labkit.pipeline import Kind
from labkit.profile.breakdown import TERMS, Terms, breakdown
from labkit.profile.step_trace import Trace
from labkit.viz import style
from labkit.viz.memory import clean
from labkit.viz.picture import Picture
from labkit.viz.schedule_drawing import draw_boxes
from labkit.viz.schedule_grid import WIDTH, row_inches, style_rows
from labkit.viz.schedule_parts import BOTTOM, IDLE, NAMES, Box, operation_colour

LEFT, RIGHT = 1.75, 0.95  # inches
_HEADER, _AXIS = 1.26, 0.46
_MOST_BOXES = 8192
_WRITTEN = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved 1F1B"}
_AFTER = {
    "reduce": ("R", "R: reduce over dp", style.kind_family("all_reduce").colour),
    "optimizer": ("U", "U: update", style.region_colours(["optimizer"])["optimizer"]),
    "gather": ("G", "G: gather over dp", style.kind_family("all_gather").colour),
}


def simulated_step(step: SimulatedStep, *, rows: int = 12, title: str | None = None) -> Picture:
    """Draw the operations of each class of ranks over time, and the longest path.

    rows: most classes of ranks that are drawn; those on the longest path and unlike the
    others come first. The longest path is a line below the boxes of its row; parts of all
    replicas are in the row of its last stage.
    Returns a Picture. TypeError for anything but a SimulatedStep; ValueError for a step that takes
    no time, and for more than 8,192 operations in these rows.
    """
    shown = chosen(step, rows)
    num_boxes = sum(len(each.spans) for each in shown)
    if num_boxes > _MOST_BOXES:
        raise ValueError(
            f"{num_boxes:,} operations in {len(shown)} rows are more than {_MOST_BOXES:,}, and no "
            f"box could be seen; give rows={max(1, _MOST_BOXES * len(shown) // num_boxes)} or fewer"
        )
    height = _HEADER + len(shown) * row_inches(len(shown)) + _AXIS
    picture = Picture(WIDTH, height, f"simulated step of {step.layout.world_size:,} ranks")
    _draw_header(picture, step, shown, title)
    _draw_rows(picture, step, shown)
    return picture


def chosen(step: SimulatedStep, rows: int) -> list[RankClass]:
    """Return the classes that are drawn, in their order."""
    seconds: dict[tuple[int, int], float] = {}
    for part in step.longest_path:
        key = (part.replica, part.cell)
        seconds[key] = seconds.get(key, 0.0) + part.end_s - part.start_s

    def weight(each: RankClass) -> tuple[bool, bool, float]:
        is_edge = each.pp in (0, step.layout.pp - 1)
        return each.is_disturbed, is_edge, seconds.get((each.replica, each.pp), 0.0)

    first = set(sorted(step.classes, key=weight, reverse=True)[: max(1, rows)])
    return [each for each in step.classes if each in first]


def _draw_rows(picture: Picture, step: SimulatedStep, shown: list[RankClass]) -> None:
    height, width = picture.get_size_inches()[1], WIDTH - LEFT - RIGHT
    unit = style.time_unit(step.seconds)
    tall = len(shown) * row_inches(len(shown))
    axes = picture.add_axes((LEFT / WIDTH, _AXIS / height, width / WIDTH, tall / height))
    axes.set_xlim(0, step.seconds * unit.per_second)
    axes.set_ylim(len(shown), 0)
    boxes = [
        _box(step, row, span, unit.per_second)
        for row, each in enumerate(shown)
        for span in each.spans
    ]
    draw_boxes(axes, boxes, len(shown), 72 * width)
    _draw_path(axes, step, shown, unit.per_second)
    style_rows(axes, len(shown), unit)
    points = style.SMALL_POINTS if len(shown) <= 16 else style.SMALLEST_POINTS
    axes.set_yticks([row + 0.5 for row in range(len(shown))], [each.name for each in shown])
    place = {"transform": axes.get_yaxis_transform(), "va": "center_baseline", "fontsize": points}
    for row, each in enumerate(shown):
        text = f"{each.num_ranks:,} rank{'s' * (each.num_ranks > 1)}"
        axes.text(1.01, row + 0.5, text, **style.FAINT | place)


def _box(step: SimulatedStep, row: int, span: StepSpan, per_time: float) -> Box:
    left, right = span.start_s * per_time, span.end_s * per_time
    if span.kind in _AFTER:
        label, _, colour = _AFTER[span.kind]
        return Box(row, left, right, colour, label)
    place = span.stage // step.layout.pp
    colour = operation_colour(Kind(span.kind), place, step.layout.virtual)
    return Box(row, left, right, colour, str(span.microbatch))


def _draw_path(axes: Axes, step: SimulatedStep, shown: list[RankClass], per_time: float) -> None:
    row_of = {(each.replica, each.pp): row for row, each in enumerate(shown)}
    last = [part.replica for part in step.longest_path if part.replica >= 0]
    lines: list[Any] = []
    for part in step.longest_path:
        replica = part.replica if part.replica >= 0 else (last[-1] if last else 0)
        row = row_of.get((replica, part.cell))
        if row is not None:
            y = row + BOTTOM + 0.06
            lines.append([(part.start_s * per_time, y), (part.end_s * per_time, y)])
    axes.add_collection(
        LineCollection(lines, colors=style.ALARM, linewidths=1.8, zorder=4), autolim=False
    )


def _draw_header(
    picture: Picture, step: SimulatedStep, shown: list[RankClass], title: str | None
) -> None:
    height = picture.get_size_inches()[1]
    name = f"Simulated step of {step.layout.world_size:,} ranks, {_WRITTEN[step.schedule]}"
    picture.text(0.012, 1 - 0.2 / height, title or name, **style.TITLE)
    for number, line in enumerate(step.words):
        picture.text(0.012, 1 - (0.46 + 0.2 * number) / height, line.rstrip("."), **style.SMALL)
    kinds = {span.kind for each in shown for span in each.spans}
    handles: list[Any] = [Patch(facecolor=operation_colour(Kind(kind))) for kind in "FB"]
    labels = [NAMES[Kind(kind)] for kind in "FB"]
    for kind, (_, label, colour) in _AFTER.items():
        if kind in kinds:
            handles.append(Patch(facecolor=colour))
            labels.append(label)
    handles += [
        Patch(facecolor=IDLE, edgecolor="#a8a8a8", linewidth=0.8),
        Line2D([], [], color=style.ALARM, lw=1.8),
    ]
    picture.legend(
        handles,
        [*labels, "idle", "longest path"],
        loc="center left",
        bbox_to_anchor=(0.012, 1 - 1.09 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.3,
        handleheight=0.9,
        handletextpad=0.5,
        columnspacing=1.2,
        borderpad=0,
        borderaxespad=0,
    )


MAX_BARS = 32
_COLOURS = dict(
    zip(TERMS, ("#a9c6e3", "#009e73", "#8c6d31", "#e69f00", "#d55e00", "#cc79a7", "#c9ced3"))
)
_BETWEEN = 0.35
"""Space between two traces, in bars."""
_WIDTH, _LEFT, _RIGHT, _BARS_HEADER, _BAR, _BOTTOM = 9.0, 1.9, 0.9, 0.75, 0.3, 0.2  # inches


def step_terms(traces: Mapping[str, Trace], *, title: str = "where a step's time goes") -> Picture:
    """Draw the mean step of every rank of each trace, by name, as a bar of its terms.

    The bar is as long as the step. Numbers in it are milliseconds. Returns a Picture. ValueError
    for no trace, and for more than 32 bars.
    """
    bars = [
        (name if number == 0 else "", f"rank {rank}", _mean_terms(steps))
        for name, trace in traces.items()
        for number, (rank, steps) in enumerate(breakdown(trace).items())
    ]
    if not 0 < len(bars) <= MAX_BARS:
        raise ValueError(f"{len(bars)} bars: a picture that can be read has 1 to {MAX_BARS}")
    longest_s = max(sum(terms.values()) for _, _, terms in bars)
    present = [
        term for term in TERMS if any(terms[term] > 2e-3 * longest_s for _, _, terms in bars)
    ]
    groups = list(accumulate(name != "" for name, *_ in bars))
    places = [row + 0.5 + _BETWEEN * (group - 1) for row, group in enumerate(groups)]
    rows = places[-1] + 0.5
    height = _BARS_HEADER + _BAR * rows + _BOTTOM
    picture = Picture(_WIDTH, height, f"{title}: {', '.join(traces)}; {', '.join(present)}")
    width, tall = _WIDTH - _LEFT - _RIGHT, _BAR * rows
    axes = picture.add_axes((_LEFT / _WIDTH, _BOTTOM / height, width / _WIDTH, tall / height))
    axes.set_xlim(0, longest_s)
    axes.set_ylim(rows, 0)
    clean(axes)
    axes.set_xticks([])
    axes.set_yticks([])
    for middle, (name, rank, terms) in zip(places, bars, strict=True):
        picture.text(0.013, 1 - (_BARS_HEADER + _BAR * middle) / height, name, **style.SMALL)
        axes.text(-0.012 * longest_s, middle, rank, **style.SMALL | {"ha": "right"})
        _draw_bar(axes, middle, {term: terms[term] for term in present}, longest_s / width)
        step_s = sum(terms.values())
        axes.text(
            step_s + 0.06 * longest_s / width, middle, f"{1e3 * step_s:.1f} ms", **style.SMALL
        )
    _draw_bars_header(picture, title, present)
    return picture


def _draw_bar(axes: Axes, middle: float, terms: Mapping[str, float], per_inch: float) -> None:
    left_s = 0.0
    for term, seconds in terms.items():
        colour = _COLOURS[term]
        axes.barh(middle, seconds, 0.78, left_s, color=colour, edgecolor="white", linewidth=0.6)
        if seconds > 0.4 * per_inch:  # a number needs so much
            inside = style.SMALL | {"ha": "center", "color": style.text_on(colour)}
            axes.text(left_s + seconds / 2, middle, f"{1e3 * seconds:.1f}", **inside)
        left_s += seconds


def _draw_bars_header(picture: Picture, title: str, present: Sequence[str]) -> None:
    height = picture.get_size_inches()[1]
    picture.text(0.013, 1 - 0.2 / height, title, **style.TITLE)
    picture.legend(
        handles=[Patch(facecolor=_COLOURS[term], label=term) for term in present],
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.36 / height),
        ncols=len(present),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.2,
        borderaxespad=0,
    )


def _mean_terms(steps: Sequence[Terms]) -> dict[str, float]:
    return {term: mean(step.seconds[term] for step in steps) for term in TERMS}
