"""Where a learner goes on: the exercise worked on last, the next open one, the one before."""

from labkit import progress
from labkit.grade.catalog import load_catalog
from labkit.grade.desk import standings
from labkit.grade.outcome import Outcome
from labkit.grade.workspace import Workspace

_WORK = ("check", "hint", "reset", "solution")


def where_to_go_on(workspace: Workspace | None = None) -> str:
    """The exercise worked on last; once that is passed, the next open one.

    Without any work yet it is the first. A check of a stub is no work: `labkit check` without a
    name does that to all of them.
    """
    names = list(load_catalog(workspace))
    worked = [e.subject for e in progress.events() if _is_work(e) and e.subject in names]
    if worked and not is_passed(standings(workspace)[worked[-1]]):
        return worked[-1]
    return next_open(worked[-1] if worked else names[-1], workspace)


def next_open(name: str, workspace: Workspace | None = None) -> str:
    """The next exercise after `name` that is not passed, from the first again after the last.

    Where all others are passed, the next one.
    """
    known = standings(workspace)
    names = list(known)
    place = names.index(name)
    others = names[place + 1 :] + names[:place]
    still_open = [other for other in others if not is_passed(known[other])]
    return [*still_open, *others, name][0]


def before(name: str, workspace: Workspace | None = None) -> str:
    """The exercise before `name` in the catalog; before the first comes the last."""
    names = list(load_catalog(workspace))
    return names[names.index(name) - 1]


def num_passed(workspace: Workspace | None = None) -> tuple[int, int]:
    """How many exercises are passed, and how many there are."""
    known = standings(workspace).values()
    return sum(map(is_passed, known)), len(known)


def is_passed(standing: str) -> bool:
    """Whether a standing, as `labkit list` says it, is that of an exercise that was passed."""
    return standing.startswith(Outcome.PASSED.value)


def _is_work(event: progress.Event) -> bool:
    is_stub = event.detail.get("outcome") == Outcome.NOT_ATTEMPTED.value
    return event.kind in _WORK and not is_stub
