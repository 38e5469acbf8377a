"""The cache calculator: the key-value cache of requests by kind of layer, and how many fit.

cache_calculator()                                       # llama3-8b, 8,192 tokens, on an H100
cache_calculator("deepseek-v3", tokens=32768, gpu="h200", tp=16)

It shows what weights and caches take of a GPU's memory as a bar, and a row for each kind of layer.
`labkit cache` prints the same numbers. Formulas are labkit.calc's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import arguments, calc
from labkit.calc import ModelConfig, Result
from labkit.calc.hardware import gpu
from labkit.calc.result import total
from labkit.notebook.bars import bar, legend, rows_html, rows_text
from labkit.notebook.controls import choice, from_knobs, with_slider_names
from labkit.notebook.memory import value_text
from labkit.notebook.own_model import config_upload
from labkit.notebook.shown import WithWidget, box, run_it

_PAGE = 16
_USABLE = 0.9
_COLOURS = {
    "weights": "#0072b2",
    "full layers": "#d55e00",
    "window layers": "#e69f00",
    "recurrent layers": "#cc79a7",
}


@dataclass(frozen=True)
class CacheSetup:
    """Requests with their caches beside a model's weights.

    ValueError for unknown names, and for what is no count. Pages have 16 tokens, and weights and
    caches may take 90% of the memory.
    """

    model: str | ModelConfig = "llama3-8b"
    tokens: int = 8192
    """Tokens of each request."""
    requests: int = 16
    weight_bits: float = 16
    cache_bits: float = 16
    gpu: str = "h100"
    tp: int = 1
    """GPUs that share weights and caches."""

    def __post_init__(self) -> None:
        for name in ("weight_bits", "cache_bits"):
            arguments.number(name, getattr(self, name), "bits of a number: 16, 8 or 4", above=0)
        _ = self.says, self.rows()  # unknown names, impossible counts

    @property
    def room(self) -> float:
        """Bytes of a GPU that weights and caches may take."""
        return _USABLE * gpu(self.gpu).memory_bytes

    @property
    def of_one(self) -> Result:
        """Cache of a request on each GPU, by kind of layer."""
        return self._cache(1)

    @property
    def fits(self) -> Result:
        """Requests that fit."""
        return calc.requests_that_fit(
            self.model,
            self.gpu,
            self.tokens,
            page_size=_PAGE,
            itemsize=self.weight_bits / 8,
            cache_itemsize=self.cache_bits / 8,
            tp=self.tp,
            usable=_USABLE,
        )

    @property
    def held(self) -> Result:
        """Weights, and the caches of all requests, on each GPU."""
        parts = {"weights": self.fits["weights"], **self._cache(self.requests).parts}
        return total("weights and caches", parts)

    def rows(self) -> list[list[str]]:
        """Return a heading, a row for each kind of layer, and their sum."""
        one, every = self.of_one, self._cache(self.requests)
        heading = ["", "a request", f"{self.requests:,} requests", "a request, on each GPU"]
        parts = [
            [name, str(part), str(every[name]), part.substitution.removeprefix("1 * ")]
            for name, part in one.parts.items()
        ]
        return [heading, *parts, ["together", str(one), str(every), ""]]

    @property
    def says(self) -> str:
        """Say how many requests fit, and whether these do."""
        where = self.gpu if self.tp == 1 else f"{self.tp} x {self.gpu}"
        room, weights = calc.bytes_text(self.room), self.fits["weights"]
        if not float(self.fits["left for caches"]):
            return f"The weights do not fit on {where}: {weights} a GPU, {room} are usable."
        verb = "fit" if self.requests <= int(self.fits) else "do not fit"
        left, most = self.fits["left for caches"], int(self.fits)
        return (
            f"{self.requests:,} requests {verb}: {where} has room for {most:,}. Of {room} that "
            f"are usable on a GPU the weights take {weights}, and caches may take {left}."
        )

    def _cache(self, requests: int) -> Result:
        itemsize = self.cache_bits / 8
        sizes: dict[str, Any] = {"itemsize": itemsize, "tp": self.tp, "page_size": _PAGE}
        return calc.cache_bytes(self.model, self.tokens, requests, **sizes)


def cache_html(setup: CacheSetup) -> str:
    """Draw weights and caches as a bar, with a line where the usable memory ends; and the rows."""
    held, room = setup.held, setup.room
    drawn = bar(held, _COLOURS, max(float(held), room), width="100%", mark=room)
    line = f"A line marks {_USABLE:.0%} of the memory, {calc.bytes_text(room)}. Parts"
    return (
        f'<div style="max-width: 46em; margin: 8px 0;">{drawn}</div>'
        f"{legend(line, _COLOURS, [held])}{rows_html(setup.rows())}<b>{escape(setup.says)}</b>"
    )


_POWERS = tuple(2**power for power in range(21))
_BITS = (16, 8, 4)
# The positions of each knob, and its label.
_CHOICES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "model": ("model", tuple(calc.MODELS)),
    "gpu": ("GPU", tuple(calc.GPUS)),
    "weight_bits": ("weights", _BITS),
    "cache_bits": ("cache", _BITS),
    "tokens": ("tokens of a request", _POWERS[8:]),
    "requests": ("requests", _POWERS[:13]),
    "tp": ("tensor parallel", _POWERS[:7]),
}
_MENUS = ("model", "gpu", "weight_bits", "cache_bits")


class CacheCalculator(WithWidget):
    """Knobs for a CacheSetup; a bar, a table, and how many requests fit. `setup`: the one shown."""

    def __init__(self, start: CacheSetup) -> None:
        """`start`: the knobs' first positions, which the static form shows."""
        self.setup = self._start = start
        self._knobs = {
            name: choice(
                label, stops, getattr(start, name), partial(_text, name), is_menu=name in _MENUS
            )
            for name, (label, stops) in _CHOICES.items()
        }
        self._said = widgets.HTML()
        for knob in self._knobs.values():
            knob.observe(self._refresh, names="value")
        menus = [self._knobs[name] for name in _MENUS]
        own = config_upload(menus[0], lambda config: replace(start, model=config))
        sliders = [knob for knob in self._knobs.values() if knob not in menus]
        columns = [widgets.VBox(each) for each in ([menus[0], own, *menus[1:]], sliders)]
        row = widgets.HBox(columns, layout={"flex_flow": "row wrap", "margin": "4px 0"})
        self._widget = with_slider_names(widgets.VBox([row, self._said]))
        self._refresh()

    def _refresh(self, _: Any = None) -> None:
        self.setup = CacheSetup(**{name: knob.value for name, knob in self._knobs.items()})
        self._said.value = cache_html(self.setup)

    def __repr__(self) -> str:
        rows = rows_text(self._start.rows())
        return f"{value_text('model', self._start.model)}\n{rows}\n{self._start.says}"

    def _static_html(self) -> str:
        title = value_text("model", self._start.model)
        static = f"<b>{escape(title)}</b>{cache_html(self._start)}<br>"
        return box(static + run_it("turn the knobs."))


def cache_calculator(model: str | ModelConfig = "llama3-8b", **start: Any) -> CacheCalculator:
    """Show what requests' key-value caches take, with knobs, as the last line of a cell.

    model: a ModelConfig, or its name in calc.MODELS. start: where the other knobs stand at first:
    tokens (of a request), requests, weight_bits, cache_bits, gpu (a name in calc.GPUS), and tp.
    TypeError for other names; ValueError for an unknown model or GPU, and what is no count.
    """
    return CacheCalculator(from_knobs(CacheSetup, model, start))


def _text(name: str, value: Any) -> str:
    if name in ("model", "tokens"):
        return value_text(name, value)
    if name == "gpu":
        return f"{value} ({calc.bytes_text(gpu(value).memory_bytes)})"
    return f"{value:g} bits" if name.endswith("_bits") else f"{value:,}"
