"""Question cards on a page, one after another: due ones first, then new ones.

card()                  of all topics
card("collectives")     of a group of topics; card("co") is the same
card("co-8")            this one, due or not; then others of its group

A card is asked, shown, graded by the rubric, and remembered once:

    prompt
    [your answer           ]         stays on the page, and is not kept
    (Show the answer)
    In a minute ... > Deeper > The common mistake
    [x] a point of the rubric        the ticked ones propose a grade
    (again · 10 minutes) (hard · 1 day) (good · 2 days) (easy · 8 days)
    > Follow-ups > sources of the numbers
    (A follow-up) (Next card)        the follow-up that the ticked points lead to
"""

import os
from collections.abc import Callable, Iterable
from functools import partial
from html import escape
from typing import Any
from urllib.parse import quote, unquote

import ipywidgets as widgets

from labkit.grade.workspace import WorkspaceNotFound, find_workspace
from labkit.interview.cards import Card, load_topics
from labkit.interview.cards import sitting as sittings
from labkit.interview.drills.drill import Kind
from labkit.interview.page import follow_up_html, html_of
from labkit.notebook.controls import button, capture_warnings, note, page, row, say, show
from labkit.notebook.court import proofs_html
from labkit.notebook.shown import FAINT, Shown, WithWidget, box, run_it
from labkit.progress import clock, practice, scheduling

_SHOW, _HIDE = "Show the answer", "Hide the answer"


class CardSitting(WithWidget):
    """The box that `card` shows. `question` is the card that is asked, or None."""

    def __init__(self, cards: list[Card], first: Card | None) -> None:
        """first: the card to ask first, due or not; None: the next one by the store."""
        self.question: CardQuestion | None = None
        self._cards, self._first = cards, first
        self._done: list[CardQuestion] = []
        self._place, self._tally, self._trouble = widgets.VBox(), note(), note()
        self._next = button("Next card", self.next)
        self._further = button("A follow-up", self.follow_up)
        self._early = button("Ask one early", self.early)
        self._elsewhere = button("A new one from all topics", self.elsewhere)
        self._buttons = (self._further, self._next, self._early, self._elsewhere)
        self._widget = page([self._place, self._trouble, row(self._buttons), self._tally])
        if first is None:
            self.next()
        else:
            self._ask(first)

    def next(self) -> None:
        """Ask a card that is due or new; say so if there is none."""
        # A card that could not be stored is still due by the store; do not ask it for ever.
        unstored = {each.card.id for each in self._done if not each.is_stored}
        left = [card for card in self._cards if card.id not in unstored]
        found, captured = capture_warnings(lambda: sittings.next_cards(left, 1))
        say(self._trouble, captured.html)
        self._count()  # a grade may have been tried again, and be another one
        self._ask(found[0]) if found else self._offer_others()

    def follow_up(self) -> None:
        """Ask what the answer leads to."""
        assert self.question is not None
        found = sittings.follow_up(self.question.card, self.question.said)
        if found is not None:
            self._ask(found)

    def early(self) -> None:
        """Ask the card that is next due, before its time."""
        found, captured = capture_warnings(lambda: sittings.next_due_card(self._cards))
        say(self._trouble, captured.html)
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
        if not is_first:  # running a cell must not move the cursor
            self.question.focus()

    def _on_graded(self) -> None:
        assert self.question is not None
        self._done.append(self.question)
        self._count()
        first = self._further if self.question.card.chain else self._next
        self._show_only(first, self._next)
        if self.question.is_stored:  # otherwise the grade may be tried again, where the cursor is
            first.focus()

    def _count(self) -> None:
        say(self._tally, f'<span class="faint">{escape(self.summary)}</span>' if self._done else "")

    def _offer_others(self) -> None:
        self.question = None
        text, _ = capture_warnings(lambda: sittings.nothing_due(self._cards))
        self._place.children = (widgets.HTML(f'<p role="status">{escape(text)}</p>'),)
        others, _ = capture_warnings(lambda: sittings.next_cards(sittings.cards_of(), 1))
        self._show_only(*([self._elsewhere] if others else []), self._early)
        (self._elsewhere if others else self._early).focus()

    def _show_only(self, *buttons: Any) -> None:
        for each in self._buttons:
            show(each, each in buttons)

    @property
    def summary(self) -> str:
        """The sitting, in one line."""
        return sittings.summary([each.rating for each in self._done if each.rating])

    def __repr__(self) -> str:
        # The static forms are the same for every reader: a card that was asked for by its name.
        if self._first is not None:
            return static_text(self._first)
        topics = topics_of(self._cards)
        return f"A question card of {topics}: what is due, then what is new."

    def _static_html(self) -> str:
        if self._first is not None:
            return static_html(self._first)
        return box(f"{escape(repr(self))}<br>{run_it('be asked.')}")


def card(what: str | None = None) -> CardSitting | Shown:
    """Show question cards to answer and grade, as the last line of a cell.

    what: a card ("co-8"), a group of topics ("co") or its file ("collectives"); None: all. A card
    that is named is asked whether due or not, and others of its group come after it.

    A grade is kept on disk, and decides when the card is asked again. For an unknown name the box
    lists similar ones.
    """
    try:
        found = sittings.cards_of(what)
    except sittings.UnknownCards as error:
        return Shown(f"{error}.")
    is_named = what is not None and what.strip().lower() in (found[0].id, found[0].topic)
    if not is_named:
        return CardSitting(found, None)
    return CardSitting(sittings.cards_of(found[0].topic.partition("-")[0]), found[0])


class CardQuestion:
    """A card that is being answered. `widget` shows it; put it into a `page`.

    Its methods do what its controls do. `rating` is None until it was graded; `said` has the
    numbers of the points that are ticked, from 1.
    """

    def __init__(self, card: Card, on_graded: Callable[[], object] = lambda: None) -> None:
        """on_graded: called once, after the grade was chosen and, if possible, stored."""
        self.card = card
        self.rating: str | None = None
        self.is_stored = False
        self._on_graded = on_graded
        self._prompt, self._answer, self._behind = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._entry = widgets.Textarea(
            description="Your answer",
            placeholder=f"Say it aloud, in {sittings.spoken_text(card)}, or write it here; "
            "the text is not kept.",
            rows=4,
            continuous_update=False,
            layout={"width": "100%"},
        )
        self._reveal = button(_SHOW, self.reveal)
        self._points = [
            widgets.Checkbox(description=point, indent=False, layout={"width": "100%"})
            for point in card.rubric
        ]
        self._grades = {each: button(each, partial(self.grade, each)) for each in practice.RATINGS}
        self._proposal, self._trouble, self._status = widgets.HTML(), note(), note()
        self._choice = row(list(self._grades.values()))
        self._hidden = widgets.VBox(self._revealed_parts(), layout={"display": "none"})
        self.widget = widgets.VBox(
            [self._prompt, self._trouble, self._entry, row([self._reveal]), self._hidden]
        )
        standing, captured = capture_warnings(lambda: sittings.standing(card))
        self._prompt.value = prompt_html(card, standing)
        say(self._trouble, captured.html)

    @property
    def said(self) -> frozenset[int]:
        """The points that were said."""
        return frozenset(place for place, box in enumerate(self._points, 1) if box.value)

    @property
    def missed(self) -> list[str]:
        """The other points, in words."""
        return sittings.points_missed(self.card, self.said)

    @property
    def proposed(self) -> str:
        """The grade by the points."""
        return sittings.rating_of(len(self.said), len(self._points))

    @property
    def is_revealed(self) -> bool:
        """Return whether the answer shows."""
        return self._hidden.layout.display != "none"

    def focus(self) -> None:
        """Move the cursor to the text field."""
        self._entry.focus()

    def reveal(self) -> None:
        """Show the answer, or hide it again. What was written and ticked stays."""
        was_revealed = self.is_revealed
        show(self._hidden, not was_revealed)
        self._reveal.description = _SHOW if was_revealed else _HIDE
        if not was_revealed and self.rating is None:
            self._offer()

    def grade(self, rating: str) -> bool:
        """Store the rating with the missed points, once. Return whether it is stored.

        If the store fails, the page says so, and the buttons may be tried again.
        """
        if self.is_stored:
            return True
        _, captured = capture_warnings(lambda: sittings.grade(self.card, self.said, rating))
        is_first, self.rating = self.rating is None, rating
        self.is_stored = not captured.is_unwritten
        say(self._status, captured.html + self._outcome_html())
        if self.is_stored:
            say(self._trouble, "")
            for point in self._points:
                point.disabled = True
            show(self._proposal, False)
            show(self._choice, False)
        if is_first:
            self._on_graded()
        return self.is_stored

    def give_up(self) -> None:
        """Grade it with nothing said: what is ticked is taken back. One that is graded stays so."""
        if self.rating is None:
            for point in self._points:
                point.value = False
            self.grade("again")

    def _revealed_parts(self) -> list[Any]:
        self._answer.value = answer_html(self.card)
        self._behind.value = behind_html(self.card)
        for point in self._points:
            point.observe(lambda _: self._propose(), names="value")
        listens = widgets.HTML("<h4>An interviewer listens for: tick what you said</h4>")
        grading = [self._proposal, self._choice, self._status]
        return [self._answer, listens, *self._points, *grading, self._behind]

    def _offer(self) -> None:
        """Return the grades, each with the time until the card would be asked again."""
        if scheduling.is_installed():
            subject = sittings.subject(self.card)
            waits, captured = capture_warnings(lambda: practice.next_intervals(subject))
            for rating, wait in waits.items():
                self._grades[rating].description = f"{rating} · {wait}"
                self._grades[rating].tooltip = f"Grade it {rating}: asked again in {wait}"
            say(self._trouble, captured.html)
        self._propose()

    def _propose(self) -> None:
        proposed = f"{self._points_text}: <b>{self.proposed}</b>"
        self._proposal.value = f"<p>{proposed}. How do you grade yourself?</p>"
        for rating, each in self._grades.items():
            each.style.font_weight = "bold" if rating == self.proposed else "normal"

    @property
    def _points_text(self) -> str:
        return f"{len(self.said)} of {len(self._points)} points"

    def _outcome_html(self) -> str:
        """Return the HTML for the grade and for where to read more."""
        graded = f"Graded <b>{self.rating}</b>, {self._points_text}"
        if not self.is_stored:
            return f"<p>{graded}. This grade is <b>not stored</b>: press it again to try again.</p>"
        state = None
        if scheduling.is_installed():
            state, _ = capture_warnings(lambda: practice.state(sittings.subject(self.card)))
        back = "asked again when the package fsrs is there: pip install fsrs"
        if state is not None:
            back = f"asked again in {practice.in_words(state.due_s - clock.now_s())}"
        return f"<p>✓ {graded}: stored, and {escape(back)}.</p>{places_html(self.card)}"


def about(card: Card) -> str:
    """Return the card's name, topic and level."""
    return f"{card.id} · {load_topics()[card.topic].title} · for {card.level}"


def topics_of(asked: Iterable[Card | Kind]) -> str:
    """Return the titles of their groups of topics, or `all topics`."""
    groups = {topic.id: topic.group for topic in load_topics().values()}
    found = dict.fromkeys(groups[each.topic] for each in asked)
    return "all topics" if len(found) > 1 else "".join(found)


def prompt_html(card: Card, standing: str) -> str:
    """Return the question, as it is asked."""
    return (
        f'<div class="faint">{escape(about(card))} · {escape(standing)}</div>'
        f'<div class="prompt">{escape(card.prompt)}</div>'
    )


def answer_html(card: Card) -> str:
    """Return the answer in a minute; the deeper part and the common mistake, folded away."""
    return (
        f"<h4>In a minute</h4>{html_of(card.minute)}"
        f"{_folded('Deeper', html_of(card.deeper))}"
        f"{_folded('The common mistake', html_of(card.mistake))}"
    )


def behind_html(card: Card) -> str:
    """Return follow-ups, the expressions that prove the numbers, and the sources."""
    follow_ups = "".join(f"<li>{follow_up_html(each)}</li>" for each in card.follow_ups)
    listed = f"<ul>{follow_ups}</ul>" if follow_ups else ""
    return (
        f"{_folded(f'Follow-ups ({len(card.follow_ups)})', listed)}"
        f"{_folded('Where the numbers come from', proofs_html(card.all_evidence, card.sources))}"
    )


def places_html(card: Card) -> str:
    """Return links to its notebook and its exercise, from where the kernel runs."""
    links = []
    if card.place:
        links.append(f"the notebook {link(card.place)}")
    if card.exercise:
        links.append(f"the exercise {link(f'exercises/{card.exercise}.py')}")
    return f"<p>To see it: {', '.join(links)}.</p>" if links else ""


def static_html(card: Card) -> str:
    """Return the card for a page without a kernel."""
    return box(
        f'<span style="color: {FAINT}">{escape(about(card))}</span>'
        f"<div><b>{escape(card.prompt)}</b></div>" + run_it("answer it.")
    )


def static_text(card: Card) -> str:
    """Return the card for a terminal."""
    return f"{about(card)}\n{card.prompt}"


def _folded(title: str, html: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{html}</details>" if html else ""


def link(path: str, text: str | None = None) -> str:
    """Return a link to a file of the lab, "notebooks/...", from where the kernel runs.

    path: with "#Heading", to a place in it. text: the path, if left out.
    """
    path, sharp, heading = path.partition("#")
    shown = escape(text or path + (heading and f": {unquote(heading).replace('-', ' ')}"))
    try:
        target = find_workspace().root / path
    except WorkspaceNotFound:
        return shown
    if not target.is_file():
        return shown
    return f'<a href="{quote(os.path.relpath(target))}{sharp}{heading}" target="_blank">{shown}</a>'
