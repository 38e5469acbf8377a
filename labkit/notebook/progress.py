"""The dashboard: days in a row, what is due, mastery, exercises and drills on one page.

dashboard()                     of the progress store, with a button that reads it again
dashboard(standing_of(...))     of any events, such as a made-up history

On the page each length has a number beside it, and each colour a word.
"""

from collections.abc import Iterable, Sequence
from datetime import date
from html import escape

import ipywidgets as widgets

from labkit import arguments
from labkit.interview.summary import Standing, Tally, notebooks_of, standing, standing_of
from labkit.notebook.cards import link
from labkit.notebook.controls import (
    KEEPS_FILES,
    CapturedWarnings,
    button,
    capture_warnings,
    page,
    row,
)
from labkit.notebook.shown import BORDER, FAINT, WithWidget, box, run_it
from labkit.progress import clock
from labkit.progress.event import Event
from labkit.progress.statistics import ExerciseRow, Mastery

_LATEST = 5  # mock interviews that are shown
_BAR = "var(--jp-brand-color1, #1976d2)"
_GROOVE = "var(--jp-layout-color3, #e0e0e0)"
_FIRST_STEPS = (
    "Open {start}, run it, and commit to a number before the run.",
    "Answer a question card, aloud, in a minute: <code>card()</code>.",
    "Answer three drills, numbers with pen and paper: <code>drill()</code>.",
    'Write {exercise}, and check it: <code>check("ring_all_reduce")</code>.',
)
_FIRST_STEPS_ON_THE_SITE = (
    'Answer <a href="../try/cards.html">a question card</a>, aloud, in a minute.',
    'Answer three <a href="../try/drills.html">drills</a>, numbers with pen and paper.',
    'Vote on <a href="../claims/index.html">a claim</a>, and read the verdict.',
)


class Dashboard(WithWidget):
    """The box that `dashboard` shows. `refresh()` does what its button does; `found` is shown."""

    def __init__(self, given: Standing | None) -> None:
        """given: the Standing to show; None: that of the store, now."""
        self._given = given
        self.found = given or standing_of([], clock.now_s())
        self._page, self._status = widgets.HTML(), widgets.HTML()
        parts = [self._page]
        if given is None:
            refresh = button("Refresh", self.refresh, tooltip="Read the progress store again")
            parts.append(row([refresh, self._status]))
        self._widget = page(parts)
        self._show(CapturedWarnings()) if given else self.refresh()

    def refresh(self) -> Standing:
        """Read the store again. Its problems are shown above its content."""
        self.found, captured = capture_warnings(standing)
        self._show(captured)
        time = f"{clock.moment_of(self.found.now_s):%H:%M:%S}"
        self._status.value = f'<span role="status" class="faint">As of {time}</span>'
        return self.found

    def _show(self, captured: CapturedWarnings) -> None:
        # An unreadable store may not be empty.
        is_unknown = captured.is_unread and self.found.is_new
        self._page.value = captured.html + ("" if is_unknown else page_html(self.found))

    def __repr__(self) -> str:
        if self._given is None:
            return "Your progress: run this cell to see it."
        return page_text(self._given)

    def _static_html(self) -> str:
        if self._given is not None:
            return box(page_html(self._given))
        return box(f"<b>Your progress</b><br>{run_it('see it.')}")


def dashboard(of: Standing | None = None) -> Dashboard:
    """Show how far you are, as the last line of a cell. Changes nothing in the progress store.

    of: another Standing, such as `standing_of` makes of events.
    """
    if of is not None:
        arguments.instance(
            "of", of, Standing, "leave it out, or give what standing_of(events) made"
        )
    return Dashboard(of)


def page_html(found: Standing) -> str:
    """Return the page; for a new learner, what to do first."""
    if found.is_new:
        return _first_page()
    return "".join(
        (
            _headline(found),
            _days(found.due_days),
            _mastery(found),
            _exercises(found.exercises),
            _tallies(found),
            _interviews(found.interviews),
        )
    )


def page_text(found: Standing) -> str:
    """Return a short text form, for places without a browser."""
    if found.is_new:
        return "Nothing is stored yet. Begin with notebooks/00_start_here.ipynb, card() or drill()."
    lines = [f"{streak_text(found.streak)}. {due_text(found.due)}."]
    lines += [
        f"{found.topics[group].value:4.0%}  {group}, {_seen_text(found.topics[group])}"
        for group in found.weakest_first
    ]
    done = sum(row.passed_s is not None for row in found.exercises)
    lines.append(f"{done} of {len(found.exercises)} exercises solved")
    return "\n".join(lines)


def streak_text(days: int) -> str:
    """Write `3 days in a row`."""
    return f"{days} day{'' if days == 1 else 's'} in a row"


def due_text(due: dict[str, int]) -> str:
    """Write `Due now: 2 cards, 1 drill`."""
    parts = [
        f"{number} {kind}{'' if number == 1 else 's'}" for kind, number in due.items() if number
    ]
    return f"Due now: {', '.join(parts) or 'nothing'}"


def _first_page() -> str:
    start = link("notebooks/00_start_here.ipynb")
    exercise = link("exercises/ring_all_reduce.py")
    first = _FIRST_STEPS if KEEPS_FILES else _FIRST_STEPS_ON_THE_SITE
    steps = "".join(f"<li>{step.format(start=start, exercise=exercise)}</li>" for step in first)
    return (
        '<div class="prompt">Nothing is stored yet. That changes with the first answer.</div>'
        f"<p>Begin with one of these:</p><ol>{steps}</ol>"
        "<p>Then this page shows days in a row, what is due on which day, how well each topic is "
        "known and which to take next, the exercises, the drills, and how often you predicted "
        "right.</p>"
    )


def _headline(found: Standing) -> str:
    took = f'<div class="prompt">{streak_text(found.streak)} · {due_text(found.due)}</div>'
    group = found.next_topic
    if group is None:
        return f"{took}<p>Mastery needs the package fsrs: <code>pip install fsrs</code>.</p>"
    due = found.topics[group].num_due
    why = f"the weakest with something due ({due})" if due else "the weakest"
    places = ", ".join(link(f"notebooks/{name}.ipynb") for name in notebooks_of(group))
    where = f" Its notebooks: {places}." if places else ""
    return f"{took}<p>Next: <b>{escape(group)}</b>, {why}.{where}</p>"


def _days(due_days: dict[date, int]) -> str:
    most = max(due_days.values(), default=0)
    rows = [
        (_day_text(day, place), _bar(number / most if most else 0, str(number)))
        for place, (day, number) in enumerate(due_days.items())
    ]
    return _table(
        "Due in the next seven days", ("day", "cards, drills, exercises, predictions"), rows
    )


def _day_text(day: date, place: int) -> str:
    name = "by midnight, overdue included" if place == 0 else f"{day:%A}"
    return escape(f"{name}, {day:%d %b}" if place else name)


def _mastery(found: Standing) -> str:
    if not found.topics:
        return ""
    rows = []
    for group in found.weakest_first:
        known = found.topics[group]
        marked = " (next)" if group == found.next_topic else ""
        bar = _bar(known.value, f"{known.value:.0%}")
        rows.append((f"{escape(group)}{marked}", bar, _seen_text(known), str(known.num_due)))
    heading = ("topic", "chance of recall, over all of it", "practised", "due")
    return _table("Mastery by topic, the weakest first", heading, rows)


def _seen_text(known: Mastery) -> str:
    return f"{known.num_seen} of {known.num_subjects}"


def _exercises(rows: Sequence[ExerciseRow]) -> str:
    started = [row for row in rows if row.is_started]
    solved = sum(row.passed_s is not None for row in rows)
    heading = ("exercise", "solved", "attempts", "hints", "solution", "last check")
    cells = [
        (
            link(f"exercises/{row.name}.py", row.name),
            "✓ yes" if row.passed_s is not None else "not yet",
            str(row.num_tries),
            str(row.num_hints),
            "seen before" if row.solution_shown else "not seen",
            "–" if row.last_s is None else f"{clock.day_of(row.last_s):%d %b %Y}",
        )
        for row in started
    ]
    others = [row.name for row in rows if row not in started]
    caption = f"Exercises: {solved} of {len(rows)} solved"
    return _table(caption, heading, cells) + _not_started(others)


def _not_started(names: Sequence[str]) -> str:
    if not names:
        return ""
    links = ", ".join(link(f"exercises/{name}.py", name) for name in names)
    return f"<details><summary>Not started: {len(names)}</summary>{links}</details>"


def _tallies(found: Standing) -> str:
    rows = [
        (escape(group), *_right(tally), str(tally.num_at_once))
        for group, tally in found.drills.items()
    ]
    drills = _table("Drills by topic", ("topic", "right", "of answered", "at the first try"), rows)
    before = (("Predictions", found.predictions), ("Votes on claims", found.votes))
    judged = [(name, *_right(tally)) for name, tally in before if tally.num_judged]
    heading = ("what", "right", "of judged")
    return drills + _table("Predictions, and votes on claims", heading, judged)


def _interviews(held: Sequence[Event]) -> str:
    rows = [
        (
            f"{clock.day_of(event.at_s):%d %b %Y}",
            escape(event.subject),
            f"{event.detail['minutes']} min",
            f"{event.detail['score']:.0%}",
        )
        for event in held[:_LATEST]
    ]
    return _table("Mock interviews, the latest first", ("day", "level", "length", "score"), rows)


def _right(tally: Tally) -> tuple[str, str]:
    return str(tally.num_right), str(tally.num_judged)


def _bar(share: float, text: str) -> str:
    """Draw a bar with its number before it; a screen reader gets the number alone."""
    outer = f"background: {_GROOVE}; flex: 1 1 4em; max-width: 14em; height: 0.7em;"
    inner = f"background: {_BAR}; width: {share:.1%}; height: 100%;"
    return (
        '<div style="display: flex; align-items: center; gap: 0.6em; min-width: 8em;">'
        f'<span style="min-width: 3em; text-align: right;">{text}</span>'
        f'<div aria-hidden="true" style="{outer}"><div style="{inner}"></div></div></div>'
    )


def _table(caption: str, heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Make a table. Cells are HTML; the first one of a row names the row."""
    cells = list(rows)
    if not cells:
        return f'<p class="faint">{escape(caption)}: nothing yet.</p>'
    # Words stay whole: a table that is too wide for the page scrolls.
    whole = "overflow-wrap: normal;"
    faint = f"{whole} color: {FAINT};"
    head = "".join(f'<th scope="col" style="{faint}">{each}</th>' for each in heading)
    body = "".join(
        f'<tr><th scope="row" style="{whole} font-weight: normal;">{row[0]}</th>'
        + "".join(f'<td style="{whole}">{cell}</td>' for cell in row[1:])
        + "</tr>"
        for row in cells
    )
    title = "text-align: left; font-weight: 600; padding: 0.6em 0 0.2em; caption-side: top; "
    return (
        f'<table style="border-color: {BORDER};"><caption style="{title}">{escape(caption)}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
