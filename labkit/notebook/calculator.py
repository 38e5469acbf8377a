"""Turn the knobs: a calculator with sliders, at the reader's scale and at cluster scale."""

from html import escape
from typing import Any

import ipywidgets as widgets

from labkit.calc.units import bytes_text, count_text, seconds_text
from labkit.notebook.ring_chart import RingChart
from labkit.notebook.ring_cost import PRESETS, RingCost
from labkit.notebook.shown import FAINT, box
from labkit.notebook.slider_names import with_slider_names

# Steps of a slider, roughly equal in size on a log scale; presets lie on them.
_CHOICES: dict[str, tuple[float, ...]] = {
    "num_parameters": (
        *(1e6, 3e6, 10e6, 30e6, 100e6, 350e6, 1e9, 3e9),
        *(7e9, 13e9, 30e9, 70e9, 175e9, 405e9, 1e12),
    ),
    "bytes_per_element": (1, 2, 4, 8),
    "world_size": (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024),
    "num_tensors": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
    "link_bytes_per_s": tuple(
        gigabytes * 1e9
        for gigabytes in (0.1, 0.2, 0.5, 1, 2, 5, 10, 12.5, 25, 50, 100, 200, 360, 450, 900)
    ),
    "latency_s": (
        *(0.5e-6, 1e-6, 2e-6, 5e-6, 10e-6, 20e-6, 50e-6),
        *(100e-6, 200e-6, 500e-6, 1000e-6),
    ),
}
_LABELS = {
    "num_parameters": "parameters",
    "bytes_per_element": "bytes per element",
    "world_size": "ranks",
    "num_tensors": "tensors",
    "link_bytes_per_s": "link, one direction",
    "latency_s": "latency per message",
}
_OTHER = "your own"


class RingCalculator:
    """Sliders for a `RingCost`, its results, and its chart. `cost` is what the sliders say."""

    def __init__(self, start: RingCost) -> None:
        """`start`: where the sliders stand at first; also what the static form shows."""
        self.cost = start
        self._start = start
        self._chart = RingChart()
        self._is_applying_preset = False
        self._sliders = {name: self._slider(name) for name in _CHOICES}
        self._preset = widgets.ToggleButtons(
            options=[*PRESETS, _OTHER], value=_name_of(start), style={"button_width": "13em"}
        )
        self._result = widgets.HTML()
        self._picture = widgets.Image(format="png", layout={"width": "400px", "height": "236px"})
        for slider in self._sliders.values():
            slider.observe(self._on_slider, names="value")
        self._preset.observe(self._on_preset, names="value")
        knobs = widgets.VBox(list(self._sliders.values()), layout={"margin": "8px 0"})
        columns = widgets.HBox([knobs, self._picture], layout={"flex_flow": "row wrap"})
        self._widget = with_slider_names(widgets.VBox([self._preset, columns, self._result]))
        self._refresh()

    def _slider(self, name: str) -> Any:
        start = getattr(self._start, name)
        values = sorted({*_CHOICES[name], start})  # a start of the caller's own gets a stop too
        return widgets.SelectionSlider(
            options=[(_value_text(name, value), value) for value in values],
            value=start,
            description=_LABELS[name],
            style={"description_width": "11em"},
            layout={"width": "31em"},
        )

    def _on_slider(self, _: Any) -> None:
        if self._is_applying_preset:
            return
        self.cost = RingCost(**{name: slider.value for name, slider in self._sliders.items()})
        self._preset.value = _name_of(self.cost)
        self._refresh()

    def _on_preset(self, change: Any) -> None:
        preset = PRESETS.get(change["new"])
        if preset is None or preset == self.cost:
            return
        self._is_applying_preset = True  # six sliders move, one redrawing
        try:
            for name, slider in self._sliders.items():
                slider.value = getattr(preset, name)
        finally:
            self._is_applying_preset = False
        self.cost = preset
        self._refresh()

    def _refresh(self) -> None:
        self._result.value = _html(self.cost)
        self._picture.value = self._chart.png(self.cost)

    def __repr__(self) -> str:
        return f"Ring all-reduce, {_name_of(self._start)}\n{self._start.text()}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        static = f"<b>Ring all-reduce, {escape(_name_of(self._start))}</b>{_html(self._start)}"
        static += f'<span style="color: {FAINT}">Run this cell to turn the knobs.</span>'
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        return {**bundle, "text/plain": repr(self), "text/html": box(static)}


def calculator(start: str | RingCost = "one node: 8 GPUs") -> RingCalculator:
    """Bytes and time of a ring all-reduce, with sliders; the last line of a cell shows it.

    start: "laptop: 4 processes", "one node: 8 GPUs", "cluster: 512 GPUs", or a RingCost of your
    own. Its formulas are those of `labkit.calc`: the ring, by the alpha-beta model.
    Raises ValueError for a preset that there isn't, TypeError for what is neither.
    """
    if isinstance(start, str):
        if start not in PRESETS:
            raise ValueError(f"no preset {start!r}; there are: {', '.join(PRESETS)}")
        start = PRESETS[start]
    if not isinstance(start, RingCost):
        raise TypeError(
            f"start={start!r} is no place to start: pass one of {', '.join(PRESETS)}, or a RingCost"
        )
    return RingCalculator(start)


def _name_of(cost: RingCost) -> str:
    return next((name for name, preset in PRESETS.items() if preset == cost), _OTHER)


def _value_text(name: str, value: float) -> str:
    if name == "link_bytes_per_s":
        return f"{bytes_text(value)}/s"
    if name == "latency_s":
        return seconds_text(value)
    return count_text(value)


def _html(cost: RingCost) -> str:
    cell = "padding: 1px 10px 1px 0; line-height: 1.5;"
    rows = "".join(
        f'<tr><td style="{cell}">{escape(name)}</td>'
        f'<td style="{cell} text-align: right; font-weight: 600;">{escape(value)}</td>'
        f'<td style="{cell} text-align: left; color: {FAINT};">{escape(how)}</td></tr>'
        for name, value, how in cost.lines()
    )
    return f'<table style="border-collapse: collapse; margin: 6px 0;">{rows}</table>'
