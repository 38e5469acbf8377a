"""The ring calculator: bytes and time of a ring all-reduce, with sliders, from laptop to cluster.

RingCost computes, from labkit.calc's formulas alone. RingChart draws the time over the number of
ranks, in its two parts. RingCalculator has the sliders.
"""

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as widgets
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit import calc
from labkit.calc.traffic.cost import Collective
from labkit.calc.units import bytes_text, count_text, seconds_text
from labkit.notebook.controls import with_slider_names
from labkit.notebook.shown import FAINT, box
from labkit.viz import style

# The least sensible values; a link slower than a byte per second is a mistake in the unit.
_LEAST = {
    "num_parameters": 0,
    "bytes_per_element": 1,
    "world_size": 1,
    "num_tensors": 1,
    "link_bytes_per_s": 1,
    "latency_s": 0,
}


@dataclass(frozen=True)
class RingCost:
    """An all-reduce of a model's gradients over a ring, with its cost as properties.

    Raises ValueError for numbers that are not finite, below 0, or below 1 for counts.
    """

    num_parameters: float
    bytes_per_element: int
    world_size: int
    num_tensors: int
    """The gradients travel as this many tensors of equal size, one after the other."""
    link_bytes_per_s: float
    """One direction of the slowest link in the ring."""
    latency_s: float
    """Seconds per message."""

    def __post_init__(self) -> None:
        """Check every number: a slider cannot be at infinity."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            is_counted = name in ("world_size", "num_tensors")
            if not least <= value < math.inf or (is_counted and value != int(value)):
                kind = "a whole number" if is_counted else "a finite number"
                raise ValueError(
                    f"{name}={value}: a ring needs {kind}, {least} or more; "
                    f"try {getattr(PRESETS['one node: 8 GPUs'], name):g}"
                )

    @property
    def gradient_bytes(self) -> float:
        """D: all tensors together."""
        return self.num_parameters * self.bytes_per_element

    @property
    def _ring(self) -> Collective:
        return calc.collective("all_reduce", "ring", self.world_size, self.gradient_bytes)

    @property
    def sent_bytes(self) -> float:
        """Bytes that each rank sends."""
        return self._ring.sent_bytes

    @property
    def num_messages(self) -> int:
        """Messages that each rank sends."""
        return self.num_tensors * self._ring.steps

    @property
    def seconds(self) -> float:
        """Time of all tensors by the alpha-beta model."""
        return self.latency_seconds + self.bandwidth_seconds

    @property
    def latency_seconds(self) -> float:
        """Part of the time for latency, paid per message."""
        return self.num_tensors * self._ring.seconds(self.latency_s, 0)

    @property
    def bandwidth_seconds(self) -> float:
        """Part of the time for bandwidth, paid per byte."""
        return self._ring.seconds(0, 1 / self.link_bytes_per_s)

    def lines(self) -> list[tuple[str, str, str]]:
        """Name, value and derivation of each result."""
        n, total = self.world_size, calc.bytes_text(self.gradient_bytes)
        busbw = algbw = "–"
        if self.seconds > 0:
            algbw = str(calc.algbw(self.gradient_bytes, self.seconds))
            busbw = str(calc.busbw(self.gradient_bytes, self.seconds, n))
        parameters, itemsize = calc.count_text(self.num_parameters), self.bytes_per_element
        messages = f"{self.num_tensors:,} x 2 x {n - 1}"
        parts = f"{calc.seconds_text(self.latency_seconds)} latency"
        parts += f" + {calc.seconds_text(self.bandwidth_seconds)} bytes"
        return [
            ("gradients D", total, f"{parameters} parameters x {itemsize} B"),
            ("each rank sends", calc.bytes_text(self.sent_bytes), f"2 x {n - 1}/{n} x D"),
            ("in messages", f"{self.num_messages:,}", f"{messages} (tensors x 2(n-1))"),
            ("time", calc.seconds_text(self.seconds), parts),
            ("algbw", algbw, "algorithm bandwidth, D / time"),
            ("busbw", busbw, f"bus bandwidth, algbw x 2 x {n - 1}/{n}: compare with the link"),
        ]

    def text(self) -> str:
        """Return the results as aligned plain text."""
        return "\n".join(f"{name:16}{value:>12}   {how}" for name, value, how in self.lines())


def over_ranks(cost: RingCost, world_sizes: Iterable[int]) -> list[RingCost]:
    """Return the costs of the same gradients and links, for each number of ranks."""
    fixed = {name: getattr(cost, name) for name in cost.__dataclass_fields__}
    return [RingCost(**fixed | {"world_size": world_size}) for world_size in world_sizes]


PRESETS = {
    # Illustrative round numbers; benchmarks show what this machine really does.
    # What benchmarks/ring.py shows for four processes on two cores, rounded.
    "laptop: 4 processes": RingCost(10e6, 4, 4, 1, 0.5e9, 500e-6),
    "one node: 8 GPUs": RingCost(7e9, 2, 8, 1, 360e9, 5e-6),
    "cluster: 512 GPUs": RingCost(70e9, 2, 512, 100, 50e9, 10e-6),
}


_WORLD_SIZES = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1024)
_LATENCY, _BYTES = "#e69f00", "#0072b2"


class RingChart:
    """One figure, made once; `png` moves its lines, which takes some 40 ms."""

    def __init__(self) -> None:
        """Make axes, lines and labels."""
        self._figure = Figure(figsize=(4.4, 2.6), dpi=150)
        self._canvas = FigureCanvasAgg(self._figure)
        self._axes = axes = self._figure.add_axes((0.15, 0.18, 0.82, 0.7))
        (self._latency,) = axes.plot([1], [1], color=_LATENCY, linestyle="--", label="latency")
        (self._bytes,) = axes.plot([1], [1], color=_BYTES, linestyle=":", label="bytes")
        (self._total,) = axes.plot([1], [1], color=style.INK, linewidth=1.8, label="time")
        (self._here,) = axes.plot([1], [1], "o", color=style.ALARM, zorder=5)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlim(1.8, 1150)
        ticks = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda seconds, _: seconds_text(seconds))
        axes.tick_params(labelsize=9, length=2, color=style.GRID)
        axes.set_xlabel("ranks", fontsize=9)
        axes.grid(color=style.GRID, linewidth=0.5)
        for spine in axes.spines.values():
            spine.set_color(style.GRID)
        self._figure.legend(
            loc="upper left", bbox_to_anchor=(0.14, 1.0), ncols=3, frameon=False, fontsize=9
        )

    def png(self, cost: RingCost) -> bytes:
        """Return the chart for `cost`, with a dot at its number of ranks."""
        costs = over_ranks(cost, _WORLD_SIZES)
        self._latency.set_data(_WORLD_SIZES, [one.latency_seconds for one in costs])
        self._bytes.set_data(_WORLD_SIZES, [one.bandwidth_seconds for one in costs])
        totals = [one.seconds for one in costs]
        self._total.set_data(_WORLD_SIZES, totals)
        # A single rank has nothing to send, and no place on a log scale.
        self._here.set_data(
            ([cost.world_size], [cost.seconds]) if cost.world_size > 1 else ([], [])
        )
        self._axes.set_ylim(min(totals) / 50, max(totals) * 2)
        target = io.BytesIO()
        self._canvas.print_png(target)
        return target.getvalue()


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
    """Sliders for a `RingCost`, its results, and its chart. `cost` is the one on show."""

    def __init__(self, start: RingCost) -> None:
        """`start`: the sliders' first positions, which the static form shows."""
        self.cost = start
        self._start = start
        self._chart = RingChart()
        self._is_applying_preset = False
        self._sliders = {name: self._slider(name) for name in _CHOICES}
        self._preset = widgets.ToggleButtons(
            options=[*PRESETS, _OTHER], value=_name_of(start), style={"button_width": "13em"}
        )
        self._result = widgets.HTML()
        size = {"width": "400px", "height": "236px"}
        self._picture = widgets.Image(format="png", layout=size).add_class("labkit-picture")
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
    """Show bytes and time of a ring all-reduce, with sliders, as the last line of a cell.

    start: "laptop: 4 processes", "one node: 8 GPUs", "cluster: 512 GPUs", or a RingCost of your
    own. Its formulas are those of `labkit.calc`: the ring, by the alpha-beta model.
    Raises ValueError for an unknown preset, TypeError for anything else.
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
