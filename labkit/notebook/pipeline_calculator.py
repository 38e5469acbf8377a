"""A pipeline schedule with a knob for everything that moves its bubble and its memory.

pipeline_calculator()                                      # 1F1B on 4 ranks, 8 microbatches
pipeline_calculator("interleaved", ranks=8, microbatches=32, virtual=4, send=0.1)
"""

from __future__ import annotations

from dataclasses import fields
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import calc, viz
from labkit.notebook.pipeline_answer import SCHEDULES, PipelineAnswer, PipelineSetup
from labkit.notebook.shown import FAINT
from labkit.notebook.slider_names import with_slider_names
from labkit.viz.schedule_input import require_drawable

# What each knob stands at, and what is written in front of it.
_STOPS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "schedule": ("schedule", tuple(SCHEDULES)),
    "ranks": ("ranks", tuple(range(1, 9))),
    "microbatches": ("microbatches", tuple(range(1, 33))),
    "virtual": ("virtual stages per rank", (1, 2, 3, 4)),
    "backward": ("backward : forward", (1.0, 1.5, 2.0, 2.5, 3.0)),
    "send": ("send : forward", (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)),
    "activation_bytes": ("a microbatch's activations", (1e8, 2.5e8, 5e8, 1e9, 2e9, 4e9, 8e9)),
}
_LOOK: dict[str, Any] = {"style": {"description_width": "14em"}, "layout": {"width": "31em"}}


class PipelineCalculator:
    """Knobs for a pipeline; its grid, bubble and memory, which change together.

    `answer` is what is shown; `says` is its headline, after a word on what could not be had.
    """

    def __init__(self, start: PipelineSetup) -> None:
        """`start`: where the knobs stand at first, and what the static form shows."""
        self._start = start
        self._knobs = {name: _knob(name, getattr(start, name)) for name in _STOPS}
        self._says, self._table = widgets.HTML(), widgets.HTML()
        self._picture = widgets.Image(format="png", layout={"max_width": "900px"})
        for knob in self._knobs.values():
            knob.observe(self._refresh, names="value")
        column = {"margin": "4px 12px 4px 0"}
        knobs = list(self._knobs.values())
        columns = [widgets.VBox(each, layout=column) for each in (knobs[:4], knobs[4:])]
        first = widgets.HBox(columns, layout={"flex_flow": "row wrap"})
        whole = widgets.VBox([first, self._says, self._picture, self._table])
        self._widget = with_slider_names(whole)
        self._refresh()

    @property
    def says(self) -> str:
        """What differs from what the knobs say, if anything does, and the bubble and the memory."""
        return " ".join(filter(None, [self.answer.note, self.answer.headline]))

    def _refresh(self, _: Any = None) -> None:
        asked = PipelineSetup(**{name: knob.value for name, knob in self._knobs.items()})
        self.answer = PipelineAnswer(asked)
        self._knobs["virtual"].disabled = not asked.has_virtual_stages
        self._picture.value = _picture(self.answer).png()
        self._says.value = f"<b>{escape(self.says)}</b>"
        self._table.value = _html(self.answer)

    def __repr__(self) -> str:
        answer = PipelineAnswer(self._start)
        return f"{_picture(answer).caption}\n{answer.text()}"

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        static, metadata = _picture(PipelineAnswer(self._start))._repr_mimebundle_()
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        return {**bundle, **static, "text/plain": repr(self)}, metadata


def pipeline_calculator(schedule: str = "1F1B", **start: Any) -> PipelineCalculator:
    """A schedule's grid, bubble and memory, with knobs; the last line of a cell shows it.

    schedule: "naive", "GPipe", "1F1B", "interleaved", "ZB-H1" or "ZB-V". start: where the other
    knobs stand at first: ranks, microbatches, virtual, backward and send (in forwards of a rank),
    activation_bytes. Where no such schedule exists the nearest one is shown, and it says so.
    TypeError for other names; ValueError for what no pipeline has, and for more than can be drawn.
    """
    known = [field.name for field in fields(PipelineSetup)]
    unknown = ", ".join(name for name in start if name not in known)
    if unknown:
        raise TypeError(f"no knob is called {unknown}; there are: {', '.join(known)}")
    setup = PipelineSetup(schedule, **start)
    answer = PipelineAnswer(setup)
    require_drawable(answer.setup.ranks, answer.num_operations)
    return PipelineCalculator(setup)


def _picture(answer: PipelineAnswer) -> viz.Picture:
    return viz.schedule(answer.timing)


def _knob(name: str, start: Any) -> Any:
    label, stops = _STOPS[name]
    if start not in stops:  # one of the caller's own gets a stop too
        stops = tuple(sorted((*stops, start)))
    options = [(_text(name, stop), stop) for stop in stops]
    return widgets.SelectionSlider(options=options, value=start, description=label, **_LOOK)


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
