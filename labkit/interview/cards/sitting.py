"""A sitting with question cards: the next cards, the points said, and the rating to store.

next_cards(cards_of("pp"), 5)         due cards, the longest overdue first; then new ones
said = parse_points("1 3 4", 5)        the rubric's points that you heard yourself say
grade(card, said)                     remembers the rating, and returns it
follow_up(card, said)                 the question that comes next

    every point             easy
    two thirds or more      good
    a third or more         hard
    less, or nothing        again

You grade yourself by the points that an interviewer listens for: an answer that left out half of
them is "hard", even if it sounded right.

A follow-up is a card of its own, "co-8/2". It is asked after the card, and again when it is due.
"""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction

from labkit import arguments
from labkit.arguments import UserError
from labkit.grade.catalog import load_subjects
from labkit.interview.cards.card import Card, load_bank, load_topics
from labkit.progress import clock, practice

PREFIX = "card/"
_DAY_S = 86_400
_LEAST = (("easy", Fraction(1)), ("good", Fraction(2, 3)), ("hard", Fraction(1, 3)))
STORY_CARD = "ta-1"
"""The card of the story of five minutes."""
_HOW = "write numbers such as 1 3 4; all; or none"


class UnknownCards(UserError, ValueError):
    """There is no such card, topic or group of topics."""


def cards_of(what: str | None = None) -> list[Card]:
    """Return cards by id (`co-8`), by a group's letters (`co`) or by subject (`pipeline`).

    `co-8/2` is the second follow-up of a card. None: all cards, in the bank's order.
    Raises UnknownCards, with similar names, and TypeError for anything but text.
    """
    every = list(load_bank().values())
    if what is None:
        return every
    arguments.instance("card", what, str, 'name a card, "co-8", or a group of topics, "co"')
    subjects = {topic.id: topic.subject for topic in load_topics().values()}
    wanted = what.strip().lower()
    found = [
        card
        for card in (_with_follow_ups(every) if "/" in wanted else every)
        if wanted in (card.id, card.topic, card.topic.partition("-")[0], subjects[card.topic])
    ]
    if found:
        return found
    names = {*subjects.values(), *(topic.partition("-")[0] for topic in subjects), *subjects}
    near = difflib.get_close_matches(wanted, sorted(names), 3, 0.5) or list(load_subjects())
    raise UnknownCards(f"{what!r} is no card and no topic of the bank; near it: {', '.join(near)}")


def next_cards(cards: Sequence[Card], count: int, now_s: float | None = None) -> list[Card]:
    """Return at most `count` cards: due ones, the longest overdue first; then new ones.

    New ones come in the bank's order, easier ones first. Known cards that are not due are left out.
    Follow-ups are among the due ones, and not among the new ones: their card comes first.
    """
    states = practice.all_states()
    overdue = {state.subject: place for place, state in enumerate(practice.due(now_s, PREFIX))}
    due = [each for each in _with_follow_ups(cards) if subject(each) in overdue]
    due.sort(key=lambda card: overdue[subject(card)])
    new = [card for card in cards if subject(card) not in states]
    new.sort(key=lambda card: card.difficulty)
    return [*due, *new][:count]


def _with_follow_ups(cards: Iterable[Card]) -> list[Card]:
    return [each for card in cards for each in (card, *card.chain)]


def follow_up(card: Card, said: Collection[int]) -> Card | None:
    """Return the follow-up to ask after an answer; None if the card has none with an answer.

    The more points were said, the later it stands in the chain: after few points it asks for a
    number, after all of them for a design.
    """
    chain = card.chain
    place = len(said) * len(chain) // len(card.rubric)
    return chain[min(place, len(chain) - 1)] if chain else None


def spoken_minutes(card: Card) -> int:
    """Return the minutes that a spoken answer may take: five for the story, else one."""
    return 5 if card.id == STORY_CARD else 1


def spoken_text(card: Card) -> str:
    """Return `a minute` or `5 minutes`."""
    minutes = spoken_minutes(card)
    return "a minute" if minutes == 1 else f"{minutes} minutes"


def next_due_s(cards: Iterable[Card]) -> float | None:
    """Return when the next of the cards is due, in seconds since 1970; None if none was ever
    asked."""
    states = practice.all_states()
    known = [subject(each) for each in _with_follow_ups(cards)]
    return min((states[each].due_s for each in known if each in states), default=None)


def next_due_card(cards: Iterable[Card]) -> Card | None:
    """Return the card with the earliest due time, also a future one; None if none was asked."""
    states = practice.all_states()
    known = [card for card in _with_follow_ups(cards) if subject(card) in states]
    return min(known, key=lambda card: states[subject(card)].due_s, default=None)


def parse_points(text: str, num_points: int) -> frozenset[int]:
    """Parse numbers of a list's lines, from 1: `1 3 4`, `1,3`, `2-4`, `all`, `none`.

    Raises ValueError, with what is understood, for anything else.
    """
    typed = text.strip().lower()
    if typed in ("", "none", "0", "-"):
        return frozenset()
    if typed in ("all", "a", "*"):
        return frozenset(range(1, num_points + 1))
    said: set[int] = set()
    for word in re.split(r"[\s,;]+", typed):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", word)
        if match is None:
            raise ValueError(f"{word!r} is no number: {_HOW}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 1 <= first <= last <= num_points:
            raise ValueError(f"{word} is not in this list of {num_points}: {_HOW}")
        said |= set(range(first, last + 1))
    return frozenset(said)


def rating_of(num_said: int, num_points: int) -> str:
    """Return the rating by the share of the points: see above."""
    share = Fraction(num_said, num_points)
    return next((rating for rating, least in _LEAST if share >= least), "again")


def grade(card: Card, said: Collection[int], rating: str | None = None) -> str:
    """Store the answer of a card, with the points that were said. Returns the rating.

    rating: the learner's own, if it differs from that of the points. ValueError unless it is one
    of the four.
    """
    missed = points_missed(card, said)
    rating = rating or rating_of(len(card.rubric) - len(missed), len(card.rubric))
    practice.answer(subject(card), rating, topic=card.topic, missed=missed)
    return rating


def points_missed(card: Card, said: Collection[int]) -> list[str]:
    """Return the points of the rubric that were not said, in words."""
    return [point for place, point in enumerate(card.rubric, 1) if place not in said]


def standing(card: Card, now_s: float | None = None) -> str:
    """Return why a card is asked: `new`, `due`, `3 days overdue`, or `due in 4 days`."""
    state = practice.state(subject(card))
    if state is None:
        return "new"
    late_s = (clock.now_s() if now_s is None else now_s) - state.due_s
    if late_s < 0:
        return f"due in {practice.in_words(-late_s)}"
    return f"{practice.in_words(late_s)} overdue" if late_s >= _DAY_S else "due"


def nothing_due(cards: Iterable[Card], now_s: float | None = None) -> str:
    """Return the message for the case that `next_cards` finds none."""
    due_s = next_due_s(cards)
    now_s = clock.now_s() if now_s is None else now_s
    wait = "" if due_s is None else f" The next in {practice.in_words(due_s - now_s)}."
    return f"Nothing is due, and nothing of these is new.{wait}"


def summary(ratings: Sequence[str]) -> str:
    """Describe a sitting in a line: `3 answers: 2 good, 1 again`. A follow-up is one, too."""
    if not ratings:
        return "Nothing answered."
    counts = Counter(ratings)
    listed = ", ".join(
        f"{counts[each]} {each}" for each in reversed(practice.RATINGS) if counts[each]
    )
    num = len(ratings)
    return f"{num} {'answer' if num == 1 else 'answers'}: {listed}"


def subject(card: Card) -> str:
    """Return a card's name in the progress store."""
    return f"{PREFIX}{card.id}"
