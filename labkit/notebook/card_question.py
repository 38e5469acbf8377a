"""One question card on a page: asked, shown, graded by the rubric, remembered once.

prompt
[your answer           ]         stays on the page, and is not kept
(Show the answer)
In a minute ... > Deeper > The common mistake
[x] a point of the rubric        the ticked ones propose a grade
(again · 10 minutes) (hard · 1 day) (good · 2 days) (easy · 8 days)
> Follow-ups > where the numbers come from
"""

from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit.interview.cards import Card
from labkit.interview.cards import sitting as sittings
from labkit.notebook import card_pages
from labkit.notebook.controls import button, note, row, say, show
from labkit.notebook.heard import listen
from labkit.progress import clock, practice, scheduling

_SHOW, _HIDE = "Show the answer", "Hide the answer"


class CardQuestion:
    """A card that is being answered. `widget` shows it; put it into a `page`.

    Its methods do what its controls do. `rating` is None until it was graded; `said` has the
    numbers of the points that are ticked, from 1.
    """

    def __init__(self, card: Card, on_graded: Callable[[], object] = lambda: None) -> None:
        """on_graded: called once, after the grade was chosen and, where possible, stored."""
        self.card = card
        self.rating: str | None = None
        self.is_stored = False
        self._on_graded = on_graded
        self._prompt, self._answer, self._behind = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._entry = widgets.Textarea(
            description="Your answer",
            placeholder="Say it aloud, in a minute, or write it here; the text is not kept.",
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
        standing, heard = listen(lambda: sittings.standing(card))
        self._prompt.value = card_pages.prompt_html(card, standing)
        say(self._trouble, heard.html)

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
        """Whether the answer shows."""
        return self._hidden.layout.display != "none"

    def focus(self) -> None:
        """Where to write."""
        self._entry.focus()

    def reveal(self) -> None:
        """Show the answer, or hide it again. What was written and ticked stays."""
        was_revealed = self.is_revealed
        show(self._hidden, not was_revealed)
        self._reveal.description = _SHOW if was_revealed else _HIDE
        if not was_revealed and self.rating is None:
            self._offer()

    def grade(self, rating: str) -> bool:
        """Store the rating with the points that were missed, once. Whether it is stored.

        Where the store does not let it, the page says so, and the buttons may be tried again.
        """
        if self.is_stored:
            return True
        _, heard = listen(lambda: sittings.grade(self.card, self.said, rating))
        is_first, self.rating = self.rating is None, rating
        self.is_stored = not heard.is_unwritten
        say(self._status, heard.html + self._outcome_html())
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
        self._answer.value = card_pages.answer_html(self.card)
        self._behind.value = card_pages.behind_html(self.card)
        for point in self._points:
            point.observe(lambda _: self._propose(), names="value")
        listens = widgets.HTML("<h4>An interviewer listens for: tick what you said</h4>")
        grading = [self._proposal, self._choice, self._status]
        return [self._answer, listens, *self._points, *grading, self._behind]

    def _offer(self) -> None:
        """The grades, each with the time after which the card would come back."""
        if scheduling.is_installed():
            subject = sittings.subject(self.card)
            waits, heard = listen(lambda: practice.next_intervals(subject))
            for rating, wait in waits.items():
                self._grades[rating].description = f"{rating} · {wait}"
                self._grades[rating].tooltip = f"Grade it {rating}: asked again in {wait}"
            say(self._trouble, heard.html)
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
        """What became of the grade, and where to look."""
        graded = f"Graded <b>{self.rating}</b>, {self._points_text}"
        if not self.is_stored:
            return f"<p>{graded}. This grade is <b>not stored</b>: press it again to try again.</p>"
        state = None
        if scheduling.is_installed():
            state, _ = listen(lambda: practice.state(sittings.subject(self.card)))
        back = "asked again when the package fsrs is there: pip install fsrs"
        if state is not None:
            back = f"asked again in {practice.in_words(state.due_s - clock.now_s())}"
        return f"<p>✓ {graded}: stored, and {escape(back)}.</p>{card_pages.places_html(self.card)}"
