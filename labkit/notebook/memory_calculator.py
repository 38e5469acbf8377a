"""Where the memory of a GPU goes, with a knob for everything that moves it.

memory_calculator()                                                   # Llama 2 7B on one 80 GB GPU
memory_calculator(calc.TrainingSetup(model="llama3-70b", tp=8, pp=4, dp=8, zero=1), "141 GB")
"""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import calc, viz
from labkit.calc import TrainingSetup
from labkit.notebook.memory_answer import DEVICES, advice, changes, rows, shown, text
from labkit.notebook.memory_knobs import (
    FLAGS,
    MENUS,
    device_menu,
    knobs_of,
    setup_of,
    value_text,
)
from labkit.notebook.shown import FAINT, box
from labkit.notebook.slider_names import with_slider_names


class MemoryCalculator:
    """Knobs for a TrainingSetup and a device; bars, a table, and what to change.

    `setup` is what the knobs say, or None where no such setup exists; `says` is the verdict.
    """

    def __init__(self, start: TrainingSetup, device: str) -> None:
        """`start`, `device`: where the knobs stand at first, and what the static form shows."""
        self._start, self._start_device = start, device
        self.setup: TrainingSetup | None = start
        self.says = ""
        self._is_moving_several = False
        self._knobs, self._device = knobs_of(start), device_menu(device)
        self._verdict, self._table = widgets.HTML(), widgets.HTML()
        self._picture = widgets.Image(
            format="png", layout={"width": "720px", "max_width": "calc(100% - 4px)"}
        )
        self._change = widgets.Button(
            description="Make this change", layout={"width": "12em", "display": "none"}
        )
        self._change.on_click(lambda _: self.make_the_change())
        for knob in (*self._knobs.values(), self._device):
            knob.observe(self._refresh, names="value")
        self._widget = with_slider_names(self._laid_out())
        self._refresh()

    def make_the_change(self) -> None:
        """What the button does: move the knobs as the verdict says, if it says so."""
        if self.setup is None:
            return
        self._is_moving_several = True  # one redrawing
        try:
            for change in changes(self.setup, DEVICES[self._device.value]):
                self._knobs[change.knob].value = change.after
        finally:
            self._is_moving_several = False
        self._refresh()

    def _laid_out(self) -> Any:
        column = {"margin": "4px 12px 4px 0"}
        first = [*(self._knobs[name] for name in MENUS), self._device]
        first += [self._knobs[name] for name in FLAGS]
        second = [knob for knob in self._knobs.values() if knob not in first]
        knobs = [widgets.VBox(each, layout=column) for each in (first, second)]
        return widgets.VBox(
            [
                widgets.HBox(knobs, layout={"flex_flow": "row wrap"}),
                widgets.HBox([self._verdict, self._change], layout={"flex_flow": "row wrap"}),
                self._picture,
                self._table,
            ]
        )

    def _refresh(self, _: Any = None) -> None:
        if self._is_moving_several:
            return
        capacity = DEVICES[self._device.value]
        try:
            setup = setup_of(self._knobs)
            table, picture = _html(setup), _png(setup, capacity)
        except ValueError as error:
            self.setup, self.says = None, f"There is no such setup: {error}."
            table, picture = "", b""
            can_change = False
        else:
            self.setup, self.says = setup, advice(setup, capacity)
            can_change = bool(changes(setup, capacity))
        self._verdict.value = f"<b>{escape(self.says)}</b>"
        self._table.value, self._picture.value = table, picture
        self._picture.layout.display = None if picture else "none"
        self._change.layout.display = None if can_change else "none"

    def __repr__(self) -> str:
        return f"{_title(self._start)}\n{text(self._start, DEVICES[self._start_device])}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        says = advice(self._start, DEVICES[self._start_device])
        static = f"<b>{escape(_title(self._start))}</b>{_html(self._start)}{escape(says)}<br>"
        static += f'<span style="color: {FAINT}">Run this cell to turn the knobs.</span>'
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        return {**bundle, "text/plain": repr(self), "text/html": box(static)}


def memory_calculator(
    start: TrainingSetup | str = "llama2-7b", device: str = "80 GB"
) -> MemoryCalculator:
    """What a GPU holds in training, with knobs; the last line of a cell shows it.

    start: a TrainingSetup, or a model by name, then on one GPU. device: one of DEVICES, "24 GB" to
    "141 GB". ValueError for a device that there isn't, and for what `calc.footprint` refuses.
    """
    if isinstance(start, str):
        start = TrainingSetup(model=start)
    if not isinstance(start, TrainingSetup):
        raise TypeError(f"start={start!r:.60}: give a calc.TrainingSetup, or a model's name")
    if not isinstance(device, str) or device not in DEVICES:
        raise ValueError(f"no device of {device!r}; there are: {', '.join(DEVICES)}")
    calc.footprint(start)
    return MemoryCalculator(start, device)


def _title(setup: TrainingSetup) -> str:
    return f"{value_text('model', setup.model)}, {value_text('recipe', setup.recipe)}"


def _png(setup: TrainingSetup, capacity: float) -> bytes:
    return viz.memory_bar(shown(setup), capacity).png()


def _html(setup: TrainingSetup) -> str:
    cell = "padding: 1px 12px 1px 0; line-height: 1.5;"
    number = f"{cell} text-align: right; font-variant-numeric: tabular-nums;"
    lines = []
    table = rows(setup)
    for place, (name, *cells, how) in enumerate(table):
        weight = "font-weight: 600;" if place in (0, len(table) - 1) else ""
        lines.append(
            f'<tr><td style="{cell} text-align: left; {weight}">{escape(name)}</td>'
            + "".join(f'<td style="{number} {weight}">{escape(each)}</td>' for each in cells)
            + f'<td style="{cell} text-align: left; color: {FAINT};">{escape(how)}</td></tr>'
        )
    return f'<table style="border-collapse: collapse; margin: 6px 0;">{"".join(lines)}</table>'
