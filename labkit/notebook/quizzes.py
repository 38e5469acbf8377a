"""A quiz on a page: a question, a button for each choice, and why the choice is right or wrong.

quiz()                      ten questions from all topics
quiz("collectives", 5)      five from a subject; quiz("co", 5) is the same

    3 of 10 · co-8 · 240 s left
    What is asked?
    (14 steps) (7 steps) (16 steps)
    Wrong: ...  Right is 14 steps: ...
    (Next question)
"""

import time
from collections.abc import Callable
from functools import partial
from html import escape

import ipywidgets as widgets

from labkit.interview.cards.sitting import UnknownCards
from labkit.interview.page import html_of
from labkit.interview.quiz import QuizQuestion, clock_text, make_quiz, reasons, taken_text
from labkit.notebook.controls import button, capture_warnings, note, page, row, say, show
from labkit.notebook.shown import Shown, WithWidget, box, run_it


class Quiz(WithWidget):
    """The box that `quiz` shows. `choose` and `next` are its buttons."""

    def __init__(
        self, questions: list[QuizQuestion], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """See `quiz`."""
        self.questions, self.results = questions, list[bool]()
        self._clock_s, self._began_s = clock, 0.0
        self._prompt, self._choices, self._ruling = widgets.HTML(), widgets.VBox(), note()
        self._start = button("Start", self.next, tooltip="Start the quiz and its clock")
        self._next = button("Next question", self.next)
        self._widget = page([self._prompt, self._choices, self._ruling, row([self._start])])
        self._prompt.value = f"<p>{escape(self._about)}</p>"

    @property
    def question(self) -> QuizQuestion | None:
        """The question that is asked; None at the end."""
        place = len(self.results)
        return self.questions[place] if place < len(self.questions) else None

    def next(self) -> None:
        """Ask the next question; after the last one say how many were right."""
        if not self.results:
            self._began_s = self._clock_s()
            self._widget.children = (*self._widget.children[:-1], row([self._next]))
        say(self._ruling, "")
        show(self._next, False)
        if self.question is None:
            said = taken_text(self.results, len(self.questions), self._clock_s() - self._began_s)
            self._prompt.value = f'<div class="prompt" role="status">{escape(said)}</div>'
            self._choices.children = ()
            return
        place = f"{len(self.results) + 1} of {len(self.questions)} · {self.question.topic}"
        place += f" · {clock_text(len(self.questions), self._clock_s() - self._began_s)}"
        self._prompt.value = (
            f'<div class="faint">{escape(place)}</div>'
            f'<div class="prompt">{escape(self.question.prompt)}</div>'
        )
        self._choices.children = [
            button(choice.text, partial(self.choose, n))
            for n, choice in enumerate(self.question.choices)
        ]
        self._choices.children[0].focus()

    def choose(self, place: int) -> None:
        """Take a choice, from 0. The others can be pressed no more."""
        question = self.question
        if question is None or self._choices.children[0].disabled:
            return
        is_right, captured = capture_warnings(lambda: question.choose(place))
        self.results.append(is_right)
        for each in self._choices.children:
            each.disabled = True
        wrong, right = reasons(question, place)
        said = "" if is_right else f"<p><b>✗ Wrong.</b></p>{html_of(wrong)}"
        text = question.choices[question.right].text
        said += f"<p><b>✓ Right is: {escape(text)}</b></p>{html_of(right)}"
        say(self._ruling, said + captured.html)
        self._next.description = "Next question" if self.question else "How many were right?"
        show(self._next, True)
        self._next.focus()

    @property
    def _about(self) -> str:
        return f"A quiz of {len(self.questions)} questions. A wrong choice is explained."

    def __repr__(self) -> str:
        return self._about

    def _static_html(self) -> str:
        return box(f"{escape(self._about)}<br>{run_it('be asked.')}")


def quiz(what: str | None = None, count: int = 10, seed: int | None = None) -> Quiz | Shown:
    """Show a quiz, as the last line of a cell.

    what: a group of topics ("co") or a subject ("collectives"); None: all. seed: the same one asks
    the same. A wrong choice is stored as `again`. For an unknown name the box lists similar ones.
    Raises ValueError for a count below 1.
    """
    try:
        return Quiz(make_quiz(count, what, seed))
    except UnknownCards as error:
        return Shown(f"{error}.")
