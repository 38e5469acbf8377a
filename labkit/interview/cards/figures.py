"""Every number of a card has evidence, is in the prompt, or is given."""

import re
from collections.abc import Callable, Iterable, Iterator

from labkit.interview.cards.card import Card
from labkit.interview.cards.shape import Fault
from labkit.interview.said import Number, numbers

# What a number counts: a word behind it that is no preposition and the like.
_COUNTS = re.compile(
    r" (?!(?:of|with|and|or|to|in|at|on|by|for|from|against|is|are|was|were|as|not|but)\b)[a-z]{3,}"
)
_SENTENCE_END = re.compile(r"[.:;?!] +(?=[A-Z])")


def faults(card: Card) -> Iterator[Fault]:
    """What `says` and `given` name that is not in the text, and numbers that nothing covers."""
    text = " ".join(card.text.split())  # a quote may go on in the next line
    quoted = [item.says for item in card.evidence if item.says]
    for name, texts in (("evidence says", quoted), ("given", card.given)):
        for each in texts:
            if not _spans(each, text):
                yield (f"{name} {each!r}, which is not in the text", "quote the text literally")
    for each in card.given:
        if not numbers(each):
            yield (f"given has {each!r}, which is no number", "list assumed numbers only")
    stated = (card.prompt, *quoted, *card.given)
    is_known = _said_again(text, stated)
    covered = [span for each in (*quoted, *card.given) for span in _spans(each, text)]
    for number in numbers(text):
        inside = any(start <= number.start and number.end <= end for start, end in covered)
        if number.needs_proof and not inside and not is_known(number):
            around = " ".join(text[max(0, number.start - 25) : number.end + 15].split())
            yield (
                f"nothing proves {number.text!r} in {around!r}",
                "add { says, proof } or { says, source }, or list it in given",
            )


def _said_again(text: str, stated: Iterable[str]) -> Callable[[Number], bool]:
    """Whether a number of the text repeats a stated one, and may leave out its unit.

    It may in the same sentence, "175 of 450 GB/s"; in another one unless it counts something else.
    """
    numbers_of = {each: numbers(each) for each in stated}
    known = {_key(number) for found in numbers_of.values() for number in found}
    bare = {number.value for found in numbers_of.values() for number in found}
    in_sentence = {
        (_sentence_of(text, start), number.value)
        for each, found in numbers_of.items()
        for start, _ in _spans(each, text)
        for number in found
    }

    def is_known(number: Number) -> bool:
        if _key(number) in known:
            return True
        if not number.text.replace(",", "").replace(".", "").isdigit():
            return False
        is_near = (_sentence_of(text, number.start), number.value) in in_sentence
        return is_near or (number.value in bare and not _COUNTS.match(text, number.end))

    return is_known


def _sentence_of(text: str, place: int) -> int:
    """Where the sentence begins that has this place."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text, 0, place)]
    return ends[-1] if ends else 0


def _key(number: Number) -> tuple[float, str]:
    """Proved once, a number may be said again: in base units, with its dimension."""
    return number.value * number.scale, number.dimension


def _spans(quote: str, text: str) -> list[tuple[int, int]]:
    """Where `quote` stands in `text`, not inside a longer number or word."""
    found = []
    start = text.find(quote)
    while start >= 0:
        end = start + len(quote)
        before, after = text[:start][-1:], text[end:]
        inside = (quote[0].isalnum() and (before.isalnum() or before == ".")) or (
            quote[-1].isalnum() and (after[:1].isalnum() or _goes_on(after))
        )
        if not inside:
            found.append((start, end))
        start = text.find(quote, start + 1)
    return found


def _goes_on(after: str) -> bool:
    """Whether a number's next digits follow: "4.9" is not in "4.93", nor "1" in "1,000"."""
    return len(after) > 1 and after[0] in ".," and after[1].isdigit()
