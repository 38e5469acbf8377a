"""Every number of a card has evidence, is in the prompt, or is given."""

from collections.abc import Iterator

from labkit.interview.cards.card import Card
from labkit.interview.cards.shape import Fault
from labkit.interview.said import Number, numbers


def faults(card: Card) -> Iterator[Fault]:
    """What `says` and `given` name that is not in the text, and numbers that nothing covers."""
    text = card.text
    quoted = [item.says for item in card.evidence if item.says]
    for name, texts in (("evidence says", quoted), ("given", card.given)):
        for each in texts:
            if not _spans(each, text):
                yield (f"{name} {each!r}, which is not in the text", "quote the text literally")
    for each in card.given:
        if not numbers(each):
            yield (f"given has {each!r}, which is no number", "list assumed numbers only")
    stated = (card.prompt, *quoted, *card.given)
    known = {key for each in stated for number in numbers(each) for key in _keys(number)}
    covered = [span for each in (*quoted, *card.given) for span in _spans(each, text)]
    for number in numbers(text):
        inside = any(start <= number.start and number.end <= end for start, end in covered)
        if number.needs_proof and not inside and _key(number) not in known:
            around = " ".join(text[max(0, number.start - 25) : number.end + 15].split())
            yield (
                f"nothing proves {number.text!r} in {around!r}",
                "add { says, proof } or { says, source }, or list it in given",
            )


def _keys(number: Number) -> set[tuple[float, str]]:
    """What a proved number covers: itself, and its digits without the unit, "175 of 450 GB/s"."""
    return {_key(number), (number.value, "")}


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
