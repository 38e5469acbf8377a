"""Grade one exercise with `check`. Notebooks, the terminal and pytest all call it.

1. submission.py reads the learner's code.
2. harness.py calls it on every rank and every case, one launch for each world size.
3. observed.py has the record: one Observed for each case.
4. findings.py looks for the first case that is wrong. It launches the exercise's known mistakes on
   the same cases: the mistake with the same wrong results is the learner's.
5. verdict.py shows the finding.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pickle
import random
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from labkit import arguments
from labkit.comm.operation import P2P_KINDS, Timeline, listed
from labkit.grade import findings
from labkit.grade.catalog import get_exercise, load_catalog
from labkit.grade.grader import Draw, Grader, OnRanks, Patch, Questions, functions_of, load_graders
from labkit.grade.harness import MARK, MEETING, Job, attempt_cases
from labkit.grade.observed import Case, Event, Observation, Observed, RankObservation
from labkit.grade.submission import Code, Submission, SubmissionLike
from labkit.grade.unfinished import is_busy_machine
from labkit.grade.verdict import Finding, Outcome, Verdict
from labkit.grade.workspace import Workspace, find_learners_workspace, find_workspace
from labkit.launch import launch
from labkit.launch.errors import RunError
from labkit.progress import practice

_RETRY_TIMEOUT_FACTOR = 4.0
_STALL_S = 2.0
_MISTAKES_TIMEOUT_S = 60.0


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
    function, such as one written in a notebook cell.
    seed: repeats the inputs of an earlier check; without it they are new every time.
    timeout_s: for each launch of the code; a launch that takes longer counts as hung. Launches of
    the exercise's known mistakes have a minute instead.

    Raises UnknownExercise, NothingToGrade (no such file), WorkspaceNotFound, TypeError for a
    function that cannot be sent to the ranks and for a timeout that is no number, and ValueError
    for a timeout that is not above 0. A fault of the learner's code is in the verdict instead.
    """
    arguments.number("timeout", timeout_s, "seconds for each launch", above=0)
    workspace = workspace or find_workspace()
    exercise = get_exercise(name)
    if submission is None:
        workspace = find_learners_workspace(workspace)
    names = list(load_catalog())
    code = Submission.read(submission, name, functions_of(name), workspace)
    seed = secrets.randbelow(2**31) if seed is None else seed
    finding, shown, call = code.finding_before_running(), "", ""
    if finding is None:
        finding, shown = _graded(load_graders(name), code, seed, timeout_s)
        words = [f'"{name}"', *[code.argument] * bool(code.argument), f"seed={seed}"]
        call = f"check({', '.join(words)})"
    next_name = (names[names.index(name) + 1 :] or [""])[0]
    verdict = Verdict(exercise, finding, shown, seed, call, next_name)
    if code.is_own:
        practice.record_check(
            name,
            attempted=verdict.outcome is not Outcome.NOT_ATTEMPTED,
            passed=bool(verdict),
            outcome=verdict.outcome.value,
            diagnosis=verdict.diagnosis,
        )
    return verdict


def _graded(
    parts: tuple[Grader, ...], code: Submission, seed: int, timeout_s: float
) -> tuple[Finding | None, str]:
    """Grade the parts in order; return the first mistake, or the text of a pass."""
    shown = []
    for part in parts:
        unwritten = set(part.functions) & set(code.unwritten)
        if unwritten == set(part.functions) or (unwritten and isinstance(part, OnRanks)):
            continue
        num_cases = 0
        for n in part.world_sizes:
            observation = observe(part, code, n, seed, timeout_s)
            num_cases += len(observation.cases)
            if finding := findings.first(part, observation):
                return finding, ""
        shown.append(f"{_tried(part, num_cases)}: {part.shown}")
    if code.unwritten:
        why = f"what is written is right; write {listed(code.unwritten)} and check again"
        return Finding(Outcome.NOT_ATTEMPTED, "a part is still to be written", why), ""
    return None, "; ".join(shown)


def _tried(part: Grader, num_cases: int) -> str:
    if isinstance(part, Questions):
        return f"{num_cases} question{'s' * (num_cases != 1)}"
    ranks = ", ".join(map(str, sorted(part.world_sizes)))
    return f"{num_cases} case{'s' * (num_cases != 1)} on {ranks} rank{'' if ranks == '1' else 's'}"


def observe(grader: Grader, code: Submission, n: int, seed: int, timeout_s: float) -> Observation:
    """Launch the code on `n` ranks, on all cases of that world size.

    If the time ran out before the code was reached, launch it once more with a longer timeout.
    """
    cases = cases_of(grader, n, seed)
    if isinstance(grader, Questions):
        cases = [c for c in cases if (c.function or grader.functions[0]) not in code.unwritten]
    codes = [code.code] * len(cases)
    timeout_s = max(timeout_s, grader.timeout_s)
    observation = _launched(grader, codes, cases, n, timeout_s)
    if observation.failure is not None and is_busy_machine(observation.failure):
        observation = _launched(grader, codes, cases, n, _RETRY_TIMEOUT_FACTOR * timeout_s)

    def run_mistakes(function: str) -> dict[Patch, list[Observed]]:
        cases_of_function = tuple(case for case in cases if case.function == function)
        return observe_mistakes(grader, code.solution, cases_of_function, n)

    return dataclasses.replace(observation, run_mistakes=run_mistakes)


def observe_mistakes(
    grader: Grader, solution: str, cases: tuple[Case, ...], n: int
) -> dict[Patch, list[Observed]]:
    """Run the mistakes that have no predicate on these cases; return the results by patch.

    On several ranks a program that fails ends the launch. The next launch begins with the program
    after it. Patches that do not fit the solution's text (missing or edited) are left out.
    """
    programs: dict[Patch, Code] = {}
    for patch in (p for m in grader.mistakes if m.predicate is None for p in m.patches):
        with contextlib.suppress(ValueError):
            programs[patch] = Code(patch.applied_to(solution), "a mistake")
    found: dict[Patch, list[Observed]] = {}
    while rest := [patch for patch in programs if patch not in found]:
        codes = [programs[patch] for patch in rest for _ in cases]
        each_case = [*cases] * len(rest)
        observation = _launched(
            grader, codes, each_case, n, _MISTAKES_TIMEOUT_S, continue_after_failure=n == 1
        )
        seen, failure = iter(observation.cases), observation.failure
        for patch in rest:
            found[patch] = list(itertools.islice(seen, len(cases)))
            if failure is not None and not all(each.returned for each in found[patch]):
                break
        if failure is not None and is_busy_machine(failure):
            break
    return found


def cases_of(grader: Grader, n: int, seed: int) -> list[Case]:
    """Return all cases of a world size. The same seed gives the same inputs."""
    draw = Draw(n, random.Random(f"{seed}/{n}"))
    if isinstance(grader, Questions):
        return list(grader.cases(draw))
    return list(grader.cases(n, draw))


def _launched(
    grader: Grader,
    codes: Sequence[Code],
    cases: Sequence[Case],
    n: int,
    timeout_s: float,
    continue_after_failure: bool = False,
) -> Observation:
    with tempfile.TemporaryDirectory(prefix="labkit-grade-") as folder:
        job = Job(
            folder=folder,
            codes=tuple(codes),
            functions=tuple(case.function or grader.functions[0] for case in cases),
            call=grader.call,
            allowed=grader.allowed,
            closed=grader.closed,
            watch_memory=grader.watch_memory,
            continue_after_failure=continue_after_failure,
        )
        by_rank = [(job, [case.of_rank(rank) for case in cases]) for rank in range(n)]
        failure = None
        try:
            logs = launch(
                attempt_cases,
                n,
                by_rank,
                timeout=timeout_s,
                stall=_STALL_S,
                device="cpu",
                echo=False,
            ).logs
        except RunError as error:
            failure, logs = error, error.logs
        by_case = zip(*(_records(job.records(rank), len(cases)) for rank in range(n)), strict=True)
        seen = [
            Observed(case, list(ranks), grader.right, grader.same)
            for case, ranks in zip(cases, by_case, strict=True)
        ]
    if failure is not None:
        for rank, timeline in enumerate(failure.timeline):
            for i, observed in enumerate(seen):
                if observed.ranks[rank] == RankObservation():
                    observed.ranks[rank].events = _from_journal(timeline, f"{MARK}{i}")
    for rank, log in enumerate(logs):
        for i, observed in enumerate(seen):
            _, _, after = log.partition(f"{MARK}{i}\n")
            observed.ranks[rank].printed = after.partition(MARK)[0]
    return Observation(seen, failure)


def _from_journal(timeline: Timeline, region: str) -> list[Event]:
    """Return the operations of a case in which a rank did not return, from the run's journal."""
    began_s = [each.start_s for each in timeline.regions if each.name == region]
    return [
        Event(
            f"{'' if o.blocking else 'i'}{o.kind}" if o.kind in P2P_KINDS else o.kind,
            peer=o.peer,
            shape=o.shape,
            dtype=getattr(torch, o.dtype, None),
            nbytes=o.payload_bytes,
            site=o.origin,
        )
        for o in timeline.operations
        if began_s and o.posted_s >= began_s[0] and o.label != MEETING
    ]


def _records(path: Path, num_cases: int) -> list[RankObservation]:
    """Read a rank's record of each case; an empty one for each case that it did not finish."""
    seen: list[RankObservation] = []
    ends = FileNotFoundError, EOFError, pickle.UnpicklingError
    with contextlib.suppress(*ends), path.open("rb") as file:
        while True:
            seen.append(pickle.load(file))
    return seen + [RankObservation() for _ in range(num_cases - len(seen))]
