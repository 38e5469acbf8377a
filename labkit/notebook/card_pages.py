"""A question card in HTML: what it is about, its answer, and what is behind it. No widgets here."""

import os
from collections.abc import Iterable
from html import escape
from urllib.parse import quote

from labkit.grade.workspace import WorkspaceNotFound, find_workspace
from labkit.interview.cards import Card, load_topics
from labkit.interview.drills.drill import Kind
from labkit.interview.page import html_of
from labkit.notebook.proofs import proofs_html
from labkit.notebook.shown import FAINT, box


def about(card: Card) -> str:
    """Its name, its topic, and for whom it is."""
    return f"{card.id} · {load_topics()[card.topic].title} · for {card.level}"


def topics_of(asked: Iterable[Card | Kind]) -> str:
    """The titles of their groups of topics, or `all topics`. No numbers, since banks grow."""
    groups = {topic.id: topic.group for topic in load_topics().values()}
    found = dict.fromkeys(groups[each.topic] for each in asked)
    return "all topics" if len(found) > 1 else "".join(found)


def prompt_html(card: Card, standing: str) -> str:
    """The question, as it is asked."""
    return (
        f'<div class="faint">{escape(about(card))} · {escape(standing)}</div>'
        f'<div class="prompt">{escape(card.prompt)}</div>'
    )


def answer_html(card: Card) -> str:
    """What to say in a minute; the deeper part and the common mistake, folded away."""
    return (
        f"<h4>In a minute</h4>{html_of(card.minute)}"
        f"{_folded('Deeper', html_of(card.deeper))}"
        f"{_folded('The common mistake', html_of(card.mistake))}"
    )


def behind_html(card: Card) -> str:
    """Follow-ups; which expression proves which number, and the sources."""
    follow_ups = "".join(f"<li>{escape(each)}</li>" for each in card.follow_ups)
    return (
        f"{_folded(f'Follow-ups ({len(card.follow_ups)})', f'<ul>{follow_ups}</ul>')}"
        f"{_folded('Where the numbers come from', proofs_html(card.evidence, card.sources))}"
    )


def places_html(card: Card) -> str:
    """Where to see it: its notebook and its exercise, as links from where the kernel runs."""
    links = []
    if card.notebook:
        links.append(f"the notebook {link(f'notebooks/{card.notebook}.ipynb')}")
    if card.exercise:
        links.append(f"the exercise {link(f'exercises/{card.exercise}.py')}")
    return f"<p>To see it: {', '.join(links)}.</p>" if links else ""


def static_html(card: Card) -> str:
    """For a page without a kernel."""
    return box(
        f'<span style="color: {FAINT}">{escape(about(card))}</span>'
        f"<div><b>{escape(card.prompt)}</b></div>"
        f'<span style="color: {FAINT}">Run this cell to answer it.</span>'
    )


def static_text(card: Card) -> str:
    """For a terminal."""
    return f"{about(card)}\n{card.prompt}"


def _folded(title: str, html: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def link(path: str, text: str | None = None) -> str:
    """A file of the lab, "notebooks/...", as a link from where the kernel runs.

    text: its path, if left out.
    """
    shown = escape(text or path)
    try:
        target = find_workspace().root / path
    except WorkspaceNotFound:
        return shown
    if not target.is_file():
        return shown
    return f'<a href="{quote(os.path.relpath(target))}" target="_blank">{shown}</a>'
