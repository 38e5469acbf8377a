"""Whether the bank is what it should be: every problem, with its place, reason and fix."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from labkit.grade.workspace import Workspace, WorkspaceNotFound, find_workspace, load_catalog
from labkit.interview import proof
from labkit.interview.cards import card_likeness, figures, shape
from labkit.interview.cards.card import SECTIONS, Card, Problem
from labkit.interview.cards.read_cards import read_bank
from labkit.interview.cards.topics import load_topics


def validate(folder: Any = None, workspace: Workspace | None = None) -> list[Problem]:
    """What is wrong with the bank in `folder` (the package's own), the numbers apart.

    workspace: where notebooks and exercises are looked up; the one around the current folder, if
    left out. Where there is none, as beside an installed package, links are not followed.
    """
    cards, problems = read_bank(folder)
    workspace = workspace or _workspace()
    problems += _wrong_ids(cards)
    for card in cards:
        problems += [_problem(card, *fault) for fault in _faults(card, workspace)]
    problems += _alike(cards, workspace)
    return sorted(problems, key=lambda each: (each.file, each.line))


def _workspace() -> Workspace | None:
    try:
        return find_workspace()
    except WorkspaceNotFound:
        return None


def _faults(card: Card, workspace: Workspace | None) -> Iterator[shape.Fault]:
    yield from shape.faults(card, load_topics())
    yield from figures.faults(card)
    for item in card.evidence:
        if item.proof:
            try:
                proof.check(item.proof)
            except proof.BadProof as error:
                yield (f"the proof of {item.says!r}: {error}", "prove it, or mark it pending")
    if workspace is not None:
        yield from _links(card, workspace)


def _links(card: Card, workspace: Workspace) -> Iterator[shape.Fault]:
    notebook = workspace.root / "notebooks" / f"{card.notebook}.ipynb"
    if card.notebook and not notebook.is_file():
        yield (f"there is no notebook {card.notebook!r}", "leave it out until there is")
    if card.exercise and card.exercise not in load_catalog(workspace):
        yield (f"there is no exercise {card.exercise!r}", "take one of `labkit list`")


def _wrong_ids(cards: list[Card]) -> Iterator[Problem]:
    times = Counter(card.id for card in cards)
    for card in cards:
        if times[card.id] > 1:
            yield _problem(card, "another card has this id", "a second one on a topic is 'co-8b'")
        if card.id != card.topic and card.topic not in times:
            yield _problem(card, f"there is no {card.topic}", "the first card has no letter")


def _alike(cards: list[Card], workspace: Workspace | None) -> Iterator[Problem]:
    """Sections that nearly repeat another card's, or what the catalog says about an exercise."""
    by_id = {card.id: card for card in cards}
    texts = [
        (f"{card.id}: {heading}", text)
        for card in cards
        for heading, text in zip(SECTIONS, (card.minute, card.deeper, card.mistake), strict=True)
    ]
    exercises = load_catalog(workspace).items() if workspace is not None else ()
    others = [(f"the exercise {name}", exercise.say) for name, exercise in exercises]
    for name, other, share in card_likeness.alike(texts, others):
        card_id, _, heading = name.partition(": ")
        allowed = f"allowed: under {card_likeness.ALIKE:.0%}"
        reason = f"{heading!r} is {share:.0%} like {other} ({allowed})"
        yield _problem(by_id[card_id], reason, "say it in other words, or leave one of them out")


def _problem(card: Card, reason: str, fix: str) -> Problem:
    return Problem(card.file, card.line, card.id, reason, fix)
