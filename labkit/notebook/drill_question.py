"""One drill on a page: answered in a field, ruled on at once, remembered once.

    the question, with its numbers
    [your answer, in %   ] (Submit) (Show the answer)
    ✗ A known trap: relative to ideal time, not to total. ...  One more try.
    Answer: 30.4%, the steps that lead to it, and when it is asked again

A second try is given after a wrong answer; one that cannot be read is no try, nor is the same text
again.
"""

from collections.abc import Callable
from html import escape

import ipywidgets as widgets

from labkit.interview.cards import load_topics
from labkit.interview.drills import Outcome, Question, Ruling
from labkit.interview.drills.drill_session import SAME_AGAIN, Asked
from labkit.interview.drills.question import Exhibit
from labkit.notebook.card_pages import link
from labkit.notebook.controls import button, note, on_enter, row, say, show
from labkit.notebook.heard import listen
from labkit.progress import clock, practice, scheduling

_MARKS = {
    Outcome.RIGHT: "✓",
    Outcome.TRAPPED: "✗",
    Outcome.WRONG: "✗",
    Outcome.UNREADABLE: "?",
}


class DrillQuestion:
    """A question that is being answered. `widget` shows it; put it into a `page`.

    Its methods do what its controls do; `asked` has the tries, the traps and, at the end, the
    rating.
    """

    def __init__(
        self, asked: Asked, heading: str = "", on_over: Callable[[], object] = lambda: None
    ) -> None:
        """heading: where in a round it is. on_over: called once, after it was rated."""
        self.asked = asked
        self.is_stored = False
        self._ruled_html = ""
        self._on_over = on_over
        self._entry = widgets.Text(
            description=answer_label(asked.question), layout={"width": "18em"}
        )
        self._submit = button("Submit", on_enter(self._entry, self.submit))
        self._give_up = button("Show the answer", self.finish)
        self._ruling, self._end = note(), note()
        self._controls = row([self._submit, self._give_up])
        self.widget = widgets.VBox(
            [
                widgets.HTML(prompt_html(asked, heading)),
                self._entry,
                self._ruling,
                self._controls,
                self._end,
            ]
        )

    @property
    def is_over(self) -> bool:
        """Whether it was rated."""
        return self.asked.rating is not None

    def focus(self) -> None:
        """Where to write."""
        self._entry.focus()

    def submit(self, text: str) -> Ruling | None:
        """Rule on an answer; the right one, or the second wrong one, ends the question."""
        if self.is_over:
            return None
        if not text.strip():
            say(self._ruling, "Type a number first, or choose Show the answer.")
            return None
        if self.asked.is_same_again(text):
            say(self._ruling, f"{self._ruled_html} <p>{SAME_AGAIN}</p>")
            return None
        ruling = self.asked.answer(text)
        self._ruled_html = _ruling_html(ruling, text.strip(), self.asked.is_over)
        say(self._ruling, self._ruled_html)
        if self.asked.is_over:
            self.finish()
        return ruling

    def finish(self) -> str:
        """Show the way to the answer, and store the rating; given up, if it was not right yet."""
        if self.asked.rating is not None:
            return self.asked.rating
        rating, heard = listen(self.asked.finish)
        self.is_stored = not heard.is_unwritten
        self._entry.disabled = True
        show(self._controls, False)
        say(self._end, _solution_html(self.asked) + heard.html + self._outcome_html())
        self._on_over()
        return rating

    def _outcome_html(self) -> str:
        rated = f"Rated <b>{self.asked.rating}</b>"
        if not self.is_stored:
            return f"<p>{rated}. This rating is <b>not stored</b>.</p>"
        back = "; when to ask again needs the package fsrs: pip install fsrs"
        if scheduling.is_installed():
            state, _ = listen(lambda: practice.state(self.asked.drill.subject))
            wait = "" if state is None else practice.in_words(state.due_s - clock.now_s())
            back = f", asked again in {wait}" if wait else ""
        return f"<p>{rated}: stored{escape(back)}. {self._place_html()}</p>"

    def _place_html(self) -> str:
        notebook = self.asked.drill.notebook
        return f"To see it: the notebook {link(f'notebooks/{notebook}.ipynb')}." if notebook else ""


def prompt_html(asked: Asked, heading: str = "") -> str:
    """What is asked, with its numbers."""
    drill = asked.drill
    title = load_topics()[drill.topic].title
    words = [heading, drill.title, f"{drill.topic}, {title}", f"for {drill.level}"]
    return (
        f'<div class="faint">{escape(" · ".join(filter(None, words)))}</div>'
        f'<div class="prompt">{escape(asked.question.prompt)}</div>'
        f"{_framed(asked.question.exhibit, 'The run: breakdown and timeline of every rank')}"
    )


def _framed(exhibit: Exhibit, title: str) -> str:
    """A page with a style of its own, in a frame; title: what a screen reader calls it."""
    if not exhibit.page:
        return ""
    return (
        f'<iframe title="{title}" srcdoc="{escape(exhibit.page)}" tabindex="0" '
        'style="width: 100%; height: 34em; border: 0"></iframe>'
    )


def answer_label(question: Question) -> str:
    """Beside the field: in which unit a bare number is read."""
    return f"Your answer, in {question.unit}" if question.unit else "Your answer"


def _ruling_html(ruling: Ruling, text: str, is_over: bool) -> str:
    said = f"<b>{_MARKS[ruling.outcome]} {escape(text)}</b>: {escape(ruling.text)}"
    if ruling.outcome is Outcome.UNREADABLE:
        return f"{said} This does not count as a try."
    return said if is_over else f"{said} <b>One more try.</b>"


def _solution_html(asked: Asked) -> str:
    steps = "".join(f"<li>{escape(step)}</li>" for step in asked.question.steps)
    proof = _framed(asked.question.proof, "The same run beside one without the fault")
    return f"<h4>Answer: {escape(asked.question.answer_text)}</h4><ol>{steps}</ol>{proof}"
