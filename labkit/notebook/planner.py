"""The planner with knobs: a model, a cluster, a batch; all layouts ranked, and why others lost.

layout_planner()                                           # llama3-70b on 256 H100
layout_planner("gpt3-175b", cluster="a100", gpus=512, batch=1536, recipe="zero_paper")

Each layout is a row of a table, with its step and its memory as bars:

    layout              step                      MFU    memory
    dp 32 x tp 4 x ...  [compute     |tp|bubble]  58.5%  [moments|activations   ]    |  80 GiB

Step bars share a scale, the slowest of the table; memory bars share another, the GPU's room. A
segment's tooltip and the legend name it.

A plan takes seconds, and a slider passes many values on its way. So a button plans, and until it is
pressed the last plan stays. The button also times the reader's own layout, and ranks it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import arguments, calc
from labkit.calc import MODELS, RECIPES, Layout, ModelConfig, bytes_text
from labkit.calc.plan import Estimate, Job, Plan
from labkit.notebook.bars import bar, legend
from labkit.notebook.controls import (
    button,
    choice,
    from_knobs,
    note,
    on_enter,
    say,
    with_slider_names,
)
from labkit.notebook.memory import value_text
from labkit.notebook.own_model import config_upload
from labkit.notebook.shown import WithWidget, box, scrolled

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


def own_html(plan: Plan, text: str) -> str:
    """Say a layout's step, memory and place in a plan that ranks all shapes.

    text: such as "dp=4 tp=8 pp=8", for `Layout.parse`.
    """
    try:
        layout = Layout.parse(text)
    except ValueError as error:
        return f"<div>your own layout: {escape(str(error))}</div>"
    judged = calc.plan.verdict(plan.job, layout)
    if judged.refused is not None:
        return f"<div><b>{escape(str(layout))}</b></div><div>{escape(judged.reason)}</div>"
    own = calc.plan.estimate(plan.job, layout)
    said = [f"<b>{escape(str(own))}</b>"]
    said.append(escape("; ".join(f"{name} {share}" for name, share in breakdown(own))))
    if judged:
        faster = sum(float(each.step) < float(own.step) for each in plan.ranked)
        said.append(
            f"It fits, at place {faster + 1}: {faster} of {len(plan.ranked)} ranked layouts are "
            "faster. The ranking has the fastest of each tp, pp, cp and ep."
        )
    else:
        change = calc.plan.smallest_change(plan.job, layout)
        said.append(escape(f"It does not fit: {judged.reason}"))
        said.append(escape(f"To change first: {change or 'more GPUs, or larger ones'}"))
    said += map(escape, judged.warnings)
    return "".join(f'<div style="{_SHORT}">{each}</div>' for each in said)


def breakdown(estimate: Estimate) -> list[tuple[str, str]]:
    """Return (part, seconds and share) of a step, longest first."""
    step = float(estimate.step)
    parts = sorted(estimate.step.parts.items(), key=lambda item: -float(item[1]))
    return [(name, f"{part}, {float(part) / step:.1%}") for name, part in parts if float(part)]


_WIDTH = "29em"
_MOST_GPUS = 100_000
_EVERY = 10**6  # shapes; no cluster has as many


@dataclass(frozen=True)
class PlannerSetup:
    """The positions of the knobs. ValueError, TypeError for an impossible training."""

    model: str | ModelConfig = "llama3-70b"
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
        arguments.counted("sequence", self.sequence, "tokens, or 0: the model's context", least=0)
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


class LayoutPlanner(WithWidget):
    """Knobs for a training; its layouts, ranked, with bars for step and memory. `plan`: shown."""

    plan: Plan | None

    def __init__(self, start: PlannerSetup) -> None:
        """`start`: the knobs' first positions, which the static form shows."""
        self._start = start
        self._knobs = {name: _knob(name, getattr(start, name)) for name in _STOPS}
        self._layout = widgets.Text(
            description="your own layout",
            placeholder="dp=4 tp=8 pp=8",
            style={"description_width": "11em"},
            layout={"width": _WIDTH},
        )
        self._button = button("Plan", on_enter(self._layout, lambda _: self.plan_again()))
        self._note, self._said = note(), widgets.HTML()
        for knob in (*self._knobs.values(), self._layout):
            knob.observe(self._on_move, names="value")
        knobs = list(self._knobs.values())
        own = config_upload(knobs[0], lambda config: replace(start, model=config, sequence=0))
        columns = [
            widgets.VBox(each)
            for each in ([knobs[0], own, *knobs[1:4]], [*knobs[4:], self._layout, self._button])
        ]
        row = widgets.HBox(columns, layout={"flex_flow": "row wrap", "margin": "4px 0"})
        self._widget = with_slider_names(widgets.VBox([row, self._note, self._said]))
        self.plan_again()

    def plan_again(self) -> None:
        """Plan for the present knobs, and time the own layout. This is the action of the button."""
        self._planned_for = self._stands()
        say(self._note, "Planning ...")
        stands = dict(self._planned_for)
        text = stands.pop("layout").strip()
        try:
            every = _planned(PlannerSetup(**stands, top=self._start.top))
        except ValueError as error:  # GPUs that fill no nodes, more tokens than positions
            self.plan = None
            self._said.value = box(f"<div>{escape(str(error))}</div>")
        else:
            self.plan = _top(every, self._start.top)
            own = box(own_html(every, text)) if text else ""
            self._said.value = own + plan_html(self.plan)
        self._on_move()

    def _stands(self) -> dict[str, Any]:
        stands = {name: knob.value for name, knob in self._knobs.items()}
        return stands | {"layout": self._layout.value}

    def _on_move(self, _: Any = None) -> None:
        is_shown = self._stands() == self._planned_for
        say(self._note, "" if is_shown else "The knobs have moved: press Plan.")

    def __repr__(self) -> str:
        return str(_top(_planned(self._start), self._start.top))

    def _static_html(self) -> str:
        return plan_html(_top(_planned(self._start), self._start.top))


def layout_planner(model: str | ModelConfig = "llama3-70b", **start: Any) -> LayoutPlanner:
    """Show all layouts of a training on a cluster, with knobs, as the last line of a cell.

    model: a ModelConfig, or its name in calc.MODELS. start: where the other knobs stand at first:
    cluster, gpus, batch (sequences in a step), sequence (tokens of each), recipe, tokens (of the
    training); and top, the rows of the table. TypeError for other names; ValueError for what no
    training has.
    """
    return LayoutPlanner(from_knobs(PlannerSetup, model, start))


@functools.lru_cache(maxsize=32)
def _planned(setup: PlannerSetup) -> Plan:
    """Plan once: a cell asks three times for what it shows, as widget, HTML and text.

    Every shape is ranked, so that a layout can be placed among them.
    """
    return calc.plan.plan(setup.job(), _EVERY)


def _top(plan: Plan, top: int) -> Plan:
    return replace(plan, ranked=plan.ranked[:top])


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
    text = functools.partial(_text, name)
    return choice(label, stops, start, text, is_menu=isinstance(stops[0], str), width=_WIDTH)


def _text(name: str, value: Any) -> str:
    if name == "sequence" and not value:
        return "the model's"
    if name == "model" and not isinstance(value, str):
        return value_text(name, value)
    if isinstance(value, str):
        return value
    return calc.count_text(value) if isinstance(value, float) else f"{value:,}"
