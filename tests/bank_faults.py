"""Find the faults of a card of the bank, or of a claim of the court; [] for a good one.

Every number of an answer has evidence, is in the question, or is given.
"""

import re
from collections.abc import Iterable, Iterator

from labkit.interview.cards import Card, FollowUp, load_topics, spoken
from labkit.interview.court import VERDICTS, Claim, findings
from labkit.interview.evidence import Number, numbers, prove, uses

# Numbers that claim nothing: of references, versions, years and names.
_SOFTWARE = "NCCL|CUDA|PyTorch|Python|Llama|NVLink|PCIe|Gen|Megatron|DeepSpeed|vLLM|Qwen|Horovod"
_NO_CLAIM = re.compile(
    r"arXiv:\d{4}\.\d{4,5}|\b\d+-bit\b|https?://\S+|\ba \d[\d,]*th\b"
    r"|\b(?:sections?|tables?|figures?|appendix|chapters?|equations?|notebooks?|pages?)\s+[\d.]+\d"
    rf"|\b(?:{_SOFTWARE})[ -](?:\d+(?:\.\d+)+|\d+\b(?! [a-z]+s\b))"
    r"|(?<=in )(?:19|20)\d\d\b|(?<=\()(?:19|20)\d\d(?=\))|\b[A-Z]\w+,? (?:19|20)\d\d\b"
)
# A word behind a number counts as what it counts, except prepositions and the like.
_COUNTS = re.compile(
    r" (?!(?:of|with|and|or|to|in|at|on|by|for|from|against|is|are|was|were|as|not|but)\b)[a-z]{3,}"
)
_SENTENCE_END = re.compile(r"[.:;?!] +(?=[A-Z])")
# Least and most number of words or items in each field of a card.
_LENGTHS = {
    "minute": (80, 150),
    "deeper": (120, 9999),
    "mistake": (25, 9999),
    "rubric": (3, 6),
    "follow_ups": (2, 6),
    "sources": (1, 99),
    "evidence": (1, 99),
    "prompt": (5, 999),
}
_MOST_NUMBERS = 3
# The same for a follow-up that has an answer.
_OF_A_FOLLOW_UP = {"answer": (40, 80), "rubric": (2, 4)}


def card_faults(card: Card) -> list[str]:
    """Everything that is wrong with a card, but for proofs that do not hold."""
    return [
        *_of_the_form(card),
        *_of_the_numbers(card, asked=card.prompt),
        *(fault for each in card.follow_ups if each.answer for fault in _of_one(card, each)),
    ]


def claim_faults(claim: Claim, *, measure: bool = True) -> list[str]:
    """Everything that is wrong with a case. measure: whether real runs are made, too."""
    proofs = [prove(item.says, item.proof) for item in claim.evidence if item.proof]
    return [
        *_of_the_numbers(claim, asked=claim.claim),
        *(proved.reason for proved in proofs if not proved.holds),
        *_of_the_exhibits(claim, measure),
    ]


def _of_the_form(card: Card) -> Iterator[str]:
    topic = load_topics().get(card.topic)
    if topic is None or card.file != f"{topic.subject}/cards.md":
        yield f"{card.id} does not belong into {card.file}"
    elif topic.contradicts and sum(bool(item.says) for item in card.evidence) < 2:
        yield "conventions differ on this topic, and fewer than two numbers have evidence"
    if card.difficulty not in (1, 2, 3):
        yield f"difficulty = {card.difficulty}"
    yield from _of_the_lengths(card, _LENGTHS)
    if len(said := spoken.numbers_of(card)) > _MOST_NUMBERS:
        yield f"minute says {len(said)} numbers, {', '.join(said)}, not at most {_MOST_NUMBERS}"


def _of_the_lengths(
    of: Card | FollowUp, lengths: dict[str, tuple[int, int]], about: str = ""
) -> Iterator[str]:
    for name, (low, high) in lengths.items():
        whole = getattr(of, name)
        number = spoken.num_words(whole) if isinstance(whole, str) else len(set(whole))
        if not low <= number <= high:
            yield f"{name}{about} has {number}, not {low} to {high}"


def _of_one(card: Card, asked: FollowUp) -> Iterator[str]:
    """Faults of the answer to a follow-up. It may say the card's numbers again."""
    yield from _of_the_lengths(asked, _OF_A_FOLLOW_UP, f" to {asked.question!r}")
    text = " ".join(asked.answer.split())
    says = [item.says for item in asked.evidence if item.says]
    yield from (f"{each!r} is not in the answer" for each in says if not _spans(each, text))
    known = [item.says for item in card.evidence if item.says]
    stated = [card.prompt, asked.question, *says, *known, *card.given]
    yield from _unproved(text, [*says, *known, *card.given], stated)


def _of_the_numbers(card: Card | Claim, asked: str) -> Iterator[str]:
    text = " ".join(card.text.split())  # a quote may go on in the next line
    says = [item.says for item in card.evidence if item.says]
    for each in (*says, *card.given):
        if not _spans(each, text):
            yield f"{each!r} is not in the text"
    everything = card.all_evidence if isinstance(card, Card) else card.evidence
    for item in everything:
        if item.proof and not uses(item.proof, "calc") and not uses(item.proof, "runs"):
            yield f"{item.proof!r} has neither calc nor runs"
    yield from _unproved(text, [*says, *card.given], [asked, *says, *card.given])


def _unproved(text: str, quoted: list[str], stated: list[str]) -> Iterator[str]:
    """Numbers of the text that nothing covers.

    A stated number may be said again. It may leave out its unit: in the same sentence, "175 of 450
    GB/s", or where it counts nothing else.
    """
    covered = [span for each in quoted for span in _spans(each, text)]
    no_claim = [match.span() for match in _NO_CLAIM.finditer(text)]
    known = {_amount(number) for each in stated for number in numbers(each)}
    bare = {number.value for each in stated for number in numbers(each)}
    in_sentence = {
        (_sentence_of(text, start), number.value)
        for each in stated
        for start, _ in _spans(each, text)
        for number in numbers(each)
    }
    for number in numbers(text):
        if not _needs_proof(number) or _amount(number) in known:
            continue
        if any(start <= number.start and number.end <= end for start, end in covered):
            continue
        if any(start <= number.start < end for start, end in no_claim):
            continue
        if number.text.replace(",", "").replace(".", "").isdigit() and (
            (_sentence_of(text, number.start), number.value) in in_sentence
            or (number.value in bare and not _COUNTS.match(text, number.end))
        ):
            continue
        around = text[max(0, number.start - 25) : number.end + 15]
        yield f"nothing proves {number.text!r} in {around!r}"


def _of_the_exhibits(claim: Claim, measure: bool) -> Iterator[str]:
    """Each bears the claim out or not, as it says; together they make the verdict."""
    found = findings(claim, measure=measure)
    for each in found:
        shows, value = each.exhibit.shows, each.found_text or each.measured_text
        if each.stands != each.exhibit.stands:
            yield f"{shows}: {value} makes stands = {each.stands}"
        if not each.agrees:
            yield f"{shows}: {value} is predicted and {each.measured_text} is measured"
    if VERDICTS[claim.verdict].stands != {each.stands for each in found}:
        yield f"the exhibits make no {claim.verdict!r}"


def _needs_proof(number: Number) -> bool:
    """Return whether a number is a claim: it has a unit, a decimal point, or two digits or more."""
    bare = re.fullmatch(r"x?([\d,]+)(?:st|nd|rd|th)?", number.text)
    return bare is None or len(bare[1].replace(",", "")) > 1


def _amount(number: Number) -> tuple[float, str]:
    return number.value * number.scale, number.dimension


def _sentence_of(text: str, place: int) -> int:
    """Where the sentence begins that has this place."""
    ends: Iterable[int] = (match.end() for match in _SENTENCE_END.finditer(text, 0, place))
    return max(ends, default=0)


def _spans(quote: str, text: str) -> list[tuple[int, int]]:
    """Where `quote` stands in `text`, not inside a longer number or word."""
    before = r"(?<![\w.])" if quote[0].isalnum() else ""
    after = r"(?!\w|[.,]\d)" if quote[-1].isalnum() else ""
    return [match.span() for match in re.finditer(before + re.escape(quote) + after, text)]
