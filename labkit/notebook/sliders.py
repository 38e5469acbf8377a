"""Sliders for the arguments of any function.

def loss(gpus, minutes):
    return [("GPU-hours", f"{gpus * minutes / 60:,.0f}")]

knobs(loss, gpus=Knob([8, 64, 1024], start=64), minutes=Knob(range(1, 61), start=10))
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit.notebook.controls import choice, with_slider_names
from labkit.notebook.shown import WithWidget, box, run_it
from labkit.viz.picture import Picture

Rows = Iterable[tuple[str, str] | tuple[str, str, float] | Picture]
_BAR_EM = 24
_CELL = "padding: 1px 14px 1px 0; line-height: 1.5;"


@dataclass(frozen=True)
class Knob:
    """The positions of one slider: `values` in order, at first at `start`.

    label: text before it; by default the argument's name. text: writes a value.
    """

    values: Sequence[Any]
    start: Any
    label: str = ""
    text: Callable[[Any], str] = lambda value: f"{value:,}"

    def __post_init__(self) -> None:
        if not list(self.values):
            raise ValueError("a knob needs values to stand at; give one or more")
        if self.start not in self.values:
            raise ValueError(
                f"start={self.start!r} is none of the knob's values; they go from "
                f"{self.values[0]!r} to {self.values[-1]!r}"
            )


class Knobs(WithWidget):
    """Sliders, and below them the function's result. `values` are their positions."""

    def __init__(self, fn: Callable[..., Rows], choices: dict[str, Knob]) -> None:
        """See `knobs`."""
        self._fn = fn
        self._start = {name: knob.start for name, knob in choices.items()}
        self._sliders = {name: _slider(name, knob) for name, knob in choices.items()}
        self._result = widgets.HTML()
        for slider in self._sliders.values():
            slider.observe(self._refresh, names="value")
        column = widgets.VBox(list(self._sliders.values()), layout={"margin": "8px 0"})
        self._widget = with_slider_names(widgets.VBox([column, self._result]))
        self._refresh()

    @property
    def values(self) -> dict[str, Any]:
        """Values of the sliders, by argument."""
        return {name: slider.value for name, slider in self._sliders.items()}

    def _refresh(self, _: Any = None) -> None:
        self._result.value = _html(self._fn(**self.values))

    def __repr__(self) -> str:
        rows = self._fn(**self._start)
        return "\n".join(
            repr(row) if isinstance(row, Picture) else f"{row[0]}: {row[1]}" for row in rows
        )

    def _static_html(self) -> str:
        return box(_html(self._fn(**self._start)) + run_it("turn the knobs."))


def knobs(fn: Callable[..., Rows], **choices: Knob) -> Knobs:
    """Show sliders for `fn`'s arguments, as the last line of a cell.

    fn: takes the sliders' values by name and returns rows: (name, text), or (name, text, share) for
    a bar of this share of the width, from 0 to 1. Pictures of viz stand below the rows. choices: a
    Knob per argument. Raises TypeError if the two do not fit, and what `fn` raises at the start.
    """
    if not callable(fn):
        raise TypeError(f"fn={fn!r:.60}: give a function that returns rows")
    for name, knob in choices.items():
        if not isinstance(knob, Knob):
            raise TypeError(f"{name}={knob!r} is no Knob; write Knob(values, start=...)")
    try:
        inspect.signature(fn).bind(**choices)
    except TypeError as error:
        raise TypeError(
            f"the knobs {', '.join(choices) or '(none)'} do not fit {fn.__name__}"
            f"{inspect.signature(fn)}: {error}"
        ) from None
    return Knobs(fn, choices)


def _slider(name: str, knob: Knob) -> Any:
    label = knob.label or name.replace("_", " ")
    return choice(label, knob.values, knob.start, knob.text, width="38em", label_width="16em")


def _html(rows: Rows) -> str:
    body = pictures = ""
    for row in rows:
        if isinstance(row, Picture):
            png, alt = base64.b64encode(row.png()).decode(), escape(row.caption, quote=True)
            look = 'class="labkit-picture" style="display: block; max-width: 100%; width: 900px"'
            pictures += f'<img {look} alt="{alt}" src="data:image/png;base64,{png}">'
            continue
        name, value = row[:2]
        bar = ""
        if len(row) == 3:
            bar = f'<td style="width: {_BAR_EM}em">{_bar(row[2])}</td>'
        body += (
            f'<tr><td style="{_CELL}">{escape(name)}</td>'
            f'<td style="{_CELL} text-align: right; font-weight: 600;">{escape(value)}</td>'
            f"{bar}</tr>"
        )
    return f'<table style="border-collapse: collapse; margin: 6px 0;">{body}</table>{pictures}'


def _bar(share: float) -> str:
    """Draw a bar that begins at the left, so that the lengths of several can be compared."""
    width = _BAR_EM * min(max(share, 0.0), 1.0)
    look = f"width: {width:.2f}em; height: 0.9em; background: #0072b2"
    return f'<div style="{look}"></div>'
