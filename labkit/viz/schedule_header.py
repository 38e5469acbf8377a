"""What stands above a schedule's grid: its name, what each colour is, how long it takes."""

from __future__ import annotations

from typing import Any

from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from labkit.pipeline import Kind, Schedule, Timing
from labkit.viz import style
from labkit.viz.picture import Picture
from labkit.viz.schedule_boxes import most_stages
from labkit.viz.schedule_colours import IDLE, NAMES, operation_colour

_WRITTEN = {
    "naive": "naive",
    "gpipe": "GPipe",
    "one_f_one_b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zero_bubble_h1": "ZB-H1",
    "zero_bubble_h2": "ZB-H2",
    "zero_bubble_v": "ZB-V",
}


COSTS = style.TimeUnit("in the unit of the costs", 1.0)


def words(schedule: Schedule) -> str:
    """`1F1B, 4 ranks, 8 microbatches`, and how many stages a rank holds where it has several."""
    counts = [
        _counted(schedule.num_ranks, "rank"),
        _counted(schedule.num_microbatches, "microbatch"),
    ]
    if most_stages(schedule) > 1:
        counts.append(f"{most_stages(schedule)} stages per rank")
    return ", ".join([_WRITTEN.get(schedule.name, schedule.name), *counts])


def time_words(timing: Timing, unit: style.TimeUnit) -> str:
    """How long the step takes, and the bubble by both conventions."""
    takes = f"{timing.makespan * unit.per_second:.4g}"
    makespan = takes if unit is COSTS else f"{takes} {unit.name}"
    total, ideal = timing.bubble("total"), timing.bubble("ideal")
    return f"makespan {makespan}, bubble {total:.1%} of total time = {ideal:.1%} of ideal time"


def _counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def draw_legend(
    picture: Picture, schedule: Schedule, y: float, left: float, *, arrows: bool
) -> None:
    """What the colours are, in one row; only what the picture contains. y: of the figure."""
    present = {op.kind for row in schedule.rows for op in row}
    num_places = most_stages(schedule)
    handles: list[Any] = []  # a tuple is drawn side by side; matplotlib's types know no tuples
    labels = []
    for kind in Kind:
        if kind in present:
            shades = [operation_colour(kind, place, num_places) for place in range(num_places)]
            handles.append(tuple(Patch(facecolor=shade) for shade in shades))
            labels.append(NAMES[kind])
    handles.append((Patch(facecolor=IDLE, edgecolor="#a8a8a8", linewidth=0.8),))
    labels.append("idle: the bubble")
    if arrows:
        handles.append(Line2D([], [], color=style.INK, marker=">", ms=4, lw=0.9))
        labels.append("message")
    picture.legend(
        handles,
        labels,
        loc="center left",
        bbox_to_anchor=(left, y),
        ncols=len(handles),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        handlelength=1.3 if num_places == 1 else 0.8 * num_places,
        handleheight=0.9,
        handletextpad=0.5,
        columnspacing=1.4,
        borderpad=0,
        borderaxespad=0,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
    )
