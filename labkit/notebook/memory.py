"""The memory calculator: a GPU's memory by part, with a knob for everything that changes it.

memory_calculator()                                                   # Llama 2 7B on one 80 GB GPU
memory_calculator(calc.TrainingSetup(model="llama3-70b", tp=8, pp=4, dp=8, zero=1), "141 GB")

It shows a bar and a table of parts by GPU, whether the fullest one fits, and if not, what to
change. Formulas are labkit.calc's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import calc
from labkit.calc import Result, TrainingSetup
from labkit.calc.memory.fit import Change, smallest_change
from labkit.calc.memory.model_state import recipe_of
from labkit.notebook.bars import bar, legend, rows_html, rows_text
from labkit.notebook.controls import choice, with_slider_names
from labkit.notebook.own_model import config_upload
from labkit.notebook.shown import WithWidget, box, run_it
from labkit.viz.style import memory_colour

DEVICES = {"24 GB": 24e9, "40 GB": 40e9, "80 GB": 80e9, "141 GB": 141e9}
"""Memory of GPUs as data sheets name it, where a GB is 1e9 bytes.

A real device has some 5% more, and needs it, for CUDA itself and for blocks too small for its
allocator to use.
"""

_MOST_STAGES = 4
_BAR_ROW = "display: flex; flex-flow: row wrap; align-items: center; gap: 0 1em; margin: 6px 0;"


def shown(setup: TrainingSetup) -> dict[str, Result]:
    """Return one GPU of each stage by name; of a long pipeline the first two and the last two.

    The fullest is among them: the first has most in flight, the last has the logits.
    """
    stages = calc.footprints(setup)
    if len(stages) == 1:
        return {"each GPU": stages[0]}
    numbers = list(range(len(stages)))
    if len(stages) > _MOST_STAGES:
        numbers = [*numbers[:2], *numbers[-2:]]
    return {f"stage {number}": stages[number] for number in numbers}


def rows(setup: TrainingSetup) -> list[list[str]]:
    """Return a heading and a row for each part: its name, its bytes on each GPU shown, and how."""
    gpus = shown(setup)
    parts = list(dict.fromkeys(part for each in gpus.values() for part in each.parts))
    table = [["", *gpus, "how"]]
    for part in parts:
        cells = [str(each[part]) if part in each.parts else "–" for each in gpus.values()]
        how = next(each[part] for each in gpus.values() if part in each.parts)
        table.append([part, *cells, how.substitution])
    return [*table, ["together", *map(str, gpus.values()), f"on {_gpus(setup.num_gpus)}"]]


def changes(setup: TrainingSetup, capacity: float) -> list[Change]:
    """Return the smallest single change with which it fits, or several; [] if it fits, or never.

    Several changes are preferred if they need no more GPUs and the single one does.
    """
    if calc.footprint(setup) <= capacity:
        return []
    single = smallest_change(setup, capacity)
    if single is not None and single.setup.num_gpus == setup.num_gpus:
        return [single]
    several = calc.changes_that_fit(setup, capacity)
    is_on_these = bool(several) and several[-1].setup.num_gpus == setup.num_gpus
    return [single] if single is not None and not is_on_these else several


def advice(setup: TrainingSetup, capacity: float) -> str:
    """Say whether the fullest GPU fits, with the bytes left or missing, and what to change."""
    fullest = float(calc.footprint(setup))
    device = calc.bytes_text(capacity)
    if fullest <= capacity:
        left = capacity - fullest
        return f"It fits: of {device}, {calc.bytes_text(left)} are left ({left / capacity:.0%})."
    over = f"It does not fit: {calc.bytes_text(fullest - capacity)} more than {device}."
    to_make = changes(setup, capacity)
    if not to_make:
        return f"{over} No change of these knobs helps: take a smaller model, or a larger device."
    after = f"then {to_make[-1].footprint} on {_gpus(to_make[-1].setup.num_gpus)}"
    if len(to_make) == 1:
        return f"{over} Smallest change: {to_make[0]}; {after}. It costs {to_make[0].costs}."
    listed = "; ".join(map(str, to_make))
    where = ""
    if to_make[-1].setup.num_gpus == setup.num_gpus:
        where = " on this GPU" if setup.num_gpus == 1 else " on these GPUs"
    return f"{over} No single change is enough{where}. Together: {listed}; {after}."


def bars_html(setup: TrainingSetup, capacity: float) -> str:
    """Draw a bar for each GPU shown, by part; a line across each is the device's memory."""
    gpus = shown(setup)
    colours = {part: memory_colour(part) for each in gpus.values() for part in each.parts}
    scale = max(capacity, *(float(each) for each in gpus.values()))
    rows = ""
    for name, each in gpus.items():
        left = capacity - float(each)
        says = f"{calc.bytes_text(abs(left))} {'left' if left >= 0 else 'over'}"
        drawn = bar(each, colours, scale, width="100%", mark=capacity)
        rows += (
            f'<div style="{_BAR_ROW}"><span style="min-width: 5em;">{escape(name)}</span>'
            f'<span style="flex: 1 1 12em; max-width: 40em;">{drawn}</span><b>{says}</b></div>'
        )
    line = f"A line marks the memory of the device, {calc.bytes_text(capacity)}. Parts"
    return f"{rows}{legend(line, colours, list(gpus.values()))}"


def text(setup: TrainingSetup, capacity: float) -> str:
    """Write the table, aligned, and the advice below it."""
    return f"{rows_text(rows(setup))}\n{advice(setup, capacity)}"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count:,} GPUs"


MENUS = ("model", "recipe", "recompute")
FLAGS = {"flash": "flash attention", "sequence_parallel": "sequence parallelism"}

_DENSE = tuple(
    name for name, config in calc.MODELS.items() if not config.num_experts and not config.is_latent
)
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# A slider cannot have the value None.
_OF_THE_MODEL = 0
# The positions of each knob, and its label.
_CHOICES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "model": ("model", _DENSE),
    "recipe": ("recipe", tuple(calc.RECIPES)),
    "recompute": ("recompute", ("none", "selective", "full")),
    "zero": ("ZeRO level", (0, 1, 2, 3)),
    "dp": ("data parallel", _POWERS),
    "tp": ("tensor parallel", _POWERS[:5]),
    "pp": ("pipeline stages", _POWERS[:7]),
    "microbatch": ("microbatch", _POWERS[:7]),
    "sequence": ("tokens of a sequence", (_OF_THE_MODEL, *(1024 * n for n in _POWERS[:8]))),
}
_LOOK: dict[str, Any] = {"style": {"description_width": "11em"}, "layout": {"width": "27em"}}


def knobs_of(start: TrainingSetup) -> dict[str, Any]:
    """Return a widget for each of the setup's fields, at its start."""
    knobs = {name: _choice(name, getattr(start, name)) for name in _CHOICES}
    for name, label in FLAGS.items():
        knobs[name] = widgets.Checkbox(getattr(start, name), description=label, **_LOOK)
    return knobs


def device_menu(device: str) -> Any:
    """Return a menu of DEVICES, by name."""
    return widgets.Dropdown(options=list(DEVICES), value=device, description="device", **_LOOK)


def setup_of(knobs: Mapping[str, Any]) -> TrainingSetup:
    """Return the setup of these knobs. ValueError if there is no such setup."""
    values = {name: knob.value for name, knob in knobs.items()}
    return TrainingSetup(**values | {"sequence": values["sequence"] or None})


def value_text(name: str, value: Any) -> str:
    """Write a value as its knob shows it: a model with its size, a recipe with its bytes."""
    if name == "model":
        label = value if isinstance(value, str) else "your own"
        return f"{label} ({calc.count_text(float(calc.num_parameters(value)))})"
    if name == "recipe":
        recipe = recipe_of(value)
        return f"{recipe.name} ({calc.units.number_text(recipe.bytes_per_parameter)} B)"
    if name == "sequence" and value == _OF_THE_MODEL:
        return "default"
    return value if isinstance(value, str) else f"{value:,}"


def _choice(name: str, start: Any) -> Any:
    label, stops = _CHOICES[name]
    start = _OF_THE_MODEL if start is None else start
    return choice(label, stops, start, partial(value_text, name), is_menu=name in MENUS)


class MemoryCalculator(WithWidget):
    """Knobs for a TrainingSetup and a device; bars, a table, and what to change.

    `setup` is the setup of the knobs, or None if it cannot exist; `says` is the verdict.
    """

    def __init__(self, start: TrainingSetup, device: str) -> None:
        """`start`, `device`: the knobs' first positions, which the static form shows."""
        self._start, self._start_device = start, device
        self.setup: TrainingSetup | None = start
        self.says = ""
        self._is_moving_several = False
        self._knobs, self._device = knobs_of(start), device_menu(device)
        self._verdict, self._bars, self._table = (widgets.HTML() for _ in range(3))
        self._change = widgets.Button(
            description="Make this change", layout={"width": "12em", "display": "none"}
        )
        self._change.on_click(lambda _: self.make_the_change())
        for knob in (*self._knobs.values(), self._device):
            knob.observe(self._refresh, names="value")
        self._widget = with_slider_names(self._laid_out())
        self._refresh()

    def make_the_change(self) -> None:
        """Move the knobs as the verdict suggests. This is the action of the button."""
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
        menus = [self._knobs[name] for name in MENUS]
        own = config_upload(menus[0], lambda config: calc.activation_bytes(config, 1))
        first = [menus[0], own, *menus[1:], self._device]
        first += [self._knobs[name] for name in FLAGS]
        second = [knob for knob in self._knobs.values() if knob not in first]
        knobs = [widgets.VBox(each, layout=column) for each in (first, second)]
        return widgets.VBox(
            [
                widgets.HBox(knobs, layout={"flex_flow": "row wrap"}),
                widgets.HBox([self._verdict, self._change], layout={"flex_flow": "row wrap"}),
                self._bars,
                self._table,
            ]
        )

    def _refresh(self, _: Any = None) -> None:
        if self._is_moving_several:
            return
        capacity = DEVICES[self._device.value]
        try:
            setup = setup_of(self._knobs)
            table, bars = rows_html(rows(setup)), bars_html(setup, capacity)
        except ValueError as error:
            self.setup, self.says = None, f"There is no such setup: {error}."
            table = bars = ""
            can_change = False
        else:
            self.setup, self.says = setup, advice(setup, capacity)
            can_change = bool(changes(setup, capacity))
        self._verdict.value = f"<b>{escape(self.says)}</b>"
        self._table.value, self._bars.value = table, bars
        self._change.layout.display = None if can_change else "none"

    def __repr__(self) -> str:
        return f"{_title(self._start)}\n{text(self._start, DEVICES[self._start_device])}"

    def _static_html(self) -> str:
        capacity = DEVICES[self._start_device]
        static = f"<b>{escape(_title(self._start))}</b>{bars_html(self._start, capacity)}"
        static += f"{rows_html(rows(self._start))}{escape(advice(self._start, capacity))}<br>"
        return box(static + run_it("turn the knobs."))


def memory_calculator(
    start: TrainingSetup | str = "llama2-7b", device: str = "80 GB"
) -> MemoryCalculator:
    """Show what a GPU holds in training, with knobs, as the last line of a cell.

    start: a TrainingSetup, or a model by name, then on one GPU. device: one of DEVICES, "24 GB" to
    "141 GB". ValueError for an unknown device, and as in `calc.footprint`.
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
