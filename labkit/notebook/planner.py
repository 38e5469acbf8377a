"""The planner with knobs: a model, a cluster, a batch; all layouts ranked, and why others lost.

layout_planner()                                           # llama3-70b on 256 H100
layout_planner("gpt3-175b", cluster="a100", gpus=512, batch=1536, recipe="zero_paper")

Each layout is a row of a table, with its step and its memory as bars:

    layout              step                      MFU    memory
    dp 32 x tp 4 x ...  [compute     |tp|bubble]  58.5%  [moments|activations   ]    |  80 GiB

Step bars share a scale, the slowest of the table; memory bars share another, the GPU's room. A
segment's tooltip and the legend name it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import arguments, calc
from labkit.calc import MODELS, RECIPES, bytes_text
from labkit.calc.plan import Estimate, Job, Plan
from labkit.notebook.bars import bar, legend
from labkit.notebook.controls import with_slider_names
from labkit.notebook.shown import box, scrolled

# Computing pale, what waits for links saturated: as in pictures of runs.
STEP_COLOURS = {
    "compute": "#c9d8e8",
    "optimizer": "#83a8cd",
    "tp": "#d55e00",
    "cp": "#cc79a7",
    "ep": "#f0e442",
    "pp": "#e69f00",
    "dp": "#009e73",
    "bubble": "#444444",
}
# None of them a step's: the two bars are in one row.
MEMORY_COLOURS = {
    "parameters": "#0072b2",
    "gradients": "#56b4e9",
    "master": "#5e4fa2",
    "moments": "#b3a9d9",
    "activations": "#8c510a",
}
_CELL = "padding: 2px 9px 2px 0; font-size: 12px; text-align: left; white-space: nowrap;"
_SHORT = "max-width: 44em; white-space: normal;"


def plan_html(plan: Plan) -> str:
    """Return the ranked layouts, or what would help if none fits; then the losers by reason."""
    said = [f"<div><b>{escape(plan.job.title)}</b></div><div>{escape(plan.summary)}</div>"]
    if plan.ranked:
        said.append(_table(plan))
    else:
        said.append(f'<pre style="white-space: pre-wrap;">nothing fits\n{escape(plan.help)}</pre>')
    return "".join([*said, _losers(plan)])


def _table(plan: Plan) -> str:
    slowest = max(float(each.step) for each in plan.ranked)
    headings = ["", "layout", "step", "", "MFU", f"memory of {bytes_text(plan.job.room_bytes)}", ""]
    has_end = plan.job.tokens is not None
    headings += ["time", "cost"] if has_end else []
    lines = ["".join(f'<th style="{_CELL}">{escape(each)}</th>' for each in headings)]
    for row, each in zip(plan.rows(), plan.ranked, strict=True):
        cells = [escape(row[""]), escape(row["layout"])]
        cells += [escape(row["step"]), bar(each.step, STEP_COLOURS, slowest)]
        cells += [escape(row["MFU"]), bar(each.memory, MEMORY_COLOURS, plan.job.room_bytes)]
        cells.append(escape(row["memory"]))
        cells += [escape(row["time"]), escape(row["cost"])] if has_end else []
        lines.append("".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    legends = legend("step", STEP_COLOURS, [each.step for each in plan.ranked])
    legends += legend("memory", MEMORY_COLOURS, [each.memory for each in plan.ranked])
    table = f'<table style="border-collapse: collapse; margin: 6px 0;">{body}</table>'
    return scrolled(table, "layouts, ranked") + legends


def _losers(plan: Plan) -> str:
    lines = "".join(
        f'<li style="{_SHORT}">{escape(" ".join(str(each).split()))}</li>' for each in plan.losers
    )
    return f'<div style="margin-top: 6px;"><b>why others lost</b><ul>{lines}</ul></div>'


def breakdown(estimate: Estimate) -> list[tuple[str, str]]:
    """Return (part, seconds and share) of a step, longest first."""
    step = float(estimate.step)
    parts = sorted(estimate.step.parts.items(), key=lambda item: -float(item[1]))
    return [(name, f"{part}, {float(part) / step:.1%}") for name, part in parts if float(part)]


_LOOK: dict[str, Any] = {"style": {"description_width": "11em"}, "layout": {"width": "29em"}}
_MOST_GPUS = 100_000


@dataclass(frozen=True)
class PlannerSetup:
    """The positions of the knobs. ValueError, TypeError for an impossible training."""

    model: str = "llama3-70b"
    cluster: str = "h100"
    gpus: int = 256
    batch: int = 512
    """Sequences in a step, over all GPUs."""
    sequence: int = 0
    """Tokens of each; 0: the model's context."""
    recipe: str = "megatron_bf16"
    tokens: float = 1e12
    """Tokens of the whole training."""
    top: int = 8

    def __post_init__(self) -> None:
        allowed = f"1 to {_MOST_GPUS:,}"
        arguments.whole("gpus", self.gpus, allowed, most=_MOST_GPUS)
        arguments.whole("top", self.top, "rows of the table, 1 to 40", most=40)
        arguments.number("sequence", self.sequence, "tokens, or 0: the model's context", least=0)
        arguments.number("tokens", self.tokens, "tokens of the whole training", above=0)
        self.job()  # unknown names, impossible batches

    def job(self) -> Job:
        """Return the job that the knobs describe."""
        return Job(
            self.model,
            self.recipe,
            calc.cluster(self.cluster, self.gpus),
            self.batch,
            self.sequence or None,
            self.tokens,
        )


class LayoutPlanner:
    """Knobs for a training; its layouts, ranked, with bars for step and memory. `plan`: shown."""

    plan: Plan | None

    def __init__(self, start: PlannerSetup) -> None:
        """`start`: the knobs' first positions, which the static form shows."""
        self._start = start
        self._knobs = {name: _knob(name, getattr(start, name)) for name in _STOPS}
        self._said = widgets.HTML()
        for knob in self._knobs.values():
            knob.observe(self._refresh, names="value")
        knobs = list(self._knobs.values())
        columns = [widgets.VBox(each) for each in (knobs[:4], knobs[4:])]
        row = widgets.HBox(columns, layout={"flex_flow": "row wrap", "margin": "4px 0"})
        self._widget = with_slider_names(widgets.VBox([row, self._said]))
        self._refresh()

    def _refresh(self, _: Any = None) -> None:
        stands = {name: knob.value for name, knob in self._knobs.items()}
        try:
            self.plan = _planned(PlannerSetup(**stands, top=self._start.top))
        except ValueError as error:  # GPUs that fill no nodes, more tokens than positions
            self.plan = None
            self._said.value = box(f"<div>{escape(str(error))}</div>")
            return
        self._said.value = plan_html(self.plan)

    def __repr__(self) -> str:
        return str(_planned(self._start))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        static = plan_html(_planned(self._start))
        return {**bundle, "text/plain": repr(self), "text/html": static}


def layout_planner(model: str = "llama3-70b", **start: Any) -> LayoutPlanner:
    """Show all layouts of a training on a cluster, with knobs, as the last line of a cell.

    model: by its name in calc.MODELS. start: where the other knobs stand at first: cluster, gpus,
    batch (sequences in a step), sequence (tokens of each), recipe, tokens (of the training); and
    top, the rows of the table. TypeError for other names; ValueError for what no training has.
    """
    known = [field.name for field in fields(PlannerSetup)]
    unknown = ", ".join(name for name in start if name not in known)
    if unknown:
        raise TypeError(f"no knob is called {unknown}; there are: {', '.join(known)}")
    return LayoutPlanner(PlannerSetup(model, **start))


@functools.lru_cache(maxsize=32)
def _planned(setup: PlannerSetup) -> Plan:
    """Plan once: a cell asks three times for what it shows, as widget, HTML and text."""
    return calc.plan.plan(setup.job(), setup.top)


# The positions of each knob, and its label.
_STOPS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "model": ("model", tuple(MODELS)),
    "cluster": ("cluster", tuple(calc.CLUSTERS)),
    "gpus": ("GPUs", (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 8192, 16384, 98304)),
    "batch": ("sequences in a step", tuple(2**power for power in range(3, 15))),
    "sequence": ("tokens of each", (0, 1024, 2048, 4096, 8192, 32768, 131072)),
    "recipe": ("recipe", tuple(RECIPES)),
    "tokens": ("tokens in all", (3e11, 1e12, 2e12, 5e12, 1e13, 1.56e13)),
}


def _knob(name: str, start: Any) -> Any:
    label, stops = _STOPS[name]
    if start not in stops:  # one of the caller's own gets a stop too
        stops = tuple(sorted((*stops, start)))
    options = [(_text(name, stop), stop) for stop in stops]
    kind = widgets.Dropdown if isinstance(start, str) else widgets.SelectionSlider
    return kind(options=options, value=start, description=label, **_LOOK)


def _text(name: str, value: Any) -> str:
    if name == "sequence" and not value:
        return "the model's"
    if isinstance(value, str):
        return value
    return calc.count_text(value) if isinstance(value, float) else f"{value:,}"
