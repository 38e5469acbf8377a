"""hint, solution and reset: help for a learner between two checks. Each call is recorded.

context is for a tutor, such as a coding assistant.

Also the learner's position in the course: the standing of each exercise, and the next one to do.
"""

import ast
import html
import itertools
from dataclasses import dataclass

from labkit import progress
from labkit.grade.catalog import NUM_HINTS, get_exercise, load_catalog
from labkit.grade.stubs import stub_of
from labkit.grade.verdict import Outcome
from labkit.grade.workspace import Workspace, find_learners_workspace, find_workspace

HINT_TITLES = ("the concept", "the invariant", "the first line that goes wrong")


@dataclass(frozen=True, slots=True, repr=False)
class Note:
    """A text with a title, for a notebook, a terminal or print."""

    title: str
    text: str
    is_code: bool = False

    def __repr__(self) -> str:
        return f"{self.title}\n\n{self.text}"

    def _repr_html_(self) -> str:
        text = html.escape(self.text)
        style = "white-space:pre-wrap" if self.is_code else "white-space:pre-line;max-width:60em"
        tag = "pre" if self.is_code else "div"
        return f'<b>{html.escape(self.title)}</b><{tag} style="{style}">{text}</{tag}>'


def hint(name: str, number: int | None = None) -> Note:
    """Return the next of the exercise's three hints, or hint `number` (1 to 3).

    Raises UnknownExercise, and ValueError for a number that is not 1, 2 or 3.
    """
    exercise = get_exercise(name)
    if number is None:
        seen = [e.detail.get("number", 0) for e in _events_since_reset(name) if e.kind == "hint"]
        number = min(max(seen, default=0) + 1, NUM_HINTS)
    if number not in range(1, NUM_HINTS + 1):
        raise ValueError(f"hint {number} of {name}: there are hints 1 to {NUM_HINTS}")
    progress.record("hint", name, number=number)
    text = exercise.hints[number - 1]
    if number == NUM_HINTS:
        text += f'\n\nThat was the last hint. solution("{name}") shows the solution.'
    title = f"{name}, hint {number} of {NUM_HINTS}: {HINT_TITLES[number - 1]}"
    return Note(title, text)


def context(name: str, *, workspace: Workspace | None = None) -> Note:
    """Return what a tutor needs to know: the task, what was tried, the hints seen, what is next.

    It gives no new hint, and records nothing. AGENTS.md says how a tutor uses it.
    """
    workspace = workspace or find_workspace()
    exercise = get_exercise(name)
    events = _events_since_reset(name)
    seen = sorted({e.detail.get("number", 0) for e in events if e.kind == "hint"})
    checks = [event.detail for event in events if event.kind == "check"]
    tried = [each for each in checks if each.get("outcome") != Outcome.NOT_ATTEMPTED.value]
    if has_passed(name):
        following = "It is passed: ask the follow-up questions below."
    elif not tried:
        following = "Nothing was checked yet: ask what happens on two ranks, then for a first try."
    elif len(seen) < NUM_HINTS:
        following = (
            "Ask what they tried and what they make of the verdict. If they are stuck, "
            f"`labkit hint {name}` gives hint {max(seen, default=0) + 1} of {NUM_HINTS}."
        )
    else:
        following = (
            "All hints were given: look at one line after the other with them. They may ask for "
            f"`labkit solution {name}`; do not run it for them."
        )
    last = tried[-1] if tried else {}
    verdict = ", ".join(filter(None, [last.get("outcome", ""), last.get("diagnosis") or ""]))
    hints_given = [f"{HINT_TITLES[n - 1]}: {exercise.hints[n - 1]}" for n in seen if n]
    parts = {
        "Rules": "You are a tutor: AGENTS.md. Never write the function, and never open solutions/.",
        "Next": following,
        "Their file": workspace.shown(workspace.exercise(name)),
        "Checks": f"{len(tried)} of an answer; the last: {verdict}" if tried else "none",
        "Hints given": "\n".join(hints_given) or "none",
        "Follow-up questions": "\n".join(exercise.follow_ups),
        "The task": ast.get_docstring(ast.parse(stub_of(name, workspace))) or "",
    }
    text = "\n\n".join(f"## {title}\n{text}" for title, text in parts.items())
    return Note(f"{name}: {exercise.title}", text)


def solution(name: str, *, confirm: bool = False, workspace: Workspace | None = None) -> Note:
    """Return the solution. Before a pass it takes `confirm=True`, and the progress records it."""
    workspace = workspace or find_workspace()
    exercise = get_exercise(name)
    passed = has_passed(name)
    if not passed and not confirm:
        return Note(
            f"{name}: not passed yet",
            f"{exercise.title} teaches most to those who write it. There are {NUM_HINTS} hints: "
            f'hint("{name}").\nTo see the solution all the same: solution("{name}", confirm=True). '
            "It will be remembered that you did.",
        )
    text = workspace.solution_text(name)
    progress.record("solution", name, after_a_pass=passed)
    return Note(f"The solution of {name}", text, is_code=True)


def reset(name: str, *, workspace: Workspace | None = None) -> Note:
    """Restore the stub; your file is kept as exercises/backups/<name>-<number>.py.

    Raises UnknownExercise, and WorkspaceNotFound where there are no files of a learner.
    """
    workspace = find_learners_workspace(workspace)
    get_exercise(name)
    path, stub = workspace.exercise(name), stub_of(name, workspace).encode()
    shown = workspace.shown(path)
    if not path.exists():
        path.write_bytes(stub)
        message = f"{shown} was missing, and is back."
    elif path.read_bytes() == stub:
        message = f"{shown} is the stub already."
    else:
        kept = _back_up(name, path.read_bytes(), workspace)
        path.write_bytes(stub)
        message = f"{shown} is the stub again. What you had is kept in {kept}."
    progress.record("reset", name)
    return Note(f"{name}: reset", message)


def has_passed(name: str) -> bool:
    """Return whether a check of the exercise has ever passed on this machine."""
    checks = progress.events(name, "check")
    return any(event.detail.get("outcome") == Outcome.PASSED.value for event in checks)


def standings() -> dict[str, str]:
    """Return each exercise's standing, in the catalog's order: `passed`, the outcome of the last
    check, or `not attempted`."""
    events: dict[str, list[progress.Event]] = {name: [] for name in load_catalog()}
    for event in progress.events():
        if event.subject in events:
            events[event.subject].append(event)
    return {name: _standing(of_one) for name, of_one in events.items()}


def _standing(events: list[progress.Event]) -> str:
    """Return the standing that results from the events of one exercise, oldest first."""
    kinds = [(event.kind, event.detail.get("outcome")) for event in events]
    a_pass = ("check", Outcome.PASSED.value)
    if a_pass in kinds:
        seen_before = any(kind == "solution" for kind, _ in kinds[: kinds.index(a_pass)])
        return "passed (after seeing the solution)" if seen_before else "passed"
    outcomes = [event.detail.get("outcome", "?") for event in events if event.kind == "check"]
    return outcomes[-1] if outcomes else Outcome.NOT_ATTEMPTED.value


def is_passed(standing: str) -> bool:
    """Return whether a standing, as `labkit list` shows it, says that the exercise was passed."""
    return standing.startswith(Outcome.PASSED.value)


def where_to_go_on() -> str:
    """Return the exercise that was checked last; if it is passed, the next open one.

    A check of a stub does not count, because `labkit check` without a name checks all exercises.
    """
    known = standings()
    stub = Outcome.NOT_ATTEMPTED.value
    checks = [each for each in progress.events(kind="check") if each.detail.get("outcome") != stub]
    last = next((each.subject for each in reversed(checks) if each.subject in known), None)
    if last is None:
        return next(iter(known))
    return next_open(last) if is_passed(known[last]) else last


def next_open(name: str) -> str:
    """Return the next exercise after `name` that is not passed; after the last comes the first.

    If all others are passed, return the next one.
    """
    known = standings()
    names = list(known)
    place = names.index(name)
    others = names[place + 1 :] + names[:place]
    still_open = [other for other in others if not is_passed(known[other])]
    return [*still_open, *others, name][0]


def _back_up(name: str, content: bytes, workspace: Workspace) -> str:
    """Write `content` under the first free number; return the path as messages show it."""
    workspace.backups.mkdir(exist_ok=True)
    paths = (workspace.backups / f"{name}-{number}.py" for number in itertools.count(1))
    path = next(path for path in paths if not path.exists())
    path.write_bytes(content)
    return workspace.shown(path)


def _events_since_reset(name: str) -> list[progress.Event]:
    events = progress.events(name)
    resets = [number for number, event in enumerate(events) if event.kind == "reset"]
    return events[resets[-1] + 1 :] if resets else events
