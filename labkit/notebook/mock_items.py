"""The items of a mock interview as a page asks them. Each ends by itself, or is skipped.

    widget, focus()     to show, and where to write
    skip()              give it up; that counts, and is stored, as an answer that is not known
    on_done(scored)     called once, with the score and what was missed

Questions and drills are those of `card` and `drill`, and stored as there.
"""

from collections.abc import Callable
from typing import Any, Protocol

from labkit.interview.cards import load_bank
from labkit.interview.mock import Item, asking
from labkit.interview.mock.asking import Scored
from labkit.interview.mock.plan import EXERCISE, QUESTION
from labkit.notebook.card_question import CardQuestion
from labkit.notebook.drill_question import DrillQuestion
from labkit.notebook.mock_exercise import ExerciseItem

OnDone = Callable[[Scored], None]


class ItemView(Protocol):
    """What all three have."""

    widget: Any

    def focus(self) -> None:
        """Put the cursor where to write."""

    def skip(self) -> None:
        """Give it up."""


def view_of(item: Item, seed: int, on_done: OnDone) -> ItemView:
    """The item, ready to be answered. seed: of the interview."""
    if item.kind == QUESTION:
        return _Question(item, on_done)
    return ExerciseItem(item, on_done) if item.kind == EXERCISE else _Drill(item, seed, on_done)


class _Question:
    """A card; its score is the share of the rubric's points, whatever the grade."""

    def __init__(self, item: Item, on_done: OnDone) -> None:
        card = load_bank()[item.name]
        self._question = CardQuestion(
            card, lambda: on_done(asking.scored_question(card, self._question.said))
        )
        self.widget, self.focus = self._question.widget, self._question.focus

    def skip(self) -> None:
        """As if none of the points had been said, whatever is ticked."""
        self._question.give_up()


class _Drill:
    """A drill or a case, with the numbers of the interview's seed."""

    def __init__(self, item: Item, seed: int, on_done: OnDone) -> None:
        asked = asking.asked_drill(item, seed)
        self._question = DrillQuestion(asked, "", lambda: on_done(asking.scored_drill(asked)))
        self.widget, self.focus = self._question.widget, self._question.focus

    def skip(self) -> None:
        """Given up."""
        self._question.finish()
