"""The items of a mock interview as a page asks them. Each ends by itself, or is skipped.

    widget, focus()     to show, and to move the cursor
    skip()              give it up; that counts, and is stored, as an answer that is not known
    on_done(scored)     called once, with the score and what was missed

Questions and drills are those of `card` and `drill`, and stored as there. An exercise is its file,
its contract, and a button that checks it.
"""

import ast
import re
from collections.abc import Callable
from html import escape
from typing import Any, Protocol

import ipywidgets as widgets

from labkit.grade.catalog import get_exercise
from labkit.grade.verdict import Verdict
from labkit.grade.workspace import find_workspace
from labkit.interview.cards import Card, load_bank
from labkit.interview.cards import sitting as sittings
from labkit.interview.design import DesignRound, get_briefing
from labkit.interview.mock import Item
from labkit.interview.mock import interview as asking
from labkit.interview.mock.interview import GivenExercise, Scored
from labkit.interview.mock.plan import DESIGN, EXERCISE, QUESTION, STORY
from labkit.notebook.cards import CardQuestion, link
from labkit.notebook.controls import button, capture_warnings, note, row, say
from labkit.notebook.designing import DesignView
from labkit.notebook.drills import DrillQuestion

OnDone = Callable[[Scored], None]


class ItemView(Protocol):
    """The common part of the three kinds of items."""

    widget: Any

    def focus(self) -> None:
        """Move the cursor to the text field."""

    def skip(self) -> None:
        """Give it up."""


def view_of(item: Item, seed: int, on_done: OnDone) -> ItemView:
    """Return the item, ready to be answered. seed: of the interview."""
    if item.kind in (QUESTION, STORY):
        return _Question(item, on_done)
    if item.kind == DESIGN:
        return _Design(item, on_done)
    return ExerciseItem(item, on_done) if item.kind == EXERCISE else _Drill(item, seed, on_done)


class _Question:
    """A card, then a follow-up below it; its score is the share of the points, whatever the
    grades."""

    def __init__(self, item: Item, on_done: OnDone) -> None:
        self.widget, self._on_done = widgets.VBox(), on_done
        self._asked: list[CardQuestion] = []
        self._ask(load_bank()[item.name])

    def focus(self) -> None:
        """Move the cursor to the text field."""
        self.question.focus()

    def skip(self) -> None:
        """Give it up: no point that was not graded counts as said, whatever is ticked."""
        while any(each.rating is None for each in self._asked):
            self.question.give_up()

    @property
    def question(self) -> CardQuestion:
        """The question on show: the card, then its follow-up."""
        return self._asked[-1]

    def _ask(self, card: Card) -> None:
        self._asked.append(CardQuestion(card, self._on_graded))
        self.widget.children = [each.widget for each in self._asked]

    def _on_graded(self) -> None:
        follow_up = sittings.follow_up(self.question.card, self.question.said)
        if follow_up is None:
            self._on_done(asking.scored_questions((e.card, e.said) for e in self._asked))
        else:
            self._ask(follow_up)
            self.focus()


class _Drill:
    """A drill or a case, with the numbers of the interview's seed."""

    def __init__(self, item: Item, seed: int, on_done: OnDone) -> None:
        asked = asking.asked_drill(item, seed)
        self._question = DrillQuestion(asked, "", lambda: on_done(asking.scored_drill(asked)))
        self.widget, self.focus = self._question.widget, self._question.focus

    def skip(self) -> None:
        """Give up the question."""
        self._question.finish()


class _Design:
    """A design round; it ends with its report."""

    def __init__(self, item: Item, on_done: OnDone) -> None:
        round_ = DesignRound(get_briefing(item.name))
        self._view = DesignView(round_, lambda: on_done(asking.scored_design(round_)))
        self.widget, self.focus = self._view.widget, self._view.focus

    def skip(self) -> None:
        """End the round with what there is."""
        self._view.report()


# It is laid out in columns: a narrow page scrolls it, by mouse or, once it has the focus, by keys.
_CONTRACT = (
    "white-space: pre; overflow-x: auto; font-family: monospace; line-height: 1.4; "
    "font-size: var(--jp-code-font-size, 13px); color: inherit"
)
_WAIT = "Checking on real processes. The clock is shown again when it is done."


class ExerciseItem:
    """An exercise, checked as often as wanted, until it passes or is given up."""

    def __init__(self, item: Item, on_done: Callable[[Scored], None]) -> None:
        """See `labkit.notebook.mock_items`."""
        self._name, self._on_done = item.name, on_done
        self._given = GivenExercise(item.name)
        self._is_over = False
        self._check = button("Check", self.check, tooltip=f"Check {item.name} on real processes")
        self._verdict = note()
        prompt = widgets.HTML(_prompt_html(item.name, self._given.notice))
        self.widget = widgets.VBox([prompt, row([self._check]), self._verdict])

    def focus(self) -> None:
        """Move the cursor to the button: the code is written in a file."""
        self._check.focus()

    def check(self) -> Verdict | None:
        """Grade the file as it is stored now, and remember it; a pass ends the item."""
        from labkit.grade import engine  # it takes torch with it

        if self._is_over:
            return None
        say(self._verdict, _WAIT)
        self._check.disabled = True
        try:
            verdict, captured = capture_warnings(lambda: engine.check(self._name))
        except asking.CANNOT_BE_CHECKED as error:
            say(self._verdict, f"<p>✗ {escape(str(error))}</p>")
            return None
        except KeyboardInterrupt:
            say(self._verdict, "<p>✗ The check was interrupted. Nothing was stored.</p>")
            return None
        finally:
            self._check.disabled = False
        is_old = bool(verdict) and not self._given.is_new()
        refusal = f"<p>✗ {_marked(self._given.refusal)}</p>" if is_old else ""
        say(self._verdict, verdict._repr_html_() + captured.html + refusal)
        if verdict and not is_old:
            self._end(passed=True)
        return verdict

    def skip(self) -> None:
        """Give it up; earlier checks are stored already."""
        self._end(passed=False)

    def _end(self, *, passed: bool) -> None:
        if not self._is_over:
            self._is_over = self._check.disabled = True
            self._on_done(asking.scored_exercise(passed=passed))


def _prompt_html(name: str, notice: str) -> str:
    """Return title, file, what to do about code from before, and the docstring's contract."""
    exercise = get_exercise(name)
    path = f"exercises/{name}.py"
    first = f"<p><b>{_marked(notice)}</b></p>" if notice else ""
    return (
        f'<div class="faint">exercise · {escape(name)}</div>'
        f'<div class="prompt">{escape(exercise.title)}</div>'
        f"{first}<p>Write {link(path)}, save it, and press Check.</p>"
        f'<pre tabindex="0" style="{_CONTRACT}">{escape(_contract(name))}</pre>'
    )


def _marked(text: str) -> str:
    """Show commands, which stand in backquotes, as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _contract(name: str) -> str:
    """Return the docstring of the learner's file, or "" if it cannot be read any more."""
    try:
        source = find_workspace().exercise(name).read_text(encoding="utf-8")
        return ast.get_docstring(ast.parse(source)) or ""
    except (asking.CANNOT_BE_CHECKED, SyntaxError, ValueError):
        return ""
