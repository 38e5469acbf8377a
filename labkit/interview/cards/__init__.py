"""The question cards: labkit/course/*/cards.md.

cards.load_bank()["co-8"].minute      the spoken answer of a minute

card.py reads them, sitting.py asks them, spoken.py counts their words and numbers. `labkit bank`
proves their numbers with evidence.py.
"""

from labkit.interview.cards.card import (
    CHAIN,
    KINDS,
    LEVELS,
    ROLES,
    SECTIONS,
    Card,
    CardError,
    Evidence,
    FollowUp,
    Problem,
    Topic,
    load_bank,
    load_topics,
    read_bank,
    read_file,
)

__all__ = [
    "CHAIN",
    "KINDS",
    "LEVELS",
    "ROLES",
    "Card",
    "CardError",
    "Evidence",
    "FollowUp",
    "Problem",
    "SECTIONS",
    "Topic",
    "load_bank",
    "load_topics",
    "read_bank",
    "read_file",
]
