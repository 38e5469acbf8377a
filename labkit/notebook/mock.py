"""A mock interview in a notebook: a clock, one item after another, and the report.

mock_interview(45, "senior")            begins with its Start button
mock_interview(30, "junior", seed=3)    asks the same each time

    Mock interview · senior · 45 minutes
    41:12 left of 45:00 · this item: 2:31 of 4:00
    2 of 10: a question, about 4 minutes.
    [the item, as `card`, `drill` and the exercises ask it]
    (Next) (Skip) (End the interview)

When the time is up, the item in hand is finished, and the report follows. Ending the interview
before that gives up the item in hand: it counts 0, and is not stored as an answer. mock_items.py
has the items.
"""

import os
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from labkit.interview.mock import Interview, Plan, Report, plan_interview
from labkit.interview.mock import interview as asking
from labkit.interview.mock.interview import Scored
from labkit.interview.mock.report import write_report
from labkit.interview.page import html_of
from labkit.notebook.controls import (
    KEEPS_FILES,
    Ticker,
    button,
    capture_warnings,
    note,
    page,
    row,
    say,
    show,
)
from labkit.notebook.mock_items import ItemView, view_of
from labkit.notebook.shown import WithWidget, box, run_it
from labkit.progress import clock

_SKIP = "Skip: no answer, which counts 0 and is stored as not known"
_SURE = "The interview is not over. Press End the interview again to end it here."
_RULES = (
    "Answer aloud, then grade yourself by what an interviewer listens for. Type the numbers of "
    "drills, and write an exercise, if there is one, in its file. Each grade is stored when it is "
    "given. After a restart the clock and the report are lost, and no grade."
)


class MockInterview(WithWidget):
    """The box that `mock_interview` shows. `start`, `next`, `skip` and `end` are its buttons."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        """See `mock_interview`."""
        self.plan, self._clock_s = plan, clock
        self.interview: Interview | None = None
        self.view: ItemView | None = None
        self.report: ReportView | None = None
        self._ticker = Ticker(self._tick)
        self._is_sure = False
        self._rules = widgets.HTML(f"<p>{escape(asking.planned(plan))}. {escape(_RULES)}</p>")
        self._clock, self._place = widgets.HTML(), widgets.HTML()
        self._clock_below = (
            widgets.HTML()
        )  # beside the buttons: an answer scrolls the other one out of sight
        self._item, self._note = widgets.VBox(), note()
        self._start = button("Start", self.start, tooltip="Start the interview and its clock")
        self._next, self._skip = (
            button("Next", self.next),
            button("Skip, for 0 points", self.skip, tooltip=_SKIP),
        )
        self._end = button("End the interview", self.end, tooltip="End it, and see the report")
        self._buttons = (self._start, self._next, self._skip, self._end)
        title = widgets.HTML(f'<div class="prompt">{escape(_title(plan))}</div>')
        parts = [title, self._rules, self._clock, self._place, self._item, self._note]
        self._widget = page([*parts, row([*self._buttons, self._clock_below])])
        self._show_only(self._start)

    @property
    def is_going(self) -> bool:
        """Return whether it was started, and is not over."""
        return self.interview is not None and self.report is None

    def start(self) -> None:
        """Start the clock."""
        if self.interview is None:
            self.interview = Interview(self.plan, self._clock_s)
            show(self._rules, False)
            self._ask()

    def next(self) -> None:
        """Show the next item; the report, if there is none or the time is up."""
        if self.interview is not None and self.report is None and self.view is None:
            self._report() if self.interview.next_item is None else self._ask()

    def skip(self) -> None:
        """Give up the current item, and go on."""
        if self.is_going and self.view is not None:
            self.view.skip()
            self.next()

    def end(self) -> None:
        """End the interview early, after asking for confirmation once."""
        if self.is_going and not self._is_sure:
            self._is_sure = True
            say(self._note, _SURE)
        elif self.is_going:
            self._report()

    def leave(self) -> None:
        """End the interview because another one starts."""
        if self.is_going:
            self._report()
            say(self._note, "This interview ended here, because another one was started.")

    def _ask(self) -> None:
        assert self.interview is not None
        item = self.interview.next_item
        assert item is not None
        self._is_sure = False
        say(self._note, "")
        self._place.value = f"<b>{escape(asking.announced(self.interview, item))}</b>"

        def on_done(scored: Scored) -> None:
            self._on_done(view, scored)

        self.view = view = view_of(item, self.plan.seed, on_done)
        self._item.children = (view.widget,)
        self._show_only(self._skip, self._end)
        self._tick()
        self._ticker.start()
        view.focus()

    def _on_done(self, view: ItemView, scored: Scored) -> None:
        # An item that was left on another page of the browser scores nothing any more.
        if self.interview is None or self.report is not None or view is not self.view:
            return
        self.interview.take(self.plan.items[len(self.interview.taken)], *scored)
        self.view = None
        is_last = self.interview.next_item is None
        self._next.description = "See the report" if is_last else "Next"
        self._show_only(self._next, *([] if is_last else [self._end]))
        self._tick()
        self._next.focus()

    def _report(self) -> None:
        assert self.interview is not None
        self._ticker.stop()
        if self.view is not None:
            self.interview.give_up()
        self.view, self.report = None, ReportView(self.interview.report)
        self._clock.value = self._clock_below.value = self._place.value = ""
        self._item.children = (self.report.widget,)
        say(self._note, "")
        self._show_only()
        self.report.focus()

    def _tick(self) -> bool:
        """Show the time. Return whether to go on: not after the end, nor for a closed box."""
        if not self.is_going or self.interview is None or self._clock.comm is None:
            return False
        self._clock.value = clock_html(self.interview, is_answered=self.view is None)
        self._clock_below.value = f'<div aria-hidden="true">{self._clock.value}</div>'
        return self.interview.left_s > 0

    def _show_only(self, *buttons: Any) -> None:
        for each in self._buttons:
            show(each, each in buttons)

    def __repr__(self) -> str:
        return f"{_title(self.plan)}\n{asking.planned(self.plan)}."

    def _static_html(self) -> str:
        about = escape(asking.planned(self.plan))
        static = f"<b>{escape(_title(self.plan))}</b><div>{about}.</div>"
        return box(static + run_it("be interviewed."))


# One interview at a time: to run the cell again ends the one before, and its clock.
_latest: list[MockInterview] = []


def mock_interview(
    minutes: int = 45, level: str = "senior", seed: int | None = None
) -> MockInterview:
    """Show a timed interview, questions, drills, one exercise, as the last line of a cell.

    minutes: 6 to 240. level: junior, senior or expert. seed: the same one asks the same; None:
    another interview each time. Raises ValueError or TypeError for others. What is stored is what
    `labkit mock` stores; an earlier interview of this kernel that still goes on ends, with its
    report.
    """
    made = MockInterview(plan_interview(minutes, level, seed))
    while _latest:
        _latest.pop().leave()
    _latest.append(made)
    return made


def clock_html(interview: Interview, *, is_answered: bool = False) -> str:
    """Return the time that is left, of the interview and of the item in hand."""
    text = f"{_clock_text(interview.left_s)} left of {_clock_text(interview.plan.minutes * 60)}"
    if interview.left_s <= 0:
        text = "Time is up. Finish what you are at; the report follows."
    elif not is_answered:
        left_s = interview.item_left_s
        of_item = f"{_clock_text(left_s)} left" if left_s >= 0 else f"{_clock_text(-left_s)} over"
        text += f" · this item: {of_item}"
    # A screen reader would read a timer aloud each second, which is hard to think beside.
    return f'<div role="timer" aria-live="off"><b>{text}</b></div>'


def _clock_text(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02}"


def _title(plan: Plan) -> str:
    return f"Mock interview · {plan.level} · {plan.minutes} minutes"


_ENDINGS = ("html", "md")


class ReportView:
    """The report of an interview. `save(ending)` does what its buttons do."""

    def __init__(self, make: Callable[[], Report]) -> None:
        """make: the report, which the progress store remembers when it is made."""
        self.report, captured = capture_warnings(make)
        self._is_stored = not captured.is_unwritten
        day = clock.day_of(clock.now_s())
        self._file = widgets.Text(
            value=f"~/mock_interview_{day}",
            description="Save the report as",
            layout={"width": "26em"},
        )
        self._save_html = button("Save as HTML", lambda: self.save("html"))
        self._save_markdown = button("Save as Markdown", lambda: self.save("md"))
        self._saved = note()
        summary, details = _pages(self.report)
        save = widgets.VBox([self._file, row([self._save_html, self._save_markdown]), self._saved])
        show(save, KEEPS_FILES)
        report = widgets.HTML(summary + captured.html + self._stored_html())
        self.widget = widgets.VBox([report, save, widgets.HTML(details)])

    def focus(self) -> None:
        """Move the cursor to the first control."""
        self._save_html.focus()

    def save(self, ending: str) -> Path | None:
        """Write the report to the file in the field; the page says where it is, or the error."""
        file = named(self._file.value, ending)
        try:
            write_report(self.report, file)
        except FileExistsError:
            say(self._saved, f"✗ {_code(file)} is there already: choose another name.")
        except (OSError, ValueError) as error:
            say(self._saved, f"✗ Not saved: {escape(str(error))}.")
        else:
            say(self._saved, f"✓ The report is in {_code(file)}.")
            return file
        return None

    def _stored_html(self) -> str:
        if not self.report.taken:
            return ""
        if not self._is_stored:
            return "<p>This interview is <b>not stored</b>.</p>"
        return (
            '<p class="faint">Stored: each answer when it was given, and now the interview as a '
            "whole. <code>dashboard()</code> shows both.</p>"
        )


def named(text: str, ending: str) -> Path:
    """Return the file that `text` means, with either of the two endings, or none."""
    stem = text.strip()
    for each in _ENDINGS:
        stem = stem.removesuffix(f".{each}")
    return Path(os.path.expanduser(f"{stem}.{ending}")).absolute()  # "~nobody/x" stays as it is


def _pages(report: Report) -> tuple[str, str]:
    """Return the result by topic, and the questions. The page has the title already."""
    _, _, body = report.markdown.partition("\n")
    lowered = body.replace("\n## ", "\n#### ")  # below the headings of the notebook
    summary, heading, details = lowered.partition("\n#### What was asked")
    return f'<div class="prompt">Report</div>{html_of(summary)}', html_of(heading + details)


def _code(file: Path) -> str:
    return f"<code>{escape(str(file))}</code>"
