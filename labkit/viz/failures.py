"""Pictures of failures: goodput over intervals, recoveries side by side, a save cut off anywhere.

goodput: the share of useful time over the interval between checkpoints.

    share |      .-+-.  :      o: all seeds together, a bar from the least to the most
          |   o-'  o  `-:o
          | o'     :    : `-o  lines: formulas
          +--------+----+----- seconds of work between checkpoints, logarithmic
                 Young  Daly

recovery: a row for each job, with a mark for each step that it made.

    from disk    | | | x=============o o o o=| | |     x: the failure, o: a step made again
    replicas     | | | x==| | | |                      ==: until the next new step
                 ------0--------------------------- seconds since the failure

power_cuts: the result of the next load if the power is cut after each operation of a save.

    rank 0       .  m  c w w s . . .  c w s d R d d r x x x
    rank 1       m  .  . . . . c w s
                 --------------------------------------------> operations
    all kept     -  -  - - - - - - -  - - - - 1 1 1 1 1 1 1     what the next load gives
    none kept    -  -  - - - - - - -  - - - - - 1 1 1 1 1 1

A letter is an operation: m make folder, c create, w write, s sync, d sync folder, R rename,
x remove. Each row below is a way in which unsynced data is kept or lost.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from labkit.calc.result import Result
from labkit.calc.units import seconds_text
from labkit.checkpoint.power_cut import Operation
from labkit.viz import style
from labkit.viz.memory import clean
from labkit.viz.picture import Picture, blank_axes

_WIDTH = 9.0  # inches, as all that follow
_GOODPUT_HEIGHT, _JOB = 3.8, 0.45
_MEASURED, _GAP, _AGAIN, _SAMPLES = "#0072b2", "#f3dcb0", "#d55e00", 80
_LINES = (("#d55e00", "-"), ("#6b6b6b", "--"), ("#009e73", "-."))


def goodput(
    measured: Mapping[int, Sequence[Any]],
    predicted: Mapping[str, Callable[[float], float]],
    optima: Mapping[str, float | Result],
    *,
    title: str = "goodput over the interval between checkpoints",
) -> Picture:
    """Draw measured goodput by interval, lines of formulas, and an upright line per optimum.

    measured: what elastic.measure_goodput returns. predicted: by name, up to three functions from
    seconds of work between checkpoints to goodput; below 0 they are not drawn. optima: by name,
    such seconds. Returns a Picture. ValueError if nothing was measured.
    """
    if not measured:
        raise ValueError("nothing was measured: give what elastic.measure_goodput returns")
    totals = {num: reduce(operator.add, jobs) for num, jobs in measured.items()}
    step_s = reduce(operator.add, totals.values()).means_s[0]
    points = {num * step_s: [job.share for job in jobs] for num, jobs in measured.items()}
    together = {num * step_s: job.share for num, job in totals.items()}
    words = ", ".join(f"{name} {seconds_text(float(each))}" for name, each in optima.items())
    picture = Picture(_WIDTH, _GOODPUT_HEIGHT, f"{title}: best by {words}")
    picture.text(0.013, 1 - 0.2 / _GOODPUT_HEIGHT, title, **style.TITLE)
    below = f"best interval by formula: {words}"
    picture.text(0.013, 1 - 0.44 / _GOODPUT_HEIGHT, below, **style.SMALL)
    axes = picture.add_axes((0.07, 0.14, 0.66, 0.66))
    for interval, shares in points.items():
        axes.plot([interval] * 2, [min(shares), max(shares)], color=_MEASURED, linewidth=1.2)
    axes.plot(*zip(*together.items(), strict=True), "o", color=_MEASURED, label="measured")
    low, high = min(points) / 1.3, max(points) * 1.3
    intervals = [low * (high / low) ** (n / _SAMPLES) for n in range(_SAMPLES + 1)]
    for (name, share_at), (colour, line) in zip(predicted.items(), _LINES, strict=False):
        shares = [share_at(each) for each in intervals]
        axes.plot(intervals, shares, line, color=colour, linewidth=1.4, label=name)
    for number, (name, seconds) in enumerate(optima.items()):
        axes.axvline(float(seconds), color=style.FAINT_INK, linestyle=":", linewidth=1.2)
        look = style.FAINT | {"ha": "right" if number % 2 else "left"}
        axes.text(float(seconds), 1.05, f" {name} ", transform=axes.get_xaxis_transform(), **look)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.15 * max(map(max, points.values())))
    axes.xaxis.set_major_formatter(lambda value, _: seconds_text(value))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.minorticks_off()
    clean(axes)
    axes.set_xlabel("work between two checkpoints", fontsize=style.SMALL_POINTS)
    axes.legend(
        frameon=False, fontsize=style.SMALL_POINTS, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
    return picture


def recovery(
    steps_made: Mapping[str, Sequence[tuple[float, int]]],
    failed_in: int,
    *,
    title: str,
) -> Picture:
    """Draw a row per job: its steps over the seconds since its failure, and the gap that it left.

    The gap ends with the first step that the job had not made before. steps_made: by name,
    (seconds, step) for each step that a job has made, in order, repeated ones too. failed_in: the
    step in which each job failed; seconds count from the end of the one before. Returns a Picture.
    """
    height = 1.3 + _JOB * len(steps_made)
    picture = Picture(_WIDTH, height, f"{title}: {'; '.join(steps_made)}")
    picture.text(0.013, 1 - 0.2 / height, title, **style.TITLE)
    axes = picture.add_axes((0.27, 0.5 / height, 0.7, _JOB * len(steps_made) / height))
    for row, made in enumerate(steps_made.values()):
        zero_s = next(seconds for seconds, step in made if step == failed_in - 1)
        new: list[float] = []
        again: list[float] = []
        most = -1
        for seconds, step in made:
            (new if step > most else again).append(seconds - zero_s)
            most = max(most, step)
        back_s = next((seconds for seconds in new if seconds > 0), max(again, default=0))
        axes.barh(row, back_s, 0.5, color=_GAP, zorder=2)
        axes.plot(new, [row] * len(new), "|", color=_MEASURED, markersize=13, zorder=3)
        axes.plot(again, [row] * len(again), "o", color=_AGAIN, markersize=4.5, zorder=4)
        axes.plot(0, row, "x", color=style.ALARM, markersize=9, zorder=5)
    clean(axes)
    axes.grid(visible=False)
    axes.set_yticks(range(len(steps_made)), list(steps_made))
    axes.set_ylim(len(steps_made) - 0.4, -0.6)
    axes.set_xlabel("seconds since the failure", fontsize=style.SMALL_POINTS)
    handles = [
        Line2D(
            [], [], color=_MEASURED, marker="|", markersize=11, linestyle="", label="a new step"
        ),
        Line2D([], [], color=_AGAIN, marker="o", linestyle="", label="a step made again"),
        Patch(color=_GAP, label="no new step"),
        Line2D([], [], color=style.ALARM, marker="x", linestyle="", label="the failure"),
    ]
    picture.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.36 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=style.SMALL_POINTS,
        borderaxespad=0,
    )
    return picture


KINDS = {
    "make_folder": ("m", "make folder", "#c9ced3"),
    "create": ("c", "create", "#a9c6e3"),
    "write": ("w", "write", "#56b4e9"),
    "sync": ("s", "sync", "#009e73"),
    "sync_folder": ("d", "sync folder", "#84b49c"),
    "rename": ("R", "rename", "#e69f00"),
    "remove": ("x", "remove", "#e0705a"),
    "remove_folder": ("x", "remove", "#e0705a"),
}
_STATES = ("#ececec", "#bfe0f5", "#8fcf9f", "#f6c6e0", "#f0b13c")
MIXED, DAMAGED = "mixed", "damaged"
_FAILED = {MIXED: "!", DAMAGED: "D"}
_LEFT, _RIGHT, _HEADER, _ROW, _BOTTOM = 1.25, 0.12, 0.78, 0.27, 0.12  # inches
MAX_OPERATIONS = 80


def power_cuts(
    operations: Sequence[Operation],
    found: Mapping[str, Sequence[int | str | None]],
    *,
    title: str = "a power cut after each operation, and what the next load gives",
) -> Picture:
    """Draw the operations of all ranks in the order of time, and the outcomes below.

    found: for each way of losing data, the result of the next load after each operation: a step,
    None for no checkpoint, "mixed" or "damaged". Returns a Picture. ValueError for more than 80
    operations, and for another number of outcomes than of operations.
    """
    n = len(operations)
    if not 1 <= n <= MAX_OPERATIONS:
        raise ValueError(f"{n} operations: a picture that can be read has 1 to {MAX_OPERATIONS}")
    for way, each in found.items():
        if len(each) != n:
            raise ValueError(f"{way}: {len(each)} outcomes of {n} operations: give one after each")
    ranks = [rank_of(each) for each in operations]
    rows = [f"rank {rank}" for rank in range(max(ranks) + 1)] + list(found)
    height = _HEADER + _ROW * (len(rows) + 0.5) + _BOTTOM
    states = dict.fromkeys(state for each in found.values() for state in each)
    words = ", ".join("no checkpoint" if state is None else str(state) for state in states)
    picture = Picture(_WIDTH, height, f"{title}: {n} operations; loads give {words}")
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, _WIDTH, height)
    axes.text(0.12, 0.2, title, **style.TITLE)
    width = (_WIDTH - _LEFT - _RIGHT) / n
    gap = 0.5 * _ROW
    for number, name in enumerate(rows):
        below = 0 if name.startswith("rank ") else gap
        axes.text(0.12, _HEADER + below + (number + 0.5) * _ROW, name, **style.SMALL)

    def cell(column: int, row: float, text: str, colour: str) -> None:
        x, y = _LEFT + column * width, _HEADER + row * _ROW
        axes.add_patch(Rectangle((x, y), 0.94 * width, 0.9 * _ROW, color=colour, linewidth=0))
        look = style.SMALL | {"ha": "center", "color": style.text_on(colour)}
        axes.text(
            x + 0.47 * width, y + 0.45 * _ROW, text, **look | {"fontsize": style.SMALLEST_POINTS}
        )

    for column, (operation, rank) in enumerate(zip(operations, ranks, strict=True)):
        letter, _, colour = KINDS[operation.kind]
        cell(column, rank, letter, colour)
    for number, outcomes in enumerate(found.values()):
        for column, state in enumerate(outcomes):
            cell(column, max(ranks) + 1.5 + number, state_text(state), colour_of(state))
    _draw_legend(picture, height, operations, [each for each in _FAILED if each in states])
    return picture


def _draw_legend(
    picture: Picture, height: float, operations: Sequence[Operation], failed: Sequence[str]
) -> None:
    """Draw below the title the kinds of operations that occur, and the outcomes."""
    present = dict.fromkeys(KINDS[each.kind] for each in operations)
    handles = [Patch(color=colour, label=f"{a} {name}") for a, name, colour in present]
    handles.append(Patch(color=_STATES[0], label="· no checkpoint"))
    handles += [Patch(color=style.ALARM, label=f"{_FAILED[each]} {each}") for each in failed]
    picture.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.36 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=style.SMALLEST_POINTS,
        handlelength=1.0,
        columnspacing=1.0,
        borderaxespad=0,
    )


def rank_of(operation: Operation) -> int:
    """Return the rank whose file it is; the leader for a file of no rank."""
    found = re.search(r"rank-(\d+)", operation.path.name)
    return int(found[1]) if found else 0


def state_text(state: int | str | None) -> str:
    """Return a load's result in a letter or a number."""
    return "·" if state is None else _FAILED.get(str(state), str(state))


def colour_of(state: int | str | None) -> str:
    """Return the colour of a load's result."""
    if state is None:
        return _STATES[0]
    return style.ALARM if isinstance(state, str) else _STATES[1 + (state - 1) % 4]
