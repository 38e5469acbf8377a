"""A quiz: multiple choice from drills, claims and cards, ten questions in five minutes.

    quiz = make_quiz(10, seed=3)
    for question in quiz: question.choose(2)      remembers a wrong choice, and says why it is wrong

    from        asks                                   wrong choices               the reason is
    a drill     its question, with fresh numbers       the values of its traps     the trap's text
    a claim     what does the court say?               other verdicts              the truth
    a card      what is wrong with "..."?, which is    what is wrong with other    the sentence that
                its common mistake                     mistakes of the subject     it answers

Recognising an answer is easier than giving it. So a right choice changes no schedule; a wrong one
is stored as "again", and its drill, claim or card is asked soon.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit import arguments
from labkit.interview.cards import Card, load_topics
from labkit.interview.cards import sitting as sittings
from labkit.interview.court import VERDICTS, Claim, load_claims
from labkit.interview.drills import Drill, drills_of
from labkit.progress import practice

SECONDS = 30
"""Meant for a question."""
_MOST_CHOICES = 4
_SAID = re.compile(r'"([^"]+)"\s+')
_SENTENCE = re.compile(r".+?[.!?](?=\s|$)", re.S)
_SEEDS = 10**6


@dataclass(frozen=True)
class Choice:
    """An answer to choose, and why it is right or wrong."""

    text: str
    why: str


@dataclass(frozen=True)
class QuizQuestion:
    """A question with its choices, in the order in which they are shown."""

    subject: str
    """Its name in the progress store: "drill/bubble_share", "claim/ring-8" or "card/co-8"."""
    topic: str
    prompt: str
    choices: tuple[Choice, ...]
    right: int
    """The place of the right choice, from 0."""

    def choose(self, place: int) -> bool:
        """Return whether a choice, from 0, is right; store a wrong one."""
        chosen = self.choices[place]
        if place != self.right:
            practice.answer(self.subject, "again", topic=self.topic, quiz=chosen.text)
        return place == self.right


def make_quiz(
    count: int = 10, what: str | None = None, seed: int | None = None
) -> list[QuizQuestion]:
    """Return questions, drills, claims and cards in turn; fewer where there are no more.

    what: a group of topics, "co", or a subject, "collectives"; None: all. seed: the same one gives
    the same quiz. Raises UnknownCards, with similar names, and ValueError for a count below 1.
    """
    count = arguments.whole("count", count, "1 or more questions")
    rng = random.Random(seed)
    cards = sittings.cards_of(what)
    topics = {card.topic for card in cards}
    kinds = [
        _of_drills([each for each in drills_of() if each.topic in topics], rng),
        _of_claims([each for each in load_claims().values() if topics & {*each.topics}], rng),
        _of_cards([card for card in cards if _SAID.match(card.mistake)], rng),
    ]
    found: list[QuizQuestion] = []
    while kinds and len(found) < count:
        for kind in list(kinds):
            question = next(kind, None)
            if question is None:
                kinds.remove(kind)
            else:
                found.append(question)
    return found[:count]


def _shuffled(
    rng: random.Random, subject: str, topic: str, prompt: str, choices: Sequence[Choice]
) -> QuizQuestion:
    """Return the question; the first choice is the right one."""
    shown = rng.sample(choices, len(choices))
    return QuizQuestion(subject, topic, prompt, tuple(shown), shown.index(choices[0]))


def _of_drills(drills: Sequence[Drill], rng: random.Random) -> Iterator[QuizQuestion]:
    for drill in rng.sample(drills, len(drills)):
        question = drill.question(rng.randrange(_SEEDS))
        traps = rng.sample(question.traps, min(len(question.traps), _MOST_CHOICES - 1))
        right = Choice(question.answer_text, " ".join(question.steps))
        digits = None if question.digits is None else question.digits + 1
        wrong = [
            Choice(question.text_of(float(trap.value), digits), f"{trap.name}: {trap.why}")
            for trap in traps
        ]
        if len({right.text, *(each.text for each in wrong)}) > len(wrong) > 0:
            yield _shuffled(rng, drill.subject, drill.topic, question.prompt, [right, *wrong])


def _of_claims(claims: Sequence[Claim], rng: random.Random) -> Iterator[QuizQuestion]:
    for claim in rng.sample(claims, len(claims)):
        stands = VERDICTS[claim.verdict].stands
        others = [name for name, each in VERDICTS.items() if each.stands != stands]
        wrong = rng.sample(others, min(len(others), _MOST_CHOICES - 1))
        choices = [
            Choice(f"{name}: {VERDICTS[name].meaning}", claim.truth)
            for name in (claim.verdict, *wrong)
        ]
        prompt = f'"{claim.claim}" What does the court say?'
        yield _shuffled(rng, f"claim/{claim.key}", claim.topics[0], prompt, choices)


def _of_cards(cards: Sequence[Card], rng: random.Random) -> Iterator[QuizQuestion]:
    groups = {topic.id: topic.group for topic in load_topics().values()}
    for card in rng.sample(cards, len(cards)):
        others = [each for each in cards if groups[each.topic] == groups[card.topic]]
        others = [each for each in others if each.topic != card.topic] or [
            each for each in cards if each.topic != card.topic
        ]
        chosen = rng.sample(others, min(len(others), _MOST_CHOICES - 1))
        if not chosen:
            continue
        said, reason = _mistake(card)
        wrong = []
        for other in chosen:
            other_said, other_reason = _mistake(other)
            wrong.append(Choice(other_reason, f'That answers "{other_said}" (card {other.id}).'))
        prompt = f'Somebody says: "{said}" What is wrong with it?'
        yield _shuffled(
            rng, sittings.subject(card), card.topic, prompt, [Choice(reason, card.minute), *wrong]
        )


def _mistake(card: Card) -> tuple[str, str]:
    """Return what is said, and the two sentences after it that say what is wrong."""
    match = _SAID.match(card.mistake)
    assert match is not None
    following = " ".join(card.mistake[match.end() :].split())
    return " ".join(match[1].split()), "".join(_SENTENCE.findall(following)[:2])


def clock_text(num_questions: int, seconds: float) -> str:
    """Write the time left after so many seconds: `270 s left`, or `12 s over`."""
    left_s = round(num_questions * SECONDS - seconds)
    return f"{left_s} s left" if left_s >= 0 else f"{-left_s} s over"


def reasons(question: QuizQuestion, place: int) -> tuple[str, str]:
    """Return why a choice, from 0, is wrong, and why the right one is right.

    The first is "" for the right choice, and where both are the same.
    """
    wrong, right = question.choices[place].why, question.choices[question.right].why
    return "" if wrong == right else wrong, right


def taken_text(results: Sequence[bool], num_questions: int, seconds: float) -> str:
    """Write `7 of 10 right, in 4:12 of 5:00.`"""
    meant_s = num_questions * SECONDS
    answered = "" if len(results) == num_questions else f", {len(results)} answered"
    return (
        f"{sum(results)} of {num_questions} right{answered}, in {int(seconds) // 60}:"
        f"{int(seconds) % 60:02} of {meant_s // 60}:{meant_s % 60:02}."
    )
