"""The traffic calculator: bytes and time of a collective, with sliders, from laptop to cluster.

TrafficCost computes, from labkit.calc's formulas alone. `chart` draws the time over the number of
ranks, in its two parts. TrafficCalculator has the sliders.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import arguments, calc
from labkit.calc.traffic.collective import COLLECTIVES
from labkit.calc.traffic.cost import Blocked, Collective
from labkit.calc.units import bytes_text, count_text, seconds_text
from labkit.notebook.controls import choice, with_slider_names
from labkit.notebook.shown import BORDER, FAINT, INK, WithWidget, box, run_it

# Least and usual values. A link slower than a byte per second is a mistake in the unit.
_LEAST = {
    "num_parameters": (0, 7e9),
    "bytes_per_element": (1, 2),
    "world_size": (1, 8),
    "num_tensors": (1, 1),
    "link_bytes_per_s": (1, 360e9),
    "latency_s": (0, 5e-6),
}


_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
KINDS: dict[str, type[Collective]] = {
    f"{kind.operation} by {kind.algorithm}": kind
    for operation in _OPERATIONS
    for kind in COLLECTIVES
    if kind.operation == operation and kind.algorithm != "hierarchical"  # it has two kinds of link
}
"""The collectives that have a bus bandwidth, by every algorithm for equal links."""


@dataclass(frozen=True)
class TrafficCost:
    """A collective of a model's gradients or parameters, with its cost as properties.

    Raises ValueError for numbers that are not finite, below 0, or below 1 for counts, and for a
    collective that is none of KINDS; TypeError for what is no number.
    """

    num_parameters: float
    bytes_per_element: int
    world_size: int
    num_tensors: int
    """The bytes travel as this many tensors of equal size, one after the other."""
    link_bytes_per_s: float
    """One direction of the slowest link."""
    latency_s: float
    """Seconds per message."""
    collective: str = "all_reduce by ring"
    """One of KINDS."""

    def __post_init__(self) -> None:
        if not isinstance(self.collective, str) or self.collective not in KINDS:
            raise ValueError(f"collective={self.collective!r:.60}: give one of {', '.join(KINDS)}")
        for name, (least, usual) in _LEAST.items():
            is_count = name in ("world_size", "num_tensors")
            check = arguments.counted if is_count else arguments.number
            check(name, getattr(self, name), f"{least} or more, such as {usual:g}", least=least)

    @property
    def total_bytes(self) -> float:
        """D: all tensors together."""
        return self.num_parameters * self.bytes_per_element

    @property
    def of_one_tensor(self) -> Collective:
        """The collective of one tensor, by `calc.collective`."""
        kind, nbytes = KINDS[self.collective], self.total_bytes / self.num_tensors
        return calc.collective(kind.operation, kind.algorithm, self.world_size, nbytes)

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends; the mean, where ranks send different numbers."""
        return self.num_tensors * self.of_one_tensor.sent_bytes

    @property
    def seconds(self) -> float:
        """Time of all tensors by the alpha-beta model."""
        return self._seconds(self.latency_s)

    @property
    def latency_seconds(self) -> float:
        """Part of the time that the latency of messages adds."""
        return self.seconds - self.bandwidth_seconds

    @property
    def bandwidth_seconds(self) -> float:
        """Time of all tensors on links without latency."""
        return self._seconds(0)

    def _seconds(self, latency_s: float) -> float:
        of_one = self.of_one_tensor.seconds(latency_s, 1 / self.link_bytes_per_s)
        return self.num_tensors * of_one

    def lines(self) -> list[tuple[str, str, str]]:
        """Name, value and derivation of each result."""
        n, total, each = self.world_size, self.total_bytes, self.of_one_tensor
        busbw = algbw = "–"
        if self.seconds > 0:
            algbw = str(calc.algbw(total, self.seconds))
            busbw = str(calc.busbw(total, self.seconds, n, each.operation))
        parameters, itemsize = calc.count_text(self.num_parameters), self.bytes_per_element
        parts = f"{calc.seconds_text(self.latency_seconds)} latency"
        parts += f" + {calc.seconds_text(self.bandwidth_seconds)} bytes"
        steps, how = f"{self.num_tensors * each.steps:,}", f"{self.num_tensors:,} x {each.steps:,}"
        how += " (tensors x steps of each)"
        if isinstance(each, Blocked):
            steps, how = "–", "each tensor in as many blocks as are fastest"
        is_equal = each.operation != "broadcast" and each.algorithm in ("ring", "pairwise")
        share = f"{'2 x ' * (each.rounds == 2)}{n - 1}/{n}"
        factor = "" if each.operation == "broadcast" else f" x {share}"
        return [
            ("bytes D", calc.bytes_text(total), f"{parameters} parameters x {itemsize} B"),
            (
                "each rank sends" if is_equal else "sent, on average",
                calc.bytes_text(self.sent_bytes),
                f"{share} x D",
            ),
            ("in steps", steps, how),
            ("time", calc.seconds_text(self.seconds), parts),
            ("algbw", algbw, "algorithm bandwidth, D / time"),
            ("busbw", busbw, f"bus bandwidth, algbw{factor}: compare with the link"),
        ]

    def text(self) -> str:
        """Return the results as aligned plain text."""
        return "\n".join(f"{name:16}{value:>12}   {how}" for name, value, how in self.lines())


def over_ranks(cost: TrafficCost, world_sizes: Iterable[int]) -> list[TrafficCost]:
    """Return the costs of the same gradients and links, for each number of ranks."""
    return [replace(cost, world_size=world_size) for world_size in world_sizes]


PRESETS = {
    # Illustrative round numbers; benchmarks show what this machine really does.
    # What benchmarks/ring.py shows for four processes on two cores, rounded.
    "laptop: 4 processes": TrafficCost(10e6, 4, 4, 1, 0.5e9, 500e-6),
    "one node: 8 GPUs": TrafficCost(7e9, 2, 8, 1, 360e9, 5e-6),
    "cluster: 512 GPUs": TrafficCost(70e9, 2, 512, 100, 50e9, 10e-6),
}


_WORLD_SIZES = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1024)
# (name, colour, dashes, the property of a TrafficCost)
_LINES = (
    ("latency", "#e69f00", "6 3", "latency_seconds"),
    ("bytes", "#1f83c6", "3 3", "bandwidth_seconds"),
    ("time", "currentColor", "none", "seconds"),
)
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 428, 28, 226


def chart(cost: TrafficCost) -> str:
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
        seen = [(one.world_size, getattr(one, part)) for one in costs]
        points = [at(*each) for each in seen if each[1] >= low]
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
        f' color: {INK}" fill="currentColor"><title>Time of {cost.collective}, over ranks</title>'
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
_WIDTH = "31em"


class TrafficCalculator(WithWidget):
    """Sliders for a `TrafficCost`, its results, and its chart. `cost` is the one on show."""

    def __init__(self, start: TrafficCost) -> None:
        """`start`: the sliders' first positions, which the static form shows."""
        self.cost = start
        self._start = start
        self._is_applying_preset = False
        self._sliders = {name: self._slider(name) for name in _CHOICES}
        self._collective = choice(
            "collective", list(KINDS), start.collective, str, is_menu=True, width=_WIDTH
        )
        self._preset = widgets.ToggleButtons(
            options=[*PRESETS, _OTHER], value=_name_of(start), style={"button_width": "13em"}
        )
        self._result, self._chart = widgets.HTML(), widgets.HTML()
        for slider in (self._collective, *self._sliders.values()):
            slider.observe(self._on_slider, names="value")
        self._preset.observe(self._on_preset, names="value")
        knobs = widgets.VBox(
            [self._collective, *self._sliders.values()], layout={"margin": "8px 0"}
        )
        columns = widgets.HBox([knobs, self._chart], layout={"flex_flow": "row wrap"})
        self._widget = with_slider_names(widgets.VBox([self._preset, columns, self._result]))
        self._refresh()

    def _slider(self, name: str) -> Any:
        start, text = getattr(self._start, name), partial(_value_text, name)
        return choice(_LABELS[name], _CHOICES[name], start, text, width=_WIDTH)

    def _on_slider(self, _: Any) -> None:
        if self._is_applying_preset:
            return
        sizes = {name: slider.value for name, slider in self._sliders.items()}
        self.cost = TrafficCost(**sizes, collective=self._collective.value)
        self._preset.value = _name_of(self.cost)
        self._refresh()

    def _on_preset(self, change: Any) -> None:
        preset = PRESETS.get(change["new"])
        if preset is None or change["new"] == _name_of(self.cost):
            return
        self._is_applying_preset = True  # six sliders move, one redrawing
        try:
            for name, slider in self._sliders.items():
                slider.value = getattr(preset, name)
        finally:
            self._is_applying_preset = False
        self.cost = replace(preset, collective=self.cost.collective)
        self._refresh()

    def _refresh(self) -> None:
        self._result.value = _html(self.cost)
        self._chart.value = chart(self.cost)

    def __repr__(self) -> str:
        return f"{_title(self._start)}\n{self._start.text()}"

    def _static_html(self) -> str:
        static = f"<b>{escape(_title(self._start))}</b>{_html(self._start)}"
        return box(static + run_it("turn the knobs."))


def calculator(start: str | TrafficCost = "one node: 8 GPUs") -> TrafficCalculator:
    """Show bytes and time of a collective, with sliders, as the last line of a cell.

    start: "laptop: 4 processes", "one node: 8 GPUs", "cluster: 512 GPUs", or a TrafficCost of your
    own. Its formulas are those of `calc.collective`, by the alpha-beta model.
    Raises ValueError for an unknown preset, TypeError for anything else.
    """
    if isinstance(start, str):
        if start not in PRESETS:
            raise ValueError(f"no preset {start!r}; there are: {', '.join(PRESETS)}")
        start = PRESETS[start]
    if not isinstance(start, TrafficCost):
        raise TypeError(f"start={start!r:.60}: give a TrafficCost, or one of {', '.join(PRESETS)}")
    return TrafficCalculator(start)


def _name_of(cost: TrafficCost) -> str:
    presets = {replace(each, collective=cost.collective): name for name, each in PRESETS.items()}
    return presets.get(cost, _OTHER)


def _title(cost: TrafficCost) -> str:
    return f"{cost.collective}, {_name_of(cost)}"


def _value_text(name: str, value: float) -> str:
    if name == "link_bytes_per_s":
        return f"{bytes_text(value)}/s"
    if name == "latency_s":
        return seconds_text(value)
    return count_text(value)


def _html(cost: TrafficCost) -> str:
    cell = "padding: 1px 10px 1px 0; line-height: 1.5;"
    rows = "".join(
        f'<tr><td style="{cell}">{escape(name)}</td>'
        f'<td style="{cell} text-align: right; font-weight: 600;">{escape(value)}</td>'
        f'<td style="{cell} text-align: left; color: {FAINT};">{escape(how)}</td></tr>'
        for name, value, how in cost.lines()
    )
    return f'<table style="border-collapse: collapse; margin: 6px 0;">{rows}</table>'
