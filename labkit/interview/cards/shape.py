"""What one card must have: lengths, counts, nothing left unwritten."""

import re
from collections.abc import Iterator

from labkit.interview.cards.card import Card
from labkit.interview.cards.topics import Topic

MINUTE_WORDS = (80, 200)
DEEPER_WORDS = 120
MISTAKE_WORDS = 25
RUBRIC_POINTS = (3, 6)
FOLLOW_UPS = (2, 6)
_STUBS = re.compile(
    r"\b(?:TODO|TBD|FIXME|XXX|lorem|placeholder|coming soon|to be written|fill in)\b"
    r"|^\W*\.\.\.\W*$",
    re.I | re.M,
)
_ID = re.compile(r"[a-z]{2}-\d+[b-z]?")

Fault = tuple[str, str]
"""A reason, and a fix."""


def faults(card: Card, topics: dict[str, Topic]) -> Iterator[Fault]:
    """Everything that is wrong with the form of one card."""
    yield from _identity(card, topics)
    yield from _texts(card)
    yield from _lists(card)


def num_words(text: str) -> int:
    """Words as a person counts them: what lies between spaces and has a letter or a digit."""
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def _identity(card: Card, topics: dict[str, Topic]) -> Iterator[Fault]:
    topic = topics.get(card.topic)
    if not _ID.fullmatch(card.id) or topic is None:
        yield (f"id = {card.id!r} is no topic", "take one of topics.toml, or that and a letter b-z")
    elif card.file.removesuffix(".md") != topic.file:
        yield (f"it stands in {card.file}", f"put it into {topic.file}.md with its group")
    elif topic.contradicts and sum(bool(item.says) for item in card.evidence) < 2:
        yield (
            "conventions differ on this topic, and fewer than two numbers have evidence",
            "name the conventions, with the number that each gives",
        )
    if card.difficulty not in (1, 2, 3):
        yield (f"difficulty = {card.difficulty}", "write 1 (everyone), 2 (senior) or 3 (expert)")


def _texts(card: Card) -> Iterator[Fault]:
    low, high = MINUTE_WORDS
    words = num_words(card.minute)
    if not low <= words <= high:
        yield (f"'In a minute' has {words} words", f"write {low} to {high}, as it is said aloud")
    for heading, text, least in (
        ("Deeper", card.deeper, DEEPER_WORDS),
        ("The common mistake", card.mistake, MISTAKE_WORDS),
    ):
        if num_words(text) < least:
            yield (f"{heading!r} has {num_words(text)} words", f"write {least} or more")
    if num_words(card.prompt) < 5:
        yield (f"prompt = {card.prompt!r} is no question", "ask as an interviewer asks")
    everything = "\n".join((card.prompt, card.text, *card.rubric, *card.follow_ups, *card.sources))
    if stub := _STUBS.search(everything):
        yield (f"it says {stub[0].strip()!r}", "write what belongs there")


def _lists(card: Card) -> Iterator[Fault]:
    low, high = RUBRIC_POINTS
    if not low <= len(card.rubric) <= high:
        yield (f"the rubric has {len(card.rubric)} points", f"write {low} to {high}")
    low, high = FOLLOW_UPS
    if not low <= len(card.follow_ups) <= high:
        yield (f"there are {len(card.follow_ups)} follow-ups", f"write {low} to {high}")
    if not card.sources:
        yield ("there is no source", "name the paper, manual or file that the answer rests on")
    if not card.evidence:
        yield ("there is no evidence", "prove a number, or say what is pending")
    for name, texts in (("rubric", card.rubric), ("follow_ups", card.follow_ups)):
        for text in texts:
            if num_words(text) < 3:
                yield (f"{name} has {text!r}", "write it out")
        if len(set(texts)) < len(texts):
            yield (f"{name} says something twice", "say it once")
    for text in card.sources:
        if num_words(text) < 3:
            yield (f"the source {text!r} cannot be found", "give author, title and place")
