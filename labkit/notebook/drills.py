"""Numeric questions on a page, one after another, with fresh numbers each time.

drill()                             of all topics
drill("pp")                         of a group of topics; "pp-2": of one
drill("bubble_of_total", seed=3)    this one, with these numbers
case(2)                             why is this run slow? A real one, with a hidden fault
case(2, room="rl")                  what is wrong with this reinforcement learning?

A drill is answered in a field, judged at once, and stored once:

    the question, with its numbers
    [your answer, in %   ] (Submit) (Show the answer)
    ✗ A known trap: relative to ideal time, not to total. ...  One more try.
    Answer: 30.4%, the steps that lead to it, and when it is asked again

After a wrong answer there is a second try. An answer that cannot be read does not count as a try,
nor does the same text again.
"""

from collections.abc import Callable, Sequence
from html import escape

import ipywidgets as widgets

from labkit.interview.cards import load_topics
from labkit.interview.case_files import case_of_room
from labkit.interview.drills import Outcome, Question, Ruling, UnknownDrill, drills_of
from labkit.interview.drills.drill import Kind
from labkit.interview.drills.question import Exhibit
from labkit.interview.drills.session import REPEATED_ANSWER, Asked, Round
from labkit.notebook.cards import link, topics_of
from labkit.notebook.controls import button, capture_warnings, note, on_enter, page, row, say, show
from labkit.notebook.shown import Shown, WithWidget, box, run_it
from labkit.progress import clock, practice, scheduling

_MARKS = {
    Outcome.RIGHT: "✓",
    Outcome.TRAPPED: "✗",
    Outcome.WRONG: "✗",
    Outcome.UNREADABLE: "?",
}


class DrillRound(WithWidget):
    """The box that `drill` shows. `question` is the one that is asked."""

    def __init__(self, drills: Sequence[Kind], seed: int | None) -> None:
        """seed: the same one asks the same questions; None: others each time."""
        self._round = Round(drills, seed)
        self._place, self._tally = widgets.VBox(), note()
        self._another = button("Another", self.another)
        self._widget = page([self._place, row([self._another]), self._tally])
        self._ask()
        about = drills[0].title if len(drills) == 1 else topics_of(drills)
        self._static = f"{about}, with fresh numbers."
        if seed is not None and not self.question.asked.question.exhibit.page:  # nothing measured
            self._static = self.question.asked.question.prompt

    def another(self) -> None:
        """The next question of the round. One that was not finished is left behind, unrated."""
        self._ask()
        self.question.focus()

    @property
    def summary(self) -> str:
        """The state of the round, in one line."""
        return self._round.summary

    def _ask(self) -> None:
        asked = self._round.ask()
        heading = f"question {len(self._round.asked)}"
        self.question = DrillQuestion(asked, heading, self._on_over)
        self._place.children = (self.question.widget,)
        show(self._another, False)

    def _on_over(self) -> None:
        say(self._tally, f'<span class="faint">This round: {escape(self.summary)}</span>')
        show(self._another, True)
        self._another.focus()

    def __repr__(self) -> str:
        return f"Drill. {self._static}"

    def _static_html(self) -> str:
        # With a seed the static forms have the question; without, no numbers of one reader's.
        return box(f"<div><b>Drill.</b> {escape(self._static)}</div>{run_it('answer.')}")


def drill(what: str | None = None, seed: int | None = None) -> DrillRound | Shown:
    """Show numeric questions, judged at once, as the last line of a cell.

    what: a drill, a topic ("pp-2") or a group of topics ("pp"); None: all. seed: the same one asks
    the same questions. The first question's time runs from when the cell does.

    An answer is a number with or without its unit: 31.4 GB, 2/3, 43.8%. What was finished is kept,
    on disk. For an unknown name the box lists similar ones.
    """
    try:
        return DrillRound(drills_of(what), seed)
    except UnknownDrill as error:
        return Shown(f"{error}.")


def case(difficulty: int = 1, seed: int | None = None, room: str = "slow") -> DrillRound:
    """Ask for the fault of a run. Two trainings run, with a hidden fault and without it.

    room: "slow", where an answer is a line: cause, rank and expected gain; or "rl", reinforcement
    learning of a language model, where it is the name of a fault. difficulty: 1 to 5, or 1 to 3 in
    room rl, see `labkit.interview.case_files`. seed: the same one draws the same fault. ValueError
    for another room or difficulty.
    """
    return DrillRound([case_of_room(room, difficulty)], seed)


class DrillQuestion:
    """A question that is being answered. `widget` shows it; put it into a `page`.

    Its methods do what its controls do; `asked` has the tries, the traps and, at the end, the
    rating.
    """

    def __init__(
        self, asked: Asked, heading: str = "", on_over: Callable[[], object] = lambda: None
    ) -> None:
        """heading: its place in a round. on_over: called once, after it was rated."""
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
        """Return whether it was rated."""
        return self.asked.rating is not None

    def focus(self) -> None:
        """Move the cursor to the text field."""
        self._entry.focus()

    def submit(self, text: str) -> Ruling | None:
        """Rule on an answer; the right one, or the second wrong one, ends the question."""
        if self.is_over:
            return None
        if not text.strip():
            say(self._ruling, "Type a number first, or choose Show the answer.")
            return None
        if self.asked.is_repeated(text):
            say(self._ruling, f"{self._ruled_html} <p>{REPEATED_ANSWER}</p>")
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
        rating, captured = capture_warnings(self.asked.finish)
        self.is_stored = not captured.is_unwritten
        self._entry.disabled = True
        show(self._controls, False)
        say(self._end, _solution_html(self.asked) + captured.html + self._outcome_html())
        self._on_over()
        return rating

    def _outcome_html(self) -> str:
        rated = f"Rated <b>{self.asked.rating}</b>"
        if not self.is_stored:
            return f"<p>{rated}. This rating is <b>not stored</b>.</p>"
        back = "; when to ask again needs the package fsrs: pip install fsrs"
        if scheduling.is_installed():
            state, _ = capture_warnings(lambda: practice.state(self.asked.drill.subject))
            wait = "" if state is None else practice.in_words(state.due_s - clock.now_s())
            back = f", asked again in {wait}" if wait else ""
        return f"<p>{rated}: stored{escape(back)}. {self._place_html()}</p>"

    def _place_html(self) -> str:
        drill = self.asked.drill
        topic = load_topics()[drill.topic]
        is_there = topic.notebook == drill.notebook
        place = topic.place if is_there else f"notebooks/{drill.notebook}.ipynb"
        return f"To see it: the notebook {link(place)}." if drill.notebook else ""


def prompt_html(asked: Asked, heading: str = "") -> str:
    """Return the question, with its numbers."""
    drill = asked.drill
    title = load_topics()[drill.topic].title
    words = [heading, drill.title, f"{drill.topic}, {title}", f"for {drill.level}"]
    return (
        f'<div class="faint">{escape(" · ".join(filter(None, words)))}</div>'
        f'<div class="prompt" style="white-space: pre-line">{escape(asked.question.prompt)}</div>'
        f"{_framed(asked.question.exhibit, 'The run: its figures, of every rank')}"
    )


def _framed(exhibit: Exhibit, title: str) -> str:
    """Put a page with a style of its own into a frame; title: what a screen reader calls it."""
    if not exhibit.page:
        return ""
    return (
        f'<iframe title="{title}" srcdoc="{escape(exhibit.page)}" tabindex="0" '
        'style="width: 100%; height: 34em; border: 0"></iframe>'
    )


def answer_label(question: Question) -> str:
    """Return the text beside the field: in which unit a bare number is read."""
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
