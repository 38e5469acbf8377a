"""Which topics the bank covers, and by what kind of evidence."""

from collections.abc import Iterable
from dataclasses import dataclass

from labkit.interview import proof
from labkit.interview.cards.card import Card, Evidence
from labkit.interview.cards.topics import Topic, load_topics


@dataclass(frozen=True, slots=True)
class Covered:
    """One topic: its cards, and how many pieces of evidence of each kind they have."""

    topic: Topic
    cards: tuple[Card, ...]
    by_formula: int
    by_run: int
    published: int
    pending: int

    @property
    def is_missing(self) -> bool:
        """Whether it has no card."""
        return not self.cards


def kind(item: Evidence) -> str:
    """formula, run, published or pending. A proof that launches ranks is a run."""
    if item.pending:
        return "pending"
    if item.source:
        return "published"
    return "run" if proof.uses(item.proof, "runs") else "formula"


def coverage(cards: Iterable[Card]) -> list[Covered]:
    """Every topic, in the order of topics.toml."""
    by_topic: dict[str, list[Card]] = {}
    for card in cards:
        by_topic.setdefault(card.topic, []).append(card)
    found = []
    for topic in load_topics().values():
        own = tuple(by_topic.get(topic.id, ()))
        kinds = [kind(item) for card in own for item in card.evidence]
        counts = [kinds.count(each) for each in ("formula", "run", "published", "pending")]
        found.append(Covered(topic, own, *counts))
    return found
