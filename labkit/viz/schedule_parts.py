"""The parts of a schedule's grid: a box per operation, colours, numbers, the legend.

rank 0  |0|1|2|3|        | 0 | 1 | 2 | 3 |        white: idle
rank 1    |0|1|2|3|    | 0 | 1 | 2 | 3 |

Colours: F and B are the blues of a step, I and W stand apart. Blue, green and ochre stay apart for
every common form of colour blindness, and the darkest shades differ in lightness (B, I, W, F, from
dark to light), so that they survive a black-and-white printer. A rank's virtual stages are shades
of the kind's colour, its first stage the darkest.

Without matplotlib: schedule_drawing.py draws them with it, labkit.notebook.schedule_svg without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from labkit.pipeline import Kind, Schedule, Timing, in_flight
from labkit.viz import style

# For a row of height 1. Messages are drawn in the gap between rows.
TOP, BOTTOM = 0.12, 0.88
_FEW_ARROWS = 60  # more arrows cannot be followed


class Box(NamedTuple):
    """An operation on the page. left, right: in the axis' unit, 0 where the first one starts."""

    rank: int
    left: float
    right: float
    colour: str
    label: str


def boxes(timing: Timing, per_time: float = 1.0) -> list[Box]:
    """Return a box for each operation. per_time: units of the axis in one of the timing."""
    first = started(timing)
    num_places = most_stages(timing.schedule)
    found = []
    for rank, row in enumerate(timing.rows):
        place = {stage: n for n, stage in enumerate(timing.schedule.stages_of(rank))}
        for (kind, stage, microbatch), start, end in row:
            left, right = ((time - first) * per_time for time in (start, end))
            colour = operation_colour(kind, place[stage], num_places)
            found.append(Box(rank, left, right, colour, str(microbatch)))
    return found


def started(timing: Timing) -> float:
    """Return when the first operation starts: 0 of the axis."""
    return min(row[0].start for row in timing.rows if row)


def most_stages(schedule: Schedule) -> int:
    """Return v, the largest number of stages that a rank holds."""
    return max(len(schedule.stages_of(rank)) for rank in range(schedule.num_ranks))


class Arrow(NamedTuple):
    """A message on the page, from its operation to where it is needed, each as (time, row)."""

    tail: tuple[float, float]
    head: tuple[float, float]


def arrows(timing: Timing, per_time: float = 1.0) -> list[Arrow]:
    """Return an arrow for each message that takes time; none where there are too many."""
    sends = [span for span in timing.sends if span.end > span.start]
    if len(sends) > _FEW_ARROWS:
        return []
    first, rank_of, found = started(timing), timing.schedule.rank_of, []
    for (kind, stage, _), start, end in sends:
        source, there = rank_of[stage], rank_of[stage + (1 if kind == "F" else -1)]
        out, into = (BOTTOM, TOP) if there > source else (TOP, BOTTOM)
        tail, head = (start - first) * per_time, (end - first) * per_time
        found.append(Arrow((tail, source + out), (head, there + into)))
    return found


# From the shade of a rank's first stage to that of its last.
_SHADES = {
    Kind.F: ("#9ccae9", "#dceefa"),
    Kind.B: ("#1b4480", "#5580bf"),
    Kind.I: ("#0f7a4f", "#5fb488"),
    Kind.W: ("#cf8212", "#e6b066"),
}
NAMES = {
    Kind.F: "F: forward",
    Kind.B: "B: backward",
    Kind.I: "I: input gradient",
    Kind.W: "W: weight gradient",
}
IDLE = "#ffffff"


def operation_colour(kind: Kind, place: int = 0, num_places: int = 1) -> str:
    """Return the colour, "#rrggbb", of a kind of operation on a rank's stage number `place`."""
    share = place / (num_places - 1) if num_places > 1 else 0.0
    first, last = (_channels(colour) for colour in _SHADES[kind])
    mixed = (round(a + (b - a) * share) for a, b in zip(first, last))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


_LARGEST, _SMALLEST = style.SMALL_POINTS, style.SMALLEST_POINTS
_DIGIT = 0.64  # width of a digit, of the type size
_MARGIN = 0.9  # points that a number leaves free, both sides together


class Number(NamedTuple):
    """A number to be written at a place, in the axes' units, on a colour, if there is room."""

    text: str
    x: float
    y: float
    room: float
    """Width of its box, in points."""
    on: str


def number_size(numbers: Sequence[Number]) -> float:
    """Return the largest type size at which nine numbers of ten fit, or the smallest there is."""
    sizes = sorted((each.room - _MARGIN) / (_DIGIT * len(each.text)) for each in numbers)
    return max(_SMALLEST, min(_LARGEST, sizes[len(sizes) // 10]))


def fitting(numbers: Sequence[Number], points: float) -> list[Number]:
    """Return those that have room at this type size."""
    # Boxes of equal cost differ in the last bits; the size is that at which one of them just fits.
    rest = _MARGIN - 1e-6
    return [each for each in numbers if _DIGIT * points * len(each.text) + rest <= each.room]


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


def unit_of(timing: Timing) -> style.TimeUnit:
    """Return the axis' unit. Of a Timing without costs of messages, which was measured: seconds."""
    return COSTS if timing.send is not None else style.time_unit(timing.makespan)


def held_texts(schedule: Schedule) -> list[str]:
    """Return the most microbatches that each rank holds: 4, or 11/2 where it has two stages, on
    each of which a microbatch counts."""
    num_stages = [len(schedule.stages_of(rank)) for rank in range(schedule.num_ranks)]
    return [
        f"{most}/{num}" if num > 1 else str(most)
        for most, num in zip(in_flight(schedule), num_stages, strict=True)
    ]


def words(schedule: Schedule) -> str:
    """Write `1F1B, 4 ranks, 8 microbatches`, and a rank's stages where it has several."""
    counts = [
        _counted(schedule.num_ranks, "rank"),
        _counted(schedule.num_microbatches, "microbatch"),
    ]
    if most_stages(schedule) > 1:
        counts.append(f"{most_stages(schedule)} stages per rank")
    return ", ".join([_WRITTEN.get(schedule.name, schedule.name), *counts])


def time_words(timing: Timing, unit: style.TimeUnit) -> str:
    """Write how long the step takes, and the bubble by both conventions."""
    takes = f"{timing.makespan * unit.per_second:.4g}"
    makespan = takes if unit is COSTS else f"{takes} {unit.name}"
    total, ideal = timing.bubble("total"), timing.bubble("ideal")
    return f"makespan {makespan}, bubble {total:.1%} of total time = {ideal:.1%} of ideal time"


def _counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
