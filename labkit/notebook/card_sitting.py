"""Question cards on a page, one after another: what is due, then what is new.

card()                  of all topics
card("collectives")     of a group of topics; card("co") is the same
card("co-8")            this one, due or not; then others of its group
"""

from html import escape
from typing import Any

import ipywidgets as widgets

from labkit.interview.cards import Card
from labkit.interview.cards import sitting as sittings
from labkit.notebook import card_pages
from labkit.notebook.card_question import CardQuestion
from labkit.notebook.controls import button, note, page, row, say, show
from labkit.notebook.heard import listen
from labkit.notebook.shown import FAINT, Shown, box


class CardSitting:
    """The box that `card` shows. `question` is the card that is asked, None where nothing is."""

    def __init__(self, cards: list[Card], first: Card | None) -> None:
        """first: asked whether due or not; None: what is next by the store."""
        self.question: CardQuestion | None = None
        self._cards, self._first = cards, first
        self._done: list[CardQuestion] = []
        self._place, self._tally, self._trouble = widgets.VBox(), note(), note()
        self._next = button("Next card", self.next)
        self._early = button("Ask one early", self.early)
        self._elsewhere = button("A new one from all topics", self.elsewhere)
        self._buttons = (self._next, self._early, self._elsewhere)
        self._widget = page([self._place, self._trouble, row(self._buttons), self._tally])
        if first is None:
            self.next()
        else:
            self._ask(first)

    def next(self) -> None:
        """Ask what is due, or new; say so where there is neither."""
        # What could not be stored is still due by the store: it is not asked forever.
        unstored = {each.card.id for each in self._done if not each.is_stored}
        left = [card for card in self._cards if card.id not in unstored]
        found, heard = listen(lambda: sittings.next_cards(left, 1))
        say(self._trouble, heard.html)
        self._count()  # a grade may have been tried again, and be another one
        self._ask(found[0]) if found else self._offer_others()

    def early(self) -> None:
        """Ask the card that is due soonest, before its time."""
        found, heard = listen(lambda: sittings.soonest(self._cards))
        say(self._trouble, heard.html)
        if found is not None:
            self._ask(found)

    def elsewhere(self) -> None:
        """Go on with the cards of all topics."""
        self._cards = sittings.cards_of()
        self.next()

    def _ask(self, card: Card) -> None:
        is_first = not self._place.children
        self.question = CardQuestion(card, self._on_graded)
        self._place.children = (self.question.widget,)
        self._show_only()
        if not is_first:  # running a cell takes nobody's cursor away
            self.question.focus()

    def _on_graded(self) -> None:
        assert self.question is not None
        self._done.append(self.question)
        self._count()
        self._show_only(self._next)
        if self.question.is_stored:  # otherwise the grade may be tried again, where the cursor is
            self._next.focus()

    def _count(self) -> None:
        say(self._tally, f'<span class="faint">{escape(self.summary)}</span>' if self._done else "")

    def _offer_others(self) -> None:
        self.question = None
        text, _ = listen(lambda: sittings.nothing_due(self._cards))
        self._place.children = (widgets.HTML(f'<p role="status">{escape(text)}</p>'),)
        others, _ = listen(lambda: sittings.next_cards(sittings.cards_of(), 1))
        self._show_only(*([self._elsewhere] if others else []), self._early)
        (self._elsewhere if others else self._early).focus()

    def _show_only(self, *buttons: Any) -> None:
        for each in self._buttons:
            show(each, each in buttons)

    @property
    def summary(self) -> str:
        """This sitting in a line."""
        return sittings.summary([each.rating for each in self._done if each.rating])

    def __repr__(self) -> str:
        # The static forms are the same for every reader: a card that was asked for by its name.
        if self._first is not None:
            return card_pages.static_text(self._first)
        topics = card_pages.topics_of(self._cards)
        return f"A question card of {topics}: what is due, then what is new."

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        html = f'{escape(repr(self))}<br><span style="color: {FAINT}">Run this cell to be asked.'
        static = box(f"{html}</span>")
        if self._first is not None:
            static = card_pages.static_html(self._first)
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        return {**bundle, "text/plain": repr(self), "text/html": static}


def card(what: str | None = None) -> CardSitting | Shown:
    """Question cards to answer and grade; the last line of a cell shows it.

    what: a card ("co-8"), a group of topics ("co") or its file ("collectives"); None: all. A card
    that is named is asked whether due or not, and others of its group come after it.

    A grade is kept, on disk, and decides when the card comes back. For a name that is none the box
    says which are near.
    """
    try:
        found = sittings.cards_of(what)
    except sittings.UnknownCards as error:
        return Shown(f"{error}.")
    is_named = what is not None and what.strip().lower() in (found[0].id, found[0].topic)
    if not is_named:
        return CardSitting(found, None)
    return CardSitting(sittings.cards_of(found[0].topic.partition("-")[0]), found[0])
