"""A pipeline schedule as the well-known grid: a row per rank, time to the right, idle time white.

simulated    |0|1|2|3|     | 0 | 1 | 2 | 3 |
measured     |0|1| 2|3|      | 0 |  1 | 2 | 3 |     the same operations, on the same scale
"""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from labkit.pipeline import Schedule, Timing
from labkit.viz import style
from labkit.viz.picture import Picture, text_inches
from labkit.viz.schedule_drawing import draw_boxes, draw_legend, draw_messages
from labkit.viz.schedule_input import require_same_schedule, require_some_time, timing_of
from labkit.viz.schedule_parts import (
    boxes,
    held_texts,
    most_stages,
    time_words,
    unit_of,
    words,
)

WIDTH, LEFT, RIGHT = 9.0, 0.72, 0.95  # inches
_HEADER, _PANEL_HEADER, _AXIS = 0.62, 0.28, 0.46


class Panel(NamedTuple):
    """A grid of the picture."""

    name: str
    timing: Timing
    unit: style.TimeUnit
    top: float
    """Inches from the top of the picture to the panel's own header."""
    end: float
    """The time at the right edge, in the timing's own unit."""


def schedule(timing: Any, measured: Any = None, *, title: str | None = None) -> Picture:
    """Draw a pipeline schedule: a box per operation, with the number of its microbatch.

    timing: a Timing, or a Schedule, whose operations then cost 1 each (B 2) and messages nothing.
    measured: a Timing of the same schedule in seconds, drawn below on the same scale: an operation
    is as wide above as below, on average, so a step that waits longer ends further to the right.
    Above each grid is its bubble by both conventions. Beside each row is the most microbatches that
    the rank holds: 11/2 means 11 that each count on one of the rank's two stages. Numbers that do
    not fit are left out, and so are more than 60 messages.

    Returns a Picture. TypeError for anything but a Timing or a Schedule. ValueError for a
    measurement of another schedule, for one that takes no time, and for more than 32 ranks or 8,192
    operations; ScheduleError if the schedule is not a whole step.
    """
    timing = timing_of(timing)
    require_some_time(timing, "timing")
    top = _HEADER
    panels = [Panel("", timing, unit_of(timing), top, timing.makespan)]
    if measured is not None:
        measured = timing_of(measured)
        require_same_schedule(timing, measured)
        require_some_time(measured, "measured")
        below = top + _panel_inches(timing.schedule.num_ranks)
        unit = style.time_unit(measured.makespan)
        end, measured_end = _ends(timing, measured)
        panels = [
            Panel("simulated", timing, unit_of(timing), top, end),
            Panel("measured", measured, unit, below, measured_end),
        ]
    return _drawn(panels, title or words(timing.schedule))


def _ends(timing: Timing, measured: Timing) -> tuple[float, float]:
    """Return the times at the right edges, so that the ranks' work is as wide in both grids."""
    work, measured_work = sum(timing.busy), sum(measured.busy)
    if not (work and measured_work):
        return timing.makespan, measured.makespan
    per_unit = measured_work / work
    end = max(timing.makespan, measured.makespan / per_unit)
    return end, end * per_unit


def row_inches(num_ranks: int) -> float:
    """Height of a row: less where there are many."""
    return 0.38 if num_ranks <= 4 else 0.32 if num_ranks <= 8 else 0.24 if num_ranks <= 16 else 0.18


def _panel_inches(num_ranks: int) -> float:
    return _PANEL_HEADER + num_ranks * row_inches(num_ranks) + _AXIS


def _drawn(panels: list[Panel], title: str) -> Picture:
    of = panels[0].timing.schedule
    height = panels[-1].top + _panel_inches(of.num_ranks)
    names = " and ".join(panel.name for panel in panels if panel.name)
    picture = Picture(WIDTH, height, f"schedule of {words(of)}" + (f": {names}" if names else ""))
    picture.text(0.012, 1 - 0.2 / height, title, **style.TITLE)
    arrows = [_draw_panel(picture, panel) for panel in panels]
    draw_legend(picture, of, 1 - 0.46 / height, LEFT / WIDTH, arrows=any(arrows))
    return picture


def _draw_panel(picture: Picture, panel: Panel) -> bool:
    """Return whether arrows were drawn."""
    timing, num_ranks = panel.timing, panel.timing.schedule.num_ranks
    height, width = picture.get_size_inches()[1], WIDTH - LEFT - RIGHT
    rows = num_ranks * row_inches(num_ranks)
    bottom = height - panel.top - _PANEL_HEADER - rows
    axes = picture.add_axes((LEFT / WIDTH, bottom / height, width / WIDTH, rows / height))
    axes.set_xlim(0, panel.end * panel.unit.per_second)
    axes.set_ylim(num_ranks, 0)
    draw_boxes(axes, boxes(timing, panel.unit.per_second), num_ranks, 72 * width)
    has_arrows = draw_messages(axes, timing, panel.unit.per_second)
    style_rows(axes, num_ranks, panel.unit)
    at_most(axes, timing.schedule)
    _draw_panel_header(picture, panel)
    return has_arrows


def _draw_panel_header(picture: Picture, panel: Panel) -> None:
    """Write the grid's name, its bubble, and the heading of the column at the right."""
    x, y = LEFT / WIDTH, 1 - (panel.top + 0.16) / picture.get_size_inches()[1]
    if panel.name:
        look = style.SMALL | {"fontweight": "bold"}
        picture.text(x, y, panel.name, **look)
        x += (text_inches(panel.name, style.SMALL_POINTS, "bold")[0] + 0.12) / WIDTH
    picture.text(x, y, time_words(panel.timing, panel.unit), **style.SMALL)
    right = 1 - RIGHT / WIDTH
    picture.text(right + 0.008, y, "in flight", **style.FAINT)
    if most_stages(panel.timing.schedule) > 1:
        note = "the lighter, the later of a rank's stages"
        picture.text(right, y, note, **style.FAINT | {"ha": "right"})


def at_most(axes: Axes, schedule: Schedule) -> None:
    """Write the most microbatches that a rank holds to the right of each row."""
    place = {"transform": axes.get_yaxis_transform(), "va": "center_baseline"}
    look = style.FAINT | place | {"fontsize": _row_points(schedule.num_ranks)}
    for rank, held in enumerate(held_texts(schedule)):
        axes.text(1.01, rank + 0.5, f"at most {held}", **look)


def _row_points(num_ranks: int) -> float:
    return style.SMALL_POINTS if num_ranks <= 16 else style.SMALLEST_POINTS


def style_rows(axes: Axes, num_ranks: int, unit: style.TimeUnit) -> None:
    """Style the rows: names of ranks, a time axis, no box."""
    points = _row_points(num_ranks)
    axes.set_yticks(
        [rank + 0.5 for rank in range(num_ranks)], [f"rank {r}" for r in range(num_ranks)]
    )
    axes.tick_params(length=0, labelsize=points, labelcolor=style.INK)
    axes.set_xlabel(f"time ({unit.name})", fontsize=style.SMALL_POINTS, color=style.FAINT_INK)
    axes.xaxis.labelpad = 2
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10]))
    for side in axes.spines.values():
        side.set_visible(False)
