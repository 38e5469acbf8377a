"""The knobs of the memory calculator: menus, sliders and boxes, which a keyboard can move too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from labkit import calc
from labkit.calc import TrainingSetup
from labkit.calc.memory.recipe import recipe_of
from labkit.notebook.memory_answer import DEVICES

MENUS = ("model", "recipe", "recompute")
FLAGS = {"flash": "flash attention", "sequence_parallel": "sequence parallelism"}

_DENSE = tuple(
    name for name, config in calc.MODELS.items() if not config.num_experts and not config.is_latent
)
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# A slider cannot stand at None.
_OF_THE_MODEL = 0
# What each stands at, and what is written in front of it.
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
    """A widget for each of the setup's fields, standing where it starts."""
    knobs = {name: _choice(name, getattr(start, name)) for name in _CHOICES}
    for name, label in FLAGS.items():
        knobs[name] = widgets.Checkbox(getattr(start, name), description=label, **_LOOK)
    return knobs


def device_menu(device: str) -> Any:
    """Of DEVICES, by name."""
    return widgets.Dropdown(options=list(DEVICES), value=device, description="device", **_LOOK)


def setup_of(knobs: Mapping[str, Any]) -> TrainingSetup:
    """What the knobs say. ValueError where there is no such setup."""
    values = {name: knob.value for name, knob in knobs.items()}
    return TrainingSetup(**values | {"sequence": values["sequence"] or None})


def value_text(name: str, value: Any) -> str:
    """A value as its knob shows it: a model with its size, a recipe with its bytes."""
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
    if start not in stops:  # one of the caller's own gets a stop too
        stops = (*stops, start) if name in MENUS else tuple(sorted((*stops, start)))
    kind = widgets.Dropdown if name in MENUS else widgets.SelectionSlider
    options = [(value_text(name, value), value) for value in stops]
    return kind(options=options, value=start, description=label, **_LOOK)
