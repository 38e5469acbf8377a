"""The question cards: labkit/interview/bank/*.md, read, validated and counted.

cards.load_bank()["co-8"].minute      what to say in a minute
cards.validate()                      [] or every problem, with its file and line
cards.coverage(load_bank().values())  each topic with its cards and its kinds of evidence

`labkit bank` is the same from a terminal; evidence.py proves the numbers.
"""

from labkit.interview.cards.card import SECTIONS, Card, CardError, Evidence, Problem
from labkit.interview.cards.coverage import Covered, coverage, kind
from labkit.interview.cards.read_cards import load_bank, read_bank, read_file
from labkit.interview.cards.topics import Topic, bank_folder, load_topics
from labkit.interview.cards.validate_cards import validate

__all__ = [
    "Card",
    "CardError",
    "Covered",
    "Evidence",
    "Problem",
    "SECTIONS",
    "Topic",
    "bank_folder",
    "coverage",
    "kind",
    "load_bank",
    "load_topics",
    "read_bank",
    "read_file",
    "validate",
]
