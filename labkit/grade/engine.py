"""check: one exercise, one verdict. Notebook, terminal and pytest all come here."""

import secrets
import time

from labkit.grade.catalog import get_exercise
from labkit.grade.graders import load_grader
from labkit.grade.outcome import Graded, Outcome
from labkit.grade.submission import Submission, SubmissionLike
from labkit.grade.verdict import Verdict
from labkit.grade.workspace import Workspace, find_workspace
from labkit.progress import graded as practised

_LONGEST_S = 86_400.0


def check(
    name: str,
    submission: SubmissionLike = None,
    *,
    seed: int | None = None,
    timeout_s: float = 10.0,
    workspace: Workspace | None = None,
) -> Verdict:
    """Grade the exercise `name` in fresh processes, and return the verdict.

    submission: None for the learner's own exercises/<name>.py, or the path of another file, or a
    function, such as one written in a notebook cell (a list of them where there are several).
    seed: repeats the inputs of an earlier check; without it they are new every time.
    timeout_s: for each launch of the code; what takes longer counts as hung.

    Raises UnknownExercise, NothingToGrade (no such file) and WorkspaceNotFound, each saying what
    to do, and TypeError or ValueError for another seed or timeout; whatever is wrong with the code
    itself is in the verdict.
    """
    started_s = time.perf_counter()
    _require_plain(seed, timeout_s)
    workspace = workspace or find_workspace()
    exercise = get_exercise(name, workspace)
    grader = load_grader(name)
    code = Submission.read(submission, name, grader.functions, workspace)
    seed = secrets.randbelow(2**31) if seed is None else seed
    graded = Graded(code.finding_before_running())
    if graded.finding is None:
        graded = grader.grade(code, seed, timeout_s)
    verdict = Verdict(
        exercise,
        graded.finding,
        shown=grader.shown_by_a_pass,
        tried=graded.tried,
        seed=seed,
        call=_call(name, code, seed),
        seconds=time.perf_counter() - started_s,
    )
    if code.is_own:
        _remember(verdict)
    return verdict


def _require_plain(seed: int | None, timeout_s: float) -> None:
    """What a launch would refuse must not look like a mistake of the code under test."""
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise TypeError(f"seed={seed!r} is no whole number; give one, or leave it out")
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool):
        raise TypeError(f"timeout_s={timeout_s!r} is no number of seconds; try 10")
    if not 0.1 <= timeout_s <= _LONGEST_S:
        raise ValueError(
            f"timeout_s={timeout_s!r}: a launch alone takes a tenth of a second, and nothing is "
            f"waited for longer than a day; give 0.1 to {_LONGEST_S:g}"
        )


def _call(name: str, code: Submission, seed: int) -> str:
    arguments = [f'"{name}"', code.argument, f"seed={seed}"]
    return f"check({', '.join(argument for argument in arguments if argument)})"


def _remember(verdict: Verdict) -> None:
    where = None if verdict.finding is None else verdict.finding.where
    practised.record_check(
        verdict.exercise.name,
        attempted=verdict.outcome is not Outcome.NOT_ATTEMPTED,
        passed=bool(verdict),
        outcome=verdict.outcome.value,
        diagnosis=verdict.diagnosis,
        where=None if where is None else [where.file, where.line, where.function],
        seed=verdict.seed,
        seconds=round(verdict.seconds, 3),
    )
