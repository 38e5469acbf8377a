"""Microbatches in flight over time, a row per rank: a schedule's need of memory.

rank 0     _/4\\_/4\\_/4\\___        in flight: from a microbatch's F to the end of its B, or of
rank 1    _/3\\_/3\\_/3\\__          its W where B is split; all rows have one scale
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from labkit.pipeline import Kind, Timing
from labkit.pipeline.simulation import Span
from labkit.viz import style
from labkit.viz.picture import Picture
from labkit.viz.schedule_grid import LEFT, RIGHT, WIDTH, at_most, row_inches, style_rows
from labkit.viz.schedule_input import require_some_time, timing_of
from labkit.viz.schedule_parts import BOTTOM, TOP, started, unit_of, words

_HEADER, _AXIS = 0.42, 0.46  # inches
_COLOUR = style.memory_colour("activations")
_FEW_LEVELS = 8  # more lines cannot be counted at a glance


def in_flight(timing: Any, *, title: str | None = None) -> Picture:
    """Draw how many microbatches each rank holds over time, and the most of them.

    timing: a Timing, simulated or measured, or a Schedule, as for `viz.schedule`, below whose grid
    this fits: the margins are the same. On several stages a microbatch counts each.
    Returns a Picture. Raises what `viz.schedule` raises.
    """
    timing = timing_of(timing)
    require_some_time(timing, "timing")
    of, unit = timing.schedule, unit_of(timing)
    rows = of.num_ranks * row_inches(of.num_ranks)
    height = _HEADER + rows + _AXIS
    picture = Picture(WIDTH, height, f"microbatches in flight: {words(of)}")
    picture.text(0.012, 1 - 0.2 / height, title or picture.caption, **style.TITLE)
    place = (LEFT / WIDTH, _AXIS / height, 1 - (LEFT + RIGHT) / WIDTH, rows / height)
    axes = picture.add_axes(place)
    axes.set_xlim(0, timing.makespan * unit.per_second)
    axes.set_ylim(of.num_ranks, 0)
    curves = [held_over_time(row, started(timing)) for row in timing.rows]
    most = max(1, *(held for curve in curves for _, held in curve))
    for rank, curve in enumerate(curves):
        _draw_curve(axes, rank, curve, most, timing, unit.per_second)
    style_rows(axes, of.num_ranks, unit)
    at_most(axes, of)
    return picture


def held_over_time(row: tuple[Span, ...], first: float = 0.0) -> list[tuple[float, int]]:
    """(time, microbatches held from then on), for each F that begins and each B or W that ends.

    It starts with none at `first`, from which times are counted. If one ends as another begins,
    there is a single entry for that time.
    """
    held, levels = 0, {0.0: 0}
    for op, start, end in row:
        if op.kind is Kind.F:
            held += 1
            levels[start - first] = held
        elif op.kind is not Kind.I:
            held -= 1
            levels[end - first] = held
    return list(levels.items())


def _draw_curve(
    axes: Axes,
    rank: int,
    curve: list[tuple[float, int]],
    most: int,
    timing: Timing,
    per_time: float,
) -> None:
    floor, step = rank + BOTTOM, (BOTTOM - TOP) / most
    times = [time * per_time for time, _ in curve] + [timing.makespan * per_time]
    levels = [floor - held * step for _, held in curve]
    levels.append(levels[-1])
    axes.fill_between(
        times, floor, levels, step="post", color=style.tint(_COLOUR, 0.55), linewidth=0
    )
    axes.step(times, levels, where="post", color=_COLOUR, linewidth=1.0)
    axes.hlines(floor, 0, times[-1], color=style.FAINT_INK, linewidth=0.6)
    if most <= _FEW_LEVELS:
        lines = [floor - level * step for level in range(1, most + 1)]
        axes.hlines(lines, 0, times[-1], color=style.GRID, linewidth=0.5, zorder=0.5)
