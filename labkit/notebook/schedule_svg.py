"""A schedule in time as SVG, as viz.schedule draws it, without matplotlib.

schedule_svg(timing)      part of a page: its colours of text and lines are the theme's
schedule_image(timing)    the same as an image, which pages keep that remove SVG from HTML
"""

import base64
import math
from collections.abc import Iterator
from html import escape
from typing import Any

from labkit.notebook.shown import BORDER, FAINT
from labkit.pipeline import Kind, Schedule, Timing
from labkit.pipeline.op import lines
from labkit.viz.schedule_input import require_some_time, timing_of
from labkit.viz.schedule_parts import (
    BOTTOM,
    NAMES,
    TOP,
    Number,
    arrows,
    boxes,
    fitting,
    held_texts,
    most_stages,
    number_size,
    operation_colour,
    time_words,
    unit_of,
    words,
)
from labkit.viz.style import INK, text_on

_INK = f"var(--jp-content-font-color1, {INK})"
_PAGE = "var(--jp-layout-color0, #ffffff)"
# Pixels, where the picture is as wide as this.
_WIDTH, _LEFT, _RIGHT, _HEADER, _AXIS = 760, 46, 76, 62, 38
_PER_POINT = 4 / 3
_MOST_READ = 40  # operations of a rank that are read aloud


def schedule_svg(timing: Any) -> str:
    """Return a schedule in time as an SVG element: a row per rank, a box per operation.

    timing: a Timing, or a Schedule, whose operations then cost 1 each (B 2) and messages nothing.
    A box has the number of its microbatch, where it fits; idle time is empty. Up to 60 messages
    are arrows. A screen reader gets a title and the operations of each rank in order.

    TypeError for anything else; ValueError for one that takes no time, and for more than 32 ranks
    or 8,192 operations; ScheduleError if the schedule is not a whole step.
    """
    timing = timing_of(timing)
    require_some_time(timing, "timing")
    of, unit = timing.schedule, unit_of(timing)
    height = _HEADER + of.num_ranks * _row_height(of) + _AXIS
    parts = [
        _text(0, 15, words(of), "font-size: 15px; font-weight: 600"),
        *_legend(of, has_arrows=bool(arrows(timing))),
        _text(_LEFT, 54, time_words(timing, unit)),
        _text(_WIDTH - _RIGHT + 6, 54, "in flight", f"fill: {FAINT}"),
        *_rows(of),
        *_messages(timing),
        *_boxes(timing),
        *_axis(timing),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {_WIDTH} {height}" '
        f'style="display: block; width: 100%; min-width: 560px; max-width: 900px; '
        f'font-family: sans-serif; font-size: 11.3px; fill: {_INK}">'
        f"<title>Schedule of {escape(words(of))}</title>"
        f"<desc>{escape(_description(timing))}</desc>{''.join(parts)}</svg>"
    )


def schedule_image(timing: Any) -> str:
    """Return the schedule as an `img` on white; labextension/ inverts it on a dark page."""
    timing = timing_of(timing)
    svg = base64.b64encode(schedule_svg(timing).encode()).decode()
    alt = escape(f"Schedule of {words(timing.schedule)}: {_description(timing)}")
    look = "display: block; width: 100%; max-width: 900px; background: #fff"
    return (
        f'<img class="labkit-picture" style="{look}" alt="{alt}" '
        f'src="data:image/svg+xml;base64,{svg}">'
    )


def _description(timing: Timing) -> str:
    """Say the bubble, and each rank's operations."""
    said = [time_words(timing, unit_of(timing))]
    for rank, row in enumerate(lines(timing.schedule)):
        rest = f" and {len(row) - _MOST_READ} more" if len(row) > _MOST_READ else ""
        said.append(f"rank {rank}: {' '.join(row[:_MOST_READ])}{rest}")
    return "; ".join(said)


def _row_height(schedule: Schedule) -> int:
    """Less where there are many."""
    num_ranks = schedule.num_ranks
    return 30 if num_ranks <= 4 else 25 if num_ranks <= 8 else 19 if num_ranks <= 16 else 15


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.5g}" y="{y:.5g}" style="{style}">{escape(text)}</text>'


def _box(left: float, top: float, width: float, height: float) -> str:
    """Return a rectangle as a part of a path."""
    return f"M{left:.5g} {top:.5g}h{width:.4g}v{height:.4g}h{-width:.4g}z"


def _path(d: str, look: str) -> str:
    return f'<path d="{d}" style="{look}"/>'


def _legend(schedule: Schedule, *, has_arrows: bool) -> Iterator[str]:
    present = {op.kind for row in schedule.rows for op in row}
    num_places, x, side = most_stages(schedule), float(_LEFT), 11
    for kind in (each for each in Kind if each in present):
        for place in range(num_places):
            colour = operation_colour(kind, place, num_places)
            yield _path(_box(x, 27, side, side), f"fill: {colour}")
            x += side
        yield _text(x + 4, 36, NAMES[kind])
        x += 24 + 6 * len(NAMES[kind])
    yield _path(_box(x, 27, side, side), f"fill: none; stroke: {FAINT}")
    yield _text(x + side + 4, 36, "idle: the bubble")
    x += 120
    if has_arrows:
        yield _arrow((x, 32), (x + 18, 32)) + _text(x + 23, 36, "message")
        x += 85
    if num_places > 1:
        yield _text(x, 36, "the lighter, the later of a rank's stages", f"fill: {FAINT}")


def _rows(schedule: Schedule) -> Iterator[str]:
    """Frames of the rows, the names of the ranks, and what each holds at most."""
    height, width = _row_height(schedule), _WIDTH - _LEFT - _RIGHT
    frames = "".join(
        _box(_LEFT, _HEADER + (rank + TOP) * height, width, (BOTTOM - TOP) * height)
        for rank in range(schedule.num_ranks)
    )
    yield _path(frames, f"fill: none; stroke: {BORDER}; stroke-width: 0.7")
    for rank, held in enumerate(held_texts(schedule)):
        y = _HEADER + (rank + 0.5) * height + 4
        yield _text(_LEFT - 6, y, f"rank {rank}", "text-anchor: end")
        yield _text(_WIDTH - _RIGHT + 6, y, f"at most {held}", f"fill: {FAINT}")


def _per_time(timing: Timing) -> float:
    return (_WIDTH - _LEFT - _RIGHT) / timing.makespan


def _boxes(timing: Timing) -> Iterator[str]:
    found, height = boxes(timing, _per_time(timing)), _row_height(timing.schedule)
    paths: dict[str, str] = {}
    for each in found:
        width, top = each.right - each.left, _HEADER + (each.rank + TOP) * height
        drawn = _box(_LEFT + each.left, top, width, (BOTTOM - TOP) * height)
        edge = 0.7 if width > 4 else 0
        look = f"fill: {each.colour}; stroke: {_PAGE}; stroke-width: {edge}"
        paths[look] = paths.get(look, "") + drawn
    yield from (_path(d, look) for look, d in paths.items())
    numbers = [
        Number(
            each.label,
            _LEFT + (each.left + each.right) / 2,
            _HEADER + (each.rank + 0.5) * height,
            (each.right - each.left) / _PER_POINT,
            each.colour,
        )
        for each in found
    ]
    points = number_size(numbers)
    size = points * _PER_POINT
    yield f'<g style="text-anchor: middle; font-size: {size:.3g}px">'
    for number in fitting(numbers, points):
        yield (
            f'<text x="{number.x:.5g}" y="{number.y + 0.36 * size:.5g}" '
            f'fill="{text_on(number.on)}">{number.text}</text>'
        )
    yield "</g>"


def _messages(timing: Timing) -> Iterator[str]:
    height = _row_height(timing.schedule)
    for tail, head in arrows(timing, _per_time(timing)):
        start, end = ((_LEFT + x, _HEADER + row * height) for x, row in (tail, head))
        yield _arrow(start, end)


def _arrow(tail: tuple[float, float], head: tuple[float, float]) -> str:
    (x0, y0), (x1, y1) = tail, head
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    along, across = (x1 - x0) / length, (y1 - y0) / length
    base_x, base_y = x1 - 5 * along, y1 - 5 * across
    d = (
        f"M{x0:.5g} {y0:.5g}L{x1:.5g} {y1:.5g}M{x1:.5g} {y1:.5g}"
        f"L{base_x - 2 * across:.5g} {base_y + 2 * along:.5g}"
        f"L{base_x + 2 * across:.5g} {base_y - 2 * along:.5g}z"
    )
    return _path(d, f"stroke: {_INK}; stroke-width: 0.7")


def _axis(timing: Timing) -> Iterator[str]:
    unit, y = unit_of(timing), _HEADER + timing.schedule.num_ranks * _row_height(timing.schedule)
    end = timing.makespan * unit.per_second
    step = _tick_step(end)
    for number in range(math.floor(end / step + 1e-9) + 1):
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * number * step / end
        yield _text(x, y + 13, f"{number * step:g}", "text-anchor: middle")
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    yield _text(middle, y + 30, f"time ({unit.name})", f"text-anchor: middle; fill: {FAINT}")


def _tick_step(end: float) -> float:
    """Return 1, 2 or 5 times a power of ten: at most 10 of them make `end`."""
    power = 10.0 ** math.floor(math.log10(end / 10))
    return next(power * each for each in (1, 2, 5, 10) if end / (power * each) <= 10)
