"""The ring calculator: bytes and time of a ring all-reduce, with sliders, from laptop to cluster.

RingCost computes, from labkit.calc's formulas alone. `chart` draws the time over the number of
ranks, in its two parts. RingCalculator has the sliders.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import calc
from labkit.calc.traffic.cost import Collective
from labkit.calc.units import bytes_text, count_text, seconds_text
from labkit.notebook.controls import with_slider_names
from labkit.notebook.shown import BORDER, FAINT, INK, box

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
# (name, colour, dashes, the property of a RingCost)
_LINES = (
    ("latency", "#e69f00", "6 3", "latency_seconds"),
    ("bytes", "#1f83c6", "3 3", "bandwidth_seconds"),
    ("time", "currentColor", "none", "seconds"),
)
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 428, 28, 226


def chart(cost: RingCost) -> str:
    """Draw time over ranks as an SVG, both on log scales, with a dot at the cost's own ranks."""
    costs = over_ranks(cost, _WORLD_SIZES)
    most = 2 * max(one.seconds for one in costs) or 1.0
    low = min((one.seconds for one in costs if one.seconds), default=most) / 50
    decades = range(math.ceil(math.log10(low)), math.floor(math.log10(most)) + 1)

    def at(ranks: float, seconds: float) -> tuple[float, float]:
        up = math.log(max(seconds, low) / low) / math.log(most / low)
        return _LEFT + (_RIGHT - _LEFT) * math.log2(ranks / 2) / 9, _BOTTOM - (_BOTTOM - _TOP) * up

    drawn, grid = "", f'stroke="{BORDER}" stroke-width="0.6"'
    for x, ranks in ((at(2**power, most)[0], 2**power) for power in range(1, 11)):
        drawn += f'<path d="M{x:.1f} {_TOP}V{_BOTTOM}" {grid}/>'
        drawn += f'<text x="{x:.1f}" y="{_BOTTOM + 15}" text-anchor="middle">{ranks}</text>'
    for y, power in ((at(2, 10.0**power)[1], power) for power in decades):
        drawn += f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" {grid}/>'
        drawn += f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">'
        drawn += f"{seconds_text(10.0**power)}</text>"
    for place, (name, colour, dashes, part) in enumerate(_LINES):
        look = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        points = (at(one.world_size, getattr(one, part)) for one in costs)
        drawn += f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" {look}/>'
        x = _LEFT + 90 * place
        drawn += f'<path d="M{x} 12h24" {look}/><text x="{x + 30}" y="16">{name}</text>'
    if cost.world_size > 1:  # a single rank has nothing to send, and no place on a log scale
        x, y = at(cost.world_size, cost.seconds)
        drawn += f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="#d55e00"/>'
    drawn += (
        f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 32}" text-anchor="middle">ranks</text>'
    )
    ends = " and ".join(
        f"{seconds_text(costs[i].seconds)} over {costs[i].world_size}" for i in (0, -1)
    )
    return (
        '<svg role="img" viewBox="0 0 440 264" width="440" style="max-width: 100%; font-size: 12px;'
        f' color: {INK}" fill="currentColor"><title>Time of the all-reduce by ranks</title>'
        f"<desc>Both scales are logarithmic. The time is {ends} ranks.</desc>{drawn}</svg>"
    )


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
        self._is_applying_preset = False
        self._sliders = {name: self._slider(name) for name in _CHOICES}
        self._preset = widgets.ToggleButtons(
            options=[*PRESETS, _OTHER], value=_name_of(start), style={"button_width": "13em"}
        )
        self._result, self._chart = widgets.HTML(), widgets.HTML()
        for slider in self._sliders.values():
            slider.observe(self._on_slider, names="value")
        self._preset.observe(self._on_preset, names="value")
        knobs = widgets.VBox(list(self._sliders.values()), layout={"margin": "8px 0"})
        columns = widgets.HBox([knobs, self._chart], layout={"flex_flow": "row wrap"})
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
        self._chart.value = chart(self.cost)

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
