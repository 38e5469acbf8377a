"""A plan as a table: each layout with its step and its memory as bars, and why others lost.

    layout              step                      MFU    memory
    dp 32 x tp 4 x ...  [compute     |tp|bubble]  58.5%  [moments|activations   ]    |  80 GiB

Step bars share a scale, the slowest of the table; memory bars share another, the GPU's room. What a
segment is, its tooltip says, and the legend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from labkit.calc import Result, bytes_text
from labkit.calc.plan import Estimate, Plan
from labkit.notebook.shown import FAINT, scrolled

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
_OTHER_COLOUR = "#b0b0b0"
_CELL = "padding: 2px 9px 2px 0; font-size: 12px; text-align: left; white-space: nowrap;"
_SHORT = "max-width: 44em; white-space: normal;"


def plan_html(plan: Plan) -> str:
    """The ranked layouts, or what would help where nothing fits; then the losers by reason."""
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
    legends = _legend("step", STEP_COLOURS, [each.step for each in plan.ranked])
    legends += _legend("memory", MEMORY_COLOURS, [each.memory for each in plan.ranked])
    table = f'<table style="border-collapse: collapse; margin: 6px 0;">{body}</table>'
    return scrolled(table, "layouts, ranked") + legends


def bar(whole: Result, colours: Mapping[str, str], scale: float) -> str:
    """A result's parts side by side, as long as they are; `scale` is the full length."""
    segments = "".join(
        f'<span title="{escape(name)}: {escape(str(part))}" style="display: inline-block; height: '
        f"0.9em; width: {100 * float(part) / scale:.2f}%; "
        f'background: {colours.get(name, _OTHER_COLOUR)};"></span>'
        for name, part in whole.parts.items()
    )
    return (
        '<div style="width: 10em; line-height: 0; background: rgba(128, 128, '
        f'128, 0.15);">{segments}</div>'
    )


def _legend(name: str, colours: Mapping[str, str], shown: Sequence[Result]) -> str:
    """Of the parts that are there: others would only be looked for."""
    present = [part for part in colours if any(float(each.parts.get(part, 0)) for each in shown)]
    others = any(part not in colours for each in shown for part in each.parts)
    swatches = [(part, colours[part]) for part in present]
    swatches += [("other", _OTHER_COLOUR)] if others else []
    body = "".join(
        f'<span style="margin-right: 1em;"><span style="display: inline-block; width: 0.8em; '
        f'height: 0.8em; background: {colour};"></span> {escape(part)}</span>'
        for part, colour in swatches
    )
    return f'<div style="color: {FAINT};">{escape(name)}: {body}</div>'


def _losers(plan: Plan) -> str:
    lines = "".join(
        f'<li style="{_SHORT}">{escape(" ".join(str(each).split()))}</li>' for each in plan.losers
    )
    return f'<div style="margin-top: 6px;"><b>why others lost</b><ul>{lines}</ul></div>'


def breakdown(estimate: Estimate) -> list[tuple[str, str]]:
    """(part, seconds and share) of a step, longest first."""
    step = float(estimate.step)
    parts = sorted(estimate.step.parts.items(), key=lambda item: -float(item[1]))
    return [(name, f"{part}, {float(part) / step:.1%}") for name, part in parts if float(part)]
