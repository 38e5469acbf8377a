"""The report of a design round, as Markdown and as one HTML page with pictures of the layout."""

from __future__ import annotations

import base64
import importlib.util
import re
from html import escape

from labkit import calc, viz
from labkit.interview.design.round import NUMBERS, DesignRound
from labkit.interview.mock.report import page_of


def markdown_of(round_: DesignRound) -> str:
    """Return the report: scores, what was answered, what was left out, a model answer of each."""
    briefing, scores = round_.briefing, round_.scores
    lines = [
        f"# Design round: {briefing.name}",
        "",
        briefing.story,
        "",
        f"**{round_.score:.0%}**. `{briefing.command}` asks it again.",
        "",
    ]
    lines += ["| part | score |", "|---|---|"]
    lines += [f"| {name} | {score:.0%} |" for name, score in scores.items()]
    lines += ["", "## Clarifying questions", ""]
    for place, each in enumerate(briefing.questions):
        if place in round_.asked or each.matters:
            mark = "asked" if place in round_.asked else "not asked"
            lines.append(f"- {each.question} ({mark}) {each.answer}")
    lines += ["", "## Layout", ""]
    lines += [f"- `{text}`: {ruling.text}" for text, ruling in round_.proposals] or ["- none"]
    if round_.chosen is not None:
        lines.append(f"- Yours: {round_.chosen.layout}: {round_.speed}")
    lines.append(f"- The planner's fastest: {briefing.model.layout}: {round_.said(briefing.model)}")
    lines += ["", "## Numbers", ""]
    for name, (asks, _) in NUMBERS.items():
        answer, ruling = round_.numbers.get(name, ("not given", None))
        lines.append(f"- {asks}: {_plain(answer)}. {ruling.text if ruling else ''}")
    for part in briefing.parts:
        text, said = round_.written.get(part.name, ("", frozenset[int]()))
        lines += ["", f"## {part.name.capitalize()}", "", part.asks, ""]
        lines += [f"> {_plain(line)}  " for line in text.splitlines()]
        lines += [""] + [
            f"- {'said' if place in said else '**left out**'}: {point}"
            for place, point in enumerate(part.points, 1)
        ]
        lines += ["", f"A model answer: {' '.join(part.answer.split())}"]
    lines += ["", "## What changed", ""]
    for place, change in enumerate(briefing.changes):
        answer, met = round_.met.get(place, ("not answered", None))
        lines.append(f"- {change.says} {_plain(answer)}. {met.text if met else change.why}")
    return "\n".join([*lines, ""])


def _plain(text: str) -> str:
    """Return what a learner typed with its Markdown escaped: `6*8e9*1e12` has no emphasis."""
    return re.sub(r"([\\`*_\[\]<>#&|~])", r"\\\1", text)


def html_of(round_: DesignRound) -> str:
    """Return the report as a page, with the layout's memory and its step in time.

    Without matplotlib there are no pictures.
    """
    pictures, can_draw = "", importlib.util.find_spec("matplotlib") is not None
    if can_draw and (chosen := round_.chosen) is not None:
        step = calc.simulate.step(calc.plan.pieces(chosen.job, chosen.layout), chosen.layout)
        drawn = {
            f"Memory of the fullest GPU under {chosen.layout}": viz.memory_bar(
                {"": chosen.memory}, chosen.job.room_bytes
            ),
            f"A step under {chosen.layout}, simulated": viz.simulated_step(step),
        }
        for alt, picture in drawn.items():
            png = base64.b64encode(picture.png()).decode()
            pictures += (
                f'<p><img alt="{escape(alt)}" style="max-width:100%;background:#fff" '
                f'src="data:image/png;base64,{png}"></p>'
            )
    return page_of(f"Design round: {round_.briefing.name}", markdown_of(round_), pictures)
