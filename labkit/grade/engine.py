"""check: one exercise, real ranks, one verdict. Notebook, terminal and pytest all come here."""

import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from labkit.grade import progress
from labkit.grade.catalog import get_exercise
from labkit.grade.evidence import Attempt, Case, collect
from labkit.grade.exchange import new_exchange
from labkit.grade.graders import Grader, load_grader
from labkit.grade.harness import Job, attempt_cases
from labkit.grade.judge import judge
from labkit.grade.outcome import Finding
from labkit.grade.submission import Submission, SubmissionLike
from labkit.grade.verdict import Verdict
from labkit.grade.workspace import Workspace, find_workspace
from labkit.launch import launch
from labkit.launch.errors import RunError

_LONGEST_S = 86_400.0
_STALL_S = 2.0  # all ranks wait and no journal grows: a deadlock


def check(
    name: str,
    submission: SubmissionLike = None,
    *,
    seed: int | None = None,
    timeout_s: float = 10.0,
    workspace: Workspace | None = None,
) -> Verdict:
    """Grade the exercise `name` on real ranks, and return the verdict.

    submission: None for the learner's own exercises/<name>.py, or the path of another file, or a
    function, such as one written in a notebook cell.
    seed: repeats the inputs of an earlier check; without it they are new every time.
    timeout_s: for each world size; code that takes longer counts as hung.

    Raises UnknownExercise, NothingToGrade (no such file) and WorkspaceNotFound, each saying what
    to do, and TypeError or ValueError for another seed or timeout; whatever is wrong with the code
    itself is in the verdict.
    """
    started_s = time.perf_counter()
    _require_plain(seed, timeout_s)
    workspace = workspace or find_workspace()
    exercise = get_exercise(name, workspace)
    code = Submission.read(submission, name, workspace)
    grader = load_grader(name)
    seed = secrets.randbelow(2**31) if seed is None else seed
    graded = _graded(code, grader, seed, timeout_s)
    verdict = Verdict(
        exercise,
        graded.finding,
        shown=grader.shown_by_a_pass,
        world_sizes=tuple(graded.world_sizes),
        num_cases=graded.num_cases,
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


@dataclass
class _Graded:
    finding: Finding | None = None
    world_sizes: list[int] = field(default_factory=list)
    num_cases: int = 0


def _graded(code: Submission, grader: Grader, seed: int, timeout_s: float) -> _Graded:
    """Launch by launch, until one shows a mistake."""
    graded = _Graded(code.finding_before_running())
    for world_size in grader.world_sizes:
        if graded.finding is not None:
            break
        cases = grader.cases(world_size, random.Random(f"{seed}/{world_size}"))
        graded.world_sizes.append(world_size)
        graded.num_cases += len(cases)
        attempt = _attempt(code, cases, world_size, grader.allowed, timeout_s)
        graded.finding = judge(attempt, grader)
    return graded


def _attempt(
    code: Submission,
    cases: Sequence[Case],
    world_size: int,
    allowed: Sequence[str],
    timeout_s: float,
) -> Attempt:
    """One launch: all cases of one world size."""
    with new_exchange() as exchange:
        for rank in range(world_size):
            exchange.put_arguments(rank, [case.arguments[rank] for case in cases])
        job = Job(
            exchange,
            code.function,
            code.source,
            code.filename,
            code.function_object,
            tuple(allowed),
            tuple(case.delays_s for case in cases),
            tuple(case.altered for case in cases),
        )
        try:
            ended = launch(
                attempt_cases,
                world_size,
                [(job,)],
                timeout=timeout_s,
                device="cpu",
                stall=_STALL_S,
                echo=False,
            )
        except RunError as error:
            return collect(cases, world_size, exchange, error)
        return collect(cases, world_size, exchange, ended)


def _call(name: str, code: Submission, seed: int) -> str:
    arguments = [f'"{name}"', code.argument, f"seed={seed}"]
    return f"check({', '.join(argument for argument in arguments if argument)})"


def _remember(verdict: Verdict) -> None:
    where = None if verdict.finding is None else verdict.finding.where
    progress.record(
        "check",
        verdict.exercise.name,
        outcome=verdict.outcome.value,
        diagnosis=verdict.diagnosis,
        where=None if where is None else [where.file, where.line, where.function],
        seed=verdict.seed,
        seconds=round(verdict.seconds, 3),
    )
