"""An answer as it is said aloud: its words, and the numbers that a listener has to keep.

num_words("2 x 7/8 of the bytes")     6
numbers_of(card)                      ["16", "1.75"]
"""

import re

from labkit.interview.cards.card import Card

_NUMBER_WORDS = (
    "three|four|five|six|seven|eight|nine|ten|eleven|twelve|sixteen|twenty|thirty|forty|fifty|sixty"
    "|hundred|thousand"
)
_SPOKEN = re.compile(
    r"(?<![\w(/.^-])\d[\d,]*(?:\.\d+)?(?: (?:thousand|million|billion))?(?![\w(]|\.\d)"
    rf"|\b(?:{_NUMBER_WORDS})\b",
    re.I,
)
# Stages, levels and models have numbers in their names; a formula is said as a formula.
_NAMES_AND_FORMULAS = re.compile(
    r"\b(?:ZeRO|Llama|NVLink|[Ll]evels?|[Ss]tages?|[Rr]anks?|GPT|float|fp|int)[ -]?\d[\dvBx.]*"
    r"(?:(?:,| and| or| to) \d+)*|\b\d+ ?[A-Za-z]? ?\([^)]*\)\S*|\b\d+ N\b"
)


def num_words(text: str) -> int:
    """Return the number of words; a number or a formula without blanks is one."""
    return len(re.findall(r"\S*\w\S*", text))


def numbers_of(card: Card) -> list[str]:
    """Return the numbers of the minute: digits and words, without the question's and formulas'."""
    text = _NAMES_AND_FORMULAS.sub(" ", card.minute)
    found = {match.lower().rstrip(".,") for match in _SPOKEN.findall(text)}
    asked = f"{card.prompt} {' '.join(card.given)}".lower()
    return sorted(each for each in found if not re.search(rf"(?<![\w.]){re.escape(each)}", asked))
