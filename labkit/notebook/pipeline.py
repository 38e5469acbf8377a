"""The pipeline calculator: a schedule with knobs for everything that changes bubble and memory.

pipeline_calculator()                                      # 1F1B on 4 ranks, 8 microbatches
pipeline_calculator("interleaved", ranks=8, microbatches=32, virtual=4, send=0.1)

PipelineAnswer computes, from labkit.pipeline and calc. A rank has the same layers whatever the
schedule: with v virtual stages each stage takes a v-th of its time and of its activations, while a
message is as large as ever. The unit of time is a rank's forward of one microbatch.

A schedule of one's own is rows of text, as labkit.pipeline.parse reads them: below the knobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import arguments, calc
from labkit.notebook.controls import (
    button,
    choice,
    from_knobs,
    note,
    page,
    row,
    rows_field,
    say,
    with_slider_names,
)
from labkit.notebook.schedule_svg import schedule_image, schedule_svg
from labkit.notebook.shown import FAINT, WithWidget, run_it, scrolled
from labkit.pipeline import (
    Costs,
    Schedule,
    Timing,
    gpipe,
    in_flight,
    interleaved,
    naive,
    one_f_one_b,
    parse,
    plan,
    simulate,
    text,
    validate,
    zero_bubble_h1,
    zero_bubble_v,
)
from labkit.viz.schedule_input import require_drawable
from labkit.viz.schedule_parts import held_texts, words

SCHEDULES: dict[str, Callable[..., Any]] = {
    "naive": naive,
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": interleaved,
    "ZB-H1": zero_bubble_h1,
    "ZB-V": zero_bubble_v,
}


@dataclass(frozen=True)
class PipelineSetup:
    """The positions of the knobs. ValueError, TypeError for an impossible pipeline.

    backward: time of a rank's layers, send: time of one message; both in forwards. A backward of up
    to 2 is I and W, half each. Time above 2 is recomputation and belongs to I, while W takes 1.
    activation_bytes: kept bytes of one microbatch on all layers of a rank.
    """

    schedule: str = "1F1B"
    ranks: int = 4
    microbatches: int = 8
    virtual: int = 2
    backward: float = 2.0
    send: float = 0.0
    activation_bytes: float = 1e9

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, str) or self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r}: give one of {', '.join(SCHEDULES)}")
        for name in ("ranks", "microbatches", "virtual"):
            arguments.whole(name, getattr(self, name), "1 or more")
        for name in ("backward", "send", "activation_bytes"):
            arguments.number(name, getattr(self, name), "0 to 1e15", least=0, most=1e15)

    @property
    def has_virtual_stages(self) -> bool:
        """Return whether `virtual` means anything."""
        return SCHEDULES[self.schedule] is interleaved

    @property
    def is_split(self) -> bool:
        """Return whether a backward is two operations, I and W."""
        return SCHEDULES[self.schedule] in (zero_bubble_h1, zero_bubble_v)


@dataclass(frozen=True)
class PipelineAnswer:
    """The results of a setup, or of the nearest one that exists: see `setup`.

    own: a schedule instead of the setup's, at the setup's costs; see `own_schedule`.
    """

    asked: PipelineSetup
    own: Schedule | None = None

    @cached_property
    def setup(self) -> PipelineSetup:
        """The schedule to compute. An interleaved one has a multiple of the ranks in
        microbatches."""
        p, m = self.asked.ranks, self.asked.microbatches
        if self.own is not None:
            m = self.own.num_microbatches
            return replace(self.asked, ranks=self.own.num_ranks, microbatches=m)
        if not self.asked.has_virtual_stages:
            is_v = SCHEDULES[self.asked.schedule] is zero_bubble_v
            return replace(self.asked, virtual=2 if is_v else 1)
        nearest = max(1, (2 * m + p) // (2 * p)) * p  # the larger of two equally near ones
        return replace(self.asked, microbatches=nearest)

    @cached_property
    def schedule(self) -> Schedule:
        """The operations of every rank."""
        if self.own is not None:
            return self.own
        choices = {"virtual": self.setup.virtual} if self.setup.has_virtual_stages else {}
        row = SCHEDULES[self.setup.schedule]
        return plan(row, self.setup.ranks, self.setup.microbatches, **choices)

    @property
    def num_operations(self) -> int:
        """Operations of the schedule, counted without making it, so that a huge one can be
        refused."""
        kinds = 3 if self.setup.is_split else 2
        return kinds * self.setup.ranks * self.setup.virtual * self.setup.microbatches

    @cached_property
    def num_stages(self) -> list[int]:
        """Stages of each rank."""
        return [len(self.schedule.stages_of(rank)) for rank in range(self.schedule.num_ranks)]

    @cached_property
    def timing(self) -> Timing:
        """The schedule with times, in forwards of a rank."""
        backward, rank_of = self.setup.backward, self.schedule.rank_of
        weights = min(1.0, backward / 2)
        shares = [self.num_stages[rank_of[s]] for s in range(self.schedule.num_stages)]
        costs = Costs(
            forward=[1 / v for v in shares],
            input_gradient=[(backward - weights) / v for v in shares],
            weight_gradient=[weights / v for v in shares],
            send=self.setup.send,
        )
        return simulate(self.schedule, costs)

    @cached_property
    def in_flight(self) -> list[int]:
        """Most microbatches by rank; each counts on every stage."""
        return in_flight(self.schedule)

    @property
    def held(self) -> list[str]:
        """The same as text: 4, or 11/2 where a rank has two stages."""
        return held_texts(self.schedule)

    @property
    def held_bytes(self) -> list[float]:
        """Bytes of these by rank; a microbatch is held whole until its B, or its W."""
        whole = self.setup.activation_bytes
        return [most * whole / v for most, v in zip(self.in_flight, self.num_stages, strict=True)]

    @property
    def note(self) -> str:
        """Say how the schedule differs from the one asked for, and why; "" if it does not."""
        asked, used = self.asked, self.setup
        if self.own is not None:
            return "Your own schedule, at the costs of the knobs."
        if used.microbatches != asked.microbatches:
            return (
                f"Interleaved microbatches go in rounds of one per rank, and {asked.microbatches} "
                f"is no multiple of {asked.ranks}: {used.microbatches} are used."
            )
        if used.has_virtual_stages and used.virtual == 1:
            return "Interleaved with one stage per rank is 1F1B: give it 2 virtual stages or more."
        return ""

    @property
    def headline(self) -> str:
        """The bubble and the memory in a sentence."""
        most = max(self.held_bytes)
        rank = self.held_bytes.index(most)
        return (
            f"Bubble {self.timing.bubble('total'):.1%} of total time, "
            f"{self.timing.bubble('ideal'):.1%} of ideal time; rank {rank} holds the most, "
            f"{self.held[rank]} microbatches, {calc.bytes_text(most)}."
        )

    @property
    def says(self) -> str:
        """The note and the headline."""
        return " ".join(filter(None, [self.note, self.headline]))

    def times(self) -> list[list[str]]:
        """Name, value and derivation of makespan and bubble."""
        used, makespan = self.setup, self.timing.makespan
        ideal = used.microbatches * (1 + used.backward)
        work = f"{used.microbatches} x (1 + {used.backward:g}) = {ideal:.5g}"
        idle = f"({makespan:.5g} - {ideal:.5g})"
        return [
            ["makespan", f"{makespan:.5g}", "forwards of a rank"],
            ["ideal", f"{ideal:.5g}", f"the work alone: {work}"],
            ["bubble, of total", f"{self.timing.bubble('total'):.1%}", f"{idle} / {makespan:.5g}"],
            ["bubble, of ideal", f"{self.timing.bubble('ideal'):.1%}", f"{idle} / {ideal:.5g}"],
        ]

    def memory(self) -> list[list[str]]:
        """Rows of a heading, microbatches in flight and their bytes, a column per rank."""
        return [
            ["", *(f"rank {rank}" for rank in range(self.setup.ranks))],
            ["in flight, at most", *self.held],
            ["activations", *map(calc.bytes_text, self.held_bytes)],
        ]

    def text(self) -> str:
        """Return the whole answer as aligned text."""
        lines = [f"{name:20}{value:>8}   {how}" for name, value, how in self.times()]
        table = self.memory()
        widths = [max(map(len, column)) for column in zip(*table)]
        lines += [
            row[0].ljust(20) + "".join(f"{cell:>{w + 2}}" for cell, w in zip(row[1:], widths[1:]))
            for row in table
        ]
        return "\n".join(filter(None, [*lines, self.note, self.headline]))


def own_schedule(rows: str) -> Schedule:
    """Read a schedule of one's own: a line per rank, as `labkit.pipeline.parse` reads them.

    ScheduleError if it is no training step; ValueError for a cell that is no operation, for a rank
    without any, since every rank here has as many layers, and for more than can be drawn.
    """
    found = parse(rows, "your own schedule")
    require_drawable(found.num_ranks, sum(map(len, found.rows)))
    validate(found)
    for rank, ops in enumerate(found.rows):
        if not ops:
            raise ValueError(f"rank {rank} has no operation: give it a stage, or drop its line")
    return found


# The positions of each knob, and its label.
_STOPS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "schedule": ("schedule", tuple(SCHEDULES)),
    "ranks": ("ranks", tuple(range(1, 9))),
    "microbatches": ("microbatches", tuple(range(1, 33))),
    "virtual": ("virtual stages per rank", (1, 2, 3, 4)),
    "backward": ("backward : forward", (1.0, 1.5, 2.0, 2.5, 3.0)),
    "send": ("send : forward", (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)),
    "activation_bytes": ("a microbatch's activations", (1e8, 2.5e8, 5e8, 1e9, 2e9, 4e9, 8e9)),
}
_COSTS = ("backward", "send", "activation_bytes")
_WRITE = "Write the rows of the schedule on show into the field"


class PipelineCalculator(WithWidget):
    """Knobs for a pipeline; its grid, bubble and memory, which change together.

    `answer` is on show; `says` is its headline, after a note on differences from the knobs. The
    schedule may be the reader's own: `write_out` fills the field with the rows on show, `draw`
    shows what is in it. A move of a knob that chooses a schedule shows that one again.
    """

    def __init__(self, start: PipelineSetup) -> None:
        """`start`: the knobs' first positions, which the static form shows."""
        self._start = start
        self._knobs = {name: _knob(name, getattr(start, name)) for name in _STOPS}
        self._says, self._table = widgets.HTML(), widgets.HTML()
        self._picture = widgets.HTML()
        for name, knob in self._knobs.items():
            is_cost = name in _COSTS
            knob.observe(self._refresh if is_cost else self._from_knobs, names="value")
        column = {"margin": "4px 12px 4px 0"}
        knobs = list(self._knobs.values())
        columns = [widgets.VBox(each, layout=column) for each in (knobs[:4], knobs[4:])]
        first = widgets.HBox(columns, layout={"flex_flow": "row wrap"})
        self._own: Schedule | None = None
        self._rows, self._trouble = rows_field("Your own schedule, a line per rank"), note()
        write = button("Write it out", self.write_out, tooltip=_WRITE)
        own = page([self._rows, row([write, button("Draw", self.draw)]), self._trouble])
        whole = widgets.VBox([first, self._says, self._picture, self._table, own])
        self._widget = with_slider_names(whole)
        self._refresh()

    def write_out(self) -> None:
        """Write the rows of the schedule on show into the field."""
        self._rows.value = text(self.answer.schedule)
        say(self._trouble, "")

    def draw(self) -> None:
        """Show the schedule in the field at the costs of the knobs, or what is wrong with it."""
        try:
            self._own = own_schedule(self._rows.value)
        except ValueError as error:
            reason, _, rows = str(error).partition("\n")
            marked = scrolled(f"<pre>{escape(rows)}</pre>", "the first wrong cell") if rows else ""
            say(self._trouble, f"<p>✗ {escape(reason)}</p>{marked}")
        else:
            say(self._trouble, "")
            self._refresh()

    @property
    def says(self) -> str:
        """Text below the picture: differences from the knobs, the bubble and the memory."""
        return self.answer.says

    def _from_knobs(self, _: Any) -> None:
        self._own = None
        self._refresh()

    def _refresh(self, _: Any = None) -> None:
        asked = PipelineSetup(**{name: knob.value for name, knob in self._knobs.items()})
        self.answer = PipelineAnswer(asked, self._own)
        self._knobs["virtual"].disabled = not asked.has_virtual_stages
        self._picture.value = scrolled(schedule_svg(self.answer.timing), "the schedule in time")
        self._says.value = f"<b>{escape(self.says)}</b>"
        self._table.value = _html(self.answer)

    def __repr__(self) -> str:
        answer = PipelineAnswer(self._start)
        return f"schedule of {words(answer.schedule)}\n{answer.text()}"

    def _static_html(self) -> str:
        answer = PipelineAnswer(self._start)
        static = f"<b>{escape(answer.says)}</b>{schedule_image(answer.timing)}{_html(answer)}"
        return f"<div>{static}{run_it('turn the knobs.')}</div>"


def pipeline_calculator(schedule: str = "1F1B", **start: Any) -> PipelineCalculator:
    """Show a schedule's grid, bubble and memory, with knobs, as the last line of a cell.

    schedule: "naive", "GPipe", "1F1B", "interleaved", "ZB-H1" or "ZB-V". start: where the other
    knobs stand at first: ranks, microbatches, virtual, backward and send (in forwards of a rank),
    activation_bytes. Where no such schedule exists the nearest one is shown, and it says so.
    TypeError for other names; ValueError for what no pipeline has, and for more than can be drawn.
    """
    setup = from_knobs(PipelineSetup, schedule, start)
    answer = PipelineAnswer(setup)
    require_drawable(answer.setup.ranks, answer.num_operations)
    return PipelineCalculator(setup)


def _knob(name: str, start: Any) -> Any:
    label, stops = _STOPS[name]
    return choice(label, stops, start, partial(_text, name), width="31em", label_width="14em")


def _text(name: str, value: Any) -> str:
    if name == "schedule":
        return str(value)
    return calc.bytes_text(value) if name == "activation_bytes" else f"{value:g}"


def _html(answer: PipelineAnswer) -> str:
    cell = "padding: 1px 12px 1px 0; line-height: 1.5; text-align: left;"
    number = f"{cell} text-align: right; font-variant-numeric: tabular-nums;"
    lines = [
        f'<tr><td style="{cell}">{escape(name)}</td>'
        f'<td style="{number} font-weight: 600;">{escape(value)}</td>'
        f'<td style="{cell} color: {FAINT};">{escape(how)}</td></tr>'
        for name, value, how in answer.times()
    ]
    ranks = [
        f'<tr><td style="{cell}">{escape(name)}</td>'
        + "".join(f'<td style="{number}">{escape(each)}</td>' for each in cells)
        + "</tr>"
        for name, *cells in answer.memory()
    ]
    table = '<table style="border-collapse: collapse; margin: 6px 0;">'
    return "".join(f"{table}{''.join(rows)}</table>" for rows in (lines, ranks))
