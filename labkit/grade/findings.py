"""From what was observed in a launch to the first thing that is wrong with it.

The first case that went wrong decides what is looked for: a broken rule, a case that did not end
(crash or hang), or a wrong result. Then come the exercise's named mistakes, then what any exercise
can get wrong. Where all results are right, named mistakes over the budget, then the budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from labkit.comm.callers import is_of_a_library
from labkit.comm.operation import Operation, Site
from labkit.comm.words import ranks_named, verb
from labkit.doctor import sources
from labkit.doctor.verdict import Fault
from labkit.doctor.waiting import blocked_in
from labkit.grade.grader import Budget, Mistake, OnRanks, Questions, close
from labkit.grade.harness import MEETING
from labkit.grade.observed import Case, Observation, Observed
from labkit.grade.outcome import Finding, Outcome
from labkit.grade.watched import same_bytes
from labkit.launch.errors import Mismatch, RankError, RunError, RunTimeout

Grader = OnRanks | Questions
_PRINTED_LINES = 10
_HUNG = {
    Fault.CYCLE: "ranks wait for each other",
    Fault.LEFT: "waits for a rank that has returned",
    Fault.BUSY: "loops without communicating",
}


def first(grader: Grader, observation: Observation) -> Finding | None:
    """The mistake to show; None where all is right and within the budget."""
    finding = _first(grader, observation)
    if finding is None:
        return None
    shown_case = next(
        (o for o in observation.cases if finding.first_seen.startswith(o.label)), None
    )
    return dataclasses.replace(finding, printed="" if shown_case is None else _printed(shown_case))


def _printed(observed: Observed) -> str:
    """The end of what the ranks printed during a case."""
    return "\n".join(
        f"[rank {rank}] {line}" if observed.n > 1 else line
        for rank, seen in enumerate(observed.ranks)
        for line in seen.printed.splitlines()[-_PRINTED_LINES:]
    )


def _first(grader: Grader, observation: Observation) -> Finding | None:
    failure = observation.failure
    for observed in observation.cases:
        for rank, seen in enumerate(observed.ranks):
            if seen.broke:
                where = f"{observed.label}: rank {rank}" if observed.n > 1 else observed.label
                return Finding(Outcome.WRONG, seen.broke, seen.broke_how, where, 3, seen.site)
        if not observed.returned:
            assert failure is not None, f"a record is missing though no rank failed: {observed}"
            return _unfinished(grader, observed, failure)
        if _fault(grader, observed):
            return _wrong(grader, observation)
    if failure is not None:  # after the last case
        return _general_failure(failure, observation.cases[-1])
    return _over_budget(grader, observation.cases)


def _fault(grader: Grader, observed: Observed) -> bool:
    return bool(observed.wrong_ranks) or _side_effect(grader, observed) is not None


def _wrong(grader: Grader, observation: Observation) -> Finding:
    """At least one case has a wrong result, or changes what it must not change."""
    wrong, asked = _wrong_cases(grader, observation)
    mistake, example = named(grader.mistakes, Outcome.WRONG, wrong, asked)
    if mistake is not None:
        return _finding(mistake, grader, example)
    if early := [observed for observed in wrong if _reads_early(observed)]:
        return Finding(
            Outcome.WRONG,
            "reads a buffer before its operation completed",
            "the result has NaN where no input has. Until wait() returns, the buffer of an "
            "operation holds nonsense; here NaN. Call wait() first, then compute with the buffer",
            _got_and_expected(grader, early[0]),
            3,
        )
    observed = wrong[0]
    if not observed.wrong_ranks:
        effect = _side_effect(grader, observed)
        assert effect is not None
        return Finding(Outcome.WRONG, *effect, observed.label, 3)
    if grader.fault and (found := grader.fault(observed)):
        return found
    if observed.n > 1 and not any(seen.events for seen in observed.ranks):
        name = "nothing is sent"
        why = "no rank sends anything, so no rank can know what the others hold"
        return Finding(Outcome.WRONG, name, why, _got_and_expected(grader, observed), 1)
    rank = observed.wrong_ranks[0]
    name, why = form_of(observed.ranks[rank].output, observed.right[rank])
    if all(_is_nearly_right(each) for each in wrong):
        name, why = "loses digits", _LOSES_DIGITS
    return Finding(
        Outcome.WRONG,
        name,
        why,
        _got_and_expected(grader, observed),
        2,
        picture=grader.picture(observed) if grader.picture else "",
    )


def _reads_early(observed: Observed) -> bool:
    """Whether NaN of a buffer under way came into a result."""
    is_under_way = any(e.is_pending for r in observed.ranks for e in r.events)
    return is_under_way and any(
        _has_nan(observed.ranks[rank].output) and not _has_nan(observed.right[rank])
        for rank in observed.wrong_ranks
    )


def _has_nan(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype.is_floating_point and bool(value.isnan().any())
    return isinstance(value, list | tuple) and any(map(_has_nan, value))


_LOSES_DIGITS = (
    "all numbers are within 1% of the right ones. Most often a tensor was converted to a dtype "
    "with fewer digits before it was added up or sent"
)


def _is_nearly_right(observed: Observed) -> bool:
    """Whether tensors are wrong by little more than rounding."""
    return all(_is_near(observed.ranks[r].output, observed.right[r]) for r in observed.wrong_ranks)


def _is_near(got: Any, right: Any) -> bool:
    """Whether tensors differ by less than 1% of the largest number; all else is equal."""
    if isinstance(right, dict) and isinstance(got, dict) and got.keys() == right.keys():
        return all(_is_near(got[key], right[key]) for key in right)
    if isinstance(right, list | tuple) and isinstance(got, list | tuple) and len(got) == len(right):
        return all(map(_is_near, got, right))
    if not isinstance(right, torch.Tensor) or not isinstance(got, torch.Tensor):
        return type(got) is type(right) and bool(got == right)
    if (got.shape, got.dtype) != (right.shape, right.dtype) or not right.numel():
        return same_bytes(got, right)
    one, other = got.double(), right.double()
    return bool((one - other).abs().max() <= 0.01 * other.abs().max())


def _wrong_cases(grader: Grader, observation: Observation) -> tuple[list[Observed], list[Observed]]:
    """The cases that went wrong, and all that were finished, of the function to talk about."""
    finished = [observed for observed in observation.cases if observed.returned]
    wrong = [observed for observed in finished if _fault(grader, observed)]
    # With several functions, the first that goes wrong is the one to talk about.
    function = wrong[0].case.function
    wrong = [observed for observed in wrong if observed.case.function == function]
    return (
        # Side effects of a case with a right result are looked at where nothing else is wrong.
        [observed for observed in wrong if observed.wrong_ranks] or wrong,
        [observed for observed in finished if observed.case.function == function],
    )


def named(
    mistakes: Sequence[Mistake],
    outcome: Outcome,
    cases: Sequence[Observed],
    asked: Sequence[Observed] = (),
) -> tuple[Mistake | None, Observed]:
    """The mistake that holds in most of `cases`, the first of several, and the first such case.

    One that holds in less than half of the cases with wrong results explains too little.
    asked: all cases of the function, right ones too, which a formula must explain.
    """
    best, example = None, cases[0]
    most = 0 if outcome is Outcome.OVER_BUDGET else (len(cases) - 1) // 2
    for mistake in mistakes:
        if mistake.outcome is not outcome:
            continue
        holds = held(mistake, cases, asked)
        if len(holds) > most:
            best, most, example = mistake, len(holds), holds[0]
    return best, example


def held(
    mistake: Mistake, cases: Sequence[Observed], asked: Sequence[Observed]
) -> Sequence[Observed]:
    """The cases in which a mistake holds: all or none where it is a formula."""
    if mistake.formula is None:
        return [observed for observed in cases if _is_seen(mistake, observed)]
    if mistake.function not in ("", cases[0].case.function):
        return []
    formulas = mistake.formula if isinstance(mistake.formula, Sequence) else [mistake.formula]
    return cases if any(_explains(formula, asked) for formula in formulas) else []


def _is_seen(mistake: Mistake, observed: Observed) -> bool:
    assert mistake.seen is not None, f"{mistake.name}: give `seen` or `formula`"
    try:
        return bool(mistake.seen(observed))
    except Exception:  # results of any form reach a predicate
        return False


def _explains(formula: Callable[..., Any], asked: Sequence[Observed]) -> bool:
    try:
        return all(each.same(each.y, answer(formula, each.case), each.case) for each in asked)
    except Exception:  # a wrong formula may divide by zero, or ask for what is not there
        return False


def answer(formula: Callable[..., Any], case: Case) -> Any:
    """What a wrong formula says of a case."""
    return formula(*case.args)


def _finding(mistake: Mistake, grader: Grader, observed: Observed) -> Finding:
    seen = observed.label
    if observed.wrong_ranks or grader.describe:
        seen = _got_and_expected(grader, observed)
    picture = grader.picture(observed) if grader.picture else ""
    return Finding(mistake.outcome, mistake.name, mistake.why, seen, mistake.hint, picture=picture)


_NO_COPIES = " (flatten() of a contiguous tensor is not one, and neither is a slice)"


def _side_effect(grader: Grader, observed: Observed) -> tuple[str, str] | None:
    """What a call with a right result may have done besides: (name, why)."""
    for rank, seen in enumerate(observed.ranks):
        given = observed.case.of_rank(rank)
        if grader.keeps_arguments:
            for number, (before, after) in enumerate(zip(given, seen.args, strict=False), start=1):
                if not _unchanged(before, after):
                    return (
                        "changes its input",
                        f"argument {number} of the function is not what it was before the call: "
                        "the caller may still need it. Work on a copy"
                        + _NO_COPIES
                        * isinstance(before, torch.Tensor),
                    )
        if grader.new_result and seen.is_input:
            return (
                "returns its own input",
                "the result lies in the memory of an argument. The contract is a new tensor: a "
                "caller who writes to the result would change the argument with it. One rank, or "
                "an empty loop, is where this is easily forgotten",
            )
        if grader.new_result and seen.is_earlier:
            return (
                "returns the same memory again",
                "the result lies in the memory of one that an earlier call returned, so that one "
                "has changed. Return a new tensor, or a copy of a buffer that you keep",
            )
    return None


def _unchanged(before: Any, after: Any) -> bool:
    """Whether an argument is what it was; values of other types are not looked at."""
    if isinstance(before, torch.Tensor):
        return isinstance(after, torch.Tensor) and same_bytes(before.detach(), after)
    if isinstance(before, dict):
        return (
            isinstance(after, dict)
            and list(before) == list(after)
            and all(map(_unchanged, before.values(), after.values()))
        )
    if isinstance(before, list | tuple):
        return len(before) == len(after) and all(map(_unchanged, before, after))
    return not isinstance(before, int | float | str) or before == after


def form_of(got: Any, right: Any, is_part: bool = False) -> tuple[str, str]:
    """(name, why) of a result that is not the right one, by its form; `wrong values` at last."""
    if got is None and right is not None:
        if is_part:
            return "a part of the result is None", "a value is missing: see what was expected"
        return "returns nothing", "the function ends without a return, so its value is None"
    if isinstance(right, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            kind = type(got).__name__
            return "returns another type", f"the function returns a {kind}; it should be a tensor"
        if got.shape != right.shape:
            return (
                "returns another shape",
                f"the result has shape {tuple(got.shape)}; it should be {tuple(right.shape)}",
            )
        if got.dtype != right.dtype:
            return "returns another dtype", f"the result is {got.dtype}; it should be {right.dtype}"
    elif isinstance(right, dict) and isinstance(got, dict):
        if got.keys() != right.keys():
            return (
                "returns other keys",
                f"the result has the keys {sorted(map(str, got))}; they should be "
                f"{sorted(map(str, right))}",
            )
        return next(
            (f for f in (form_of(got[k], right[k], True) for k in right) if f[0] != "wrong values"),
            _WRONG_VALUES,
        )
    elif isinstance(right, list | tuple) and isinstance(got, list | tuple):
        if len(got) != len(right):
            return (
                "returns another number of values",
                f"the result has {len(got)} entries; there should be {len(right)}",
            )
        parts = (form_of(a, b, True) for a, b in zip(got, right, strict=True))
        return next((f for f in parts if f[0] != "wrong values"), _WRONG_VALUES)
    elif _kind(got) != (wanted := _kind(right)):
        why = f"the function returns {shown(got)}, a {type(got).__name__}; it should be {wanted}"
        return "returns another type", why + (_TO_NUMBER if wanted == "a number" else "")
    return _WRONG_VALUES


_TO_NUMBER = ". float(x) makes a plain number of a tensor of one, or of a Fraction"
_WRONG_VALUES = (
    "wrong values",
    "the result is not the right one, and no usual mistake explains it",
)


def _kind(value: Any) -> str:
    if type(value) in (int, float):
        return "a number"
    return "None" if value is None else f"a {type(value).__name__}"


def _got_and_expected(grader: Grader, observed: Observed) -> str:
    """The first wrong result: where, got, expected."""
    rank = (observed.wrong_ranks or [0])[0]
    where = observed.label if observed.n == 1 else f"{observed.label}: rank {rank}"
    if observed.case.function:
        where = f"{observed.case.function}, {where}"
    if grader.describe is not None:
        with contextlib.suppress(Exception):  # of a result in any form
            return f"{where}: {grader.describe(observed)}"
    return f"{where}: {difference(observed.ranks[rank].output, observed.right[rank])}"


def difference(got: Any, right: Any, path: str = "") -> str:
    """`got 3, expected 5`; inside of lists, dicts and tensors the first place that differs."""
    at = f" at {path}" if path else ""
    is_tensor = isinstance(got, torch.Tensor) and isinstance(right, torch.Tensor)
    if is_tensor and got.shape == right.shape and got.dtype == right.dtype and right.numel() > 1:
        flat_got, flat_right = got.flatten().tolist(), right.flatten().tolist()
        wrong = [i for i, (a, b) in enumerate(zip(flat_got, flat_right, strict=True)) if a != b]
        # The first element that is wrong by more than rounding.
        place = next((i for i in wrong if not close(flat_got[i], flat_right[i])), (wrong or [0])[0])
        # torch.unravel_index imports sympy, which takes a second.
        where = [place // right[(0,) * k].numel() % n for k, n in enumerate(right.shape, start=1)]
        return (
            f"got {shown(flat_got[place])}, expected {shown(flat_right[place])} at {path}{where} "
            f"({len(wrong)} of {right.numel()} elements differ)"
        )
    if isinstance(got, list | tuple) and isinstance(right, list | tuple) and len(got) == len(right):
        for index, (one, other) in enumerate(zip(got, right, strict=True)):
            if not close(one, other):
                return difference(one, other, f"{path}[{index}]")
    if isinstance(got, dict) and isinstance(right, dict) and got.keys() == right.keys():
        for key in right:
            if not close(got[key], right[key]):
                return difference(got[key], right[key], f"{path}[{key!r}]")
    return f"got {shown(got)}, expected {shown(right)}{at}"


def shown(value: Any) -> str:
    """A value as people read it: 1,048,576; long ones are cut."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1:
            return shown(value.item())
        return f"{str(value.dtype).removeprefix('torch.')} {_cut(str(value.tolist()))}"
    if isinstance(value, dict):
        return _cut("{" + ", ".join(f"{k!r}: {shown(v)}" for k, v in value.items()) + "}")
    if isinstance(value, list | tuple):
        inside = ", ".join(map(shown, value))
        return _cut(f"[{inside}]" if isinstance(value, list) else f"({inside})")
    if type(value) is float:
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.10g}"
    return f"{value:,}" if type(value) is int else _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


def _over_budget(grader: Grader, cases: Sequence[Observed]) -> Finding | None:
    """All results are right; what they cost may not be."""
    mistake, example = named(grader.mistakes, Outcome.OVER_BUDGET, cases, cases)
    if mistake is not None:
        return _finding(mistake, grader, example)
    for observed in cases:
        if grader.fault and (found := grader.fault(observed)):
            return found
        budget = grader.budget(observed)
        for rank in range(observed.n):
            for what, used, most in _limits(budget, observed, rank):
                if used > most + 1e-6:
                    return Finding(
                        Outcome.OVER_BUDGET,
                        f"too many {what}" if what != "steps" else "too many steps in a row",
                        f"the results are right, and rank {rank} uses {shown(used)} {what}; the "
                        f"budget is {shown(most)}",
                        f"{observed.label}: rank {rank}",
                        1,
                    )
    return None


def _limits(budget: Budget, observed: Observed, rank: int) -> Iterable[tuple[str, Any, Any]]:
    """(what, used, the most allowed) of one rank, for all that is limited."""
    sends = observed.messages(rank)
    used = {
        "sends": lambda: len(sends),
        "bytes_per_send": lambda: max((e.nbytes for e in sends), default=0),
        "collectives": lambda: observed.num_collectives(rank),
        "payload_bytes": lambda: observed.payload_bytes(rank),
        "sent_bytes": lambda: observed.sent_bytes(rank),
        "steps": lambda: observed.num_steps,
        "peak_bytes": lambda: observed.ranks[rank].peak_bytes,
        "largest": lambda: observed.ranks[rank].largest,
    }
    words = {
        "bytes_per_send": "bytes in one message",
        "payload_bytes": "bytes of payload",
        "sent_bytes": "bytes sent",
        "peak_bytes": "bytes of tensors alive together",
        "largest": "elements in one tensor",
    }
    for field in dataclasses.fields(Budget):
        most = getattr(budget, field.name)
        if most is not None:
            most = most[rank] if isinstance(most, list | tuple) else most
            yield words.get(field.name, field.name), used[field.name](), most


def _unfinished(grader: Grader, observed: Observed, failure: RunError) -> Finding:
    """A case that did not end on every rank."""
    general = _general_failure(failure, observed)
    # Whether ranks that make different calls end in a mismatch or wait for ever is chance.
    outcome = Outcome.HUNG if isinstance(failure, Mismatch) else general.outcome
    if outcome in (Outcome.CRASHED, Outcome.HUNG):
        mistake, _ = named(grader.mistakes, outcome, [observed], [observed])
        if mistake is not None:
            return dataclasses.replace(
                general,
                outcome=mistake.outcome,
                diagnosis=mistake.name,
                explanation=mistake.why,
                hint=mistake.hint,
                details=f"{general.explanation}\n{general.details}".strip(),
            )
    return general


def _general_failure(failure: RunError, observed: Observed) -> Finding:
    if isinstance(failure, RankError):
        return _crash(failure, observed)
    has_returned = [rank for rank, seen in enumerate(observed.ranks) if seen.returned]
    waits = {
        rank: operation
        for rank, timeline in enumerate(failure.timeline)
        if (operation := _waiting_in(timeline.operations)) is not None
    }
    if isinstance(failure, Mismatch) and has_returned:
        # The other ranks meet already, and found that this one means something else.
        waits = {
            rank: timeline.operations[-1]
            for rank, timeline in enumerate(failure.timeline)
            if rank not in has_returned and timeline.operations
        }
    if waits and has_returned and not observed.returned:
        return _left_behind(waits, has_returned, observed)
    verdict = failure.verdict
    explanation = _unnumbered(str(verdict)) if verdict is not None else str(failure)
    rank = verdict.ranks[0] if verdict is not None and verdict.ranks else min(waits, default=0)
    where = waits[rank].origin if rank in waits else own_site(_stack(failure, rank))
    if where is None and failure.timeline and failure.timeline[rank].operations:
        where = failure.timeline[rank].operations[-1].origin
    details = "\n".join(f"rank {r} {place}" for r, place in enumerate(failure.positions))
    if isinstance(failure, Mismatch):
        name, outcome = "ranks mean different operations", Outcome.WRONG
    else:
        fault = None if verdict is None else verdict.fault
        name = "does not end in time" if fault is None else _HUNG.get(fault, "does not end in time")
        outcome = Outcome.HUNG
        if name == "ranks wait for each other":
            kinds = {operation.kind for operation in waits.values()}
            if len(waits) == observed.n and kinds <= {"send", "recv"} and len(kinds) == 1:
                kind = kinds.pop()
                other = "receives" if kind == "send" else "sends"
                name = f"every rank is in {kind}: nobody {other}"
    seen = observed.label if any(timeline.regions for timeline in failure.timeline) else ""
    return Finding(outcome, name, explanation, seen, 3, where, details=_unnumbered(details))


def _waiting_in(operations: Sequence[Operation]) -> Operation | None:
    """The operation of the learner's that a rank blocks on."""
    operation = blocked_in(operations)
    return None if operation is None or operation.label == MEETING else operation


def _left_behind(waits: dict[int, Operation], returned: list[int], observed: Observed) -> Finding:
    """Some ranks wait in an operation, while others have returned from the function."""
    rank, operation = next(iter(waits.items()))
    text = f"rank {rank} waits in {_unnumbered(operation.name)} ({sources.place(operation.origin)})"
    text += f", and {ranks_named(returned)} {verb(returned, 'has')} returned"
    if operation.is_collective:
        name = "a collective that not every rank calls"
        text += " without calling it. Every member of a group makes the same calls"
    else:
        name = (
            f"waits for a message that nobody {'sends' if operation.kind == 'recv' else 'receives'}"
        )
        text += ". Count the steps of both ranks, and compare whom each names as its partner"
    return Finding(Outcome.HUNG, name, text, observed.label, 3, operation.origin)


def _unnumbered(text: str) -> str:
    """Without numbers of operations, which count those of earlier cases too."""
    return re.sub(r" #\d+", "", text)


def _crash(failure: RankError, observed: Observed) -> Finding:
    error, trace = failure.exception_type, own_frames(failure.traceback)
    site = failure.site
    if site is not None and _is_library(site.file):
        site = own_site(failure.traceback)
    message = failure.traceback.rstrip().rpartition(f"{error}: ")[2]
    message = "" if message == failure.traceback.rstrip() else message
    label = observed.label if observed.n == 1 else f"{observed.label}: rank {failure.rank}"
    seen = label if any(timeline.regions for timeline in failure.timeline) else ""
    if error == "NotImplementedError" and f"raise {error}" in failure.traceback:
        name, why = "a part is still to be written", f"the code raised {error}: {message}"
        return Finding(Outcome.NOT_ATTEMPTED, name, why, seen, where=failure.site, details=trace)
    if error == "SubmissionError":
        return Finding(Outcome.CRASHED, "cannot be called", message, seen, 1, details=trace)
    if error == "ProcessDied":
        name, why = "its process ended", f"{_unnumbered(str(failure).splitlines()[0])}"
    else:
        place = "" if site is None else f" at {sources.place(site)}"
        who = "the function" if observed.n == 1 else f"rank {failure.rank}"
        name, why = f"raises {error}", f"{who} raised {error}{place}: {message}"
    return Finding(Outcome.CRASHED, name, why, seen, 3, site, details=trace)


def is_busy_machine(failure: RunError) -> bool:
    """Whether the time was up while the ranks were still on their way, or before they began.

    Ranks that loop or wait have done nothing that the journals know of for half of the time.
    """
    if not isinstance(failure, RunTimeout) or (failure.verdict and failure.verdict.is_proof):
        return False
    if not any(own_site(stack) for stack in failure.stacks):
        return True
    ended_s = max(timeline.end_s for timeline in failure.timeline)
    begun_s = [o.posted_s for timeline in failure.timeline for o in timeline.operations]
    begun_s += [r.start_s for timeline in failure.timeline for r in timeline.regions]
    return max(begun_s, default=0.0) > ended_s / 2


def _stack(failure: RunError, rank: int) -> str:
    return failure.stacks[rank] if rank < len(failure.stacks) else ""


# As doctor/sources.py shows the files of these packages.
_SHORTENED = ("labkit/", "torch/", "<string>")
# A frame of a notebook's cell has the cell's number for a file (doctor/sources.py).
_FRAME = re.compile(r'  (?:File "([^"]+)"|(Cell \d+)), line (\d+),? in (\S+)')


def _is_library(file: str) -> bool:
    return file.startswith(_SHORTENED) or is_of_a_library(file)


def own_frames(trace: str) -> str:
    """A traceback without the frames of labkit and of libraries; all of it, where none is left."""
    kept, is_own, has_own = [], True, False
    for line in trace.splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            is_own = not _is_library(frame[1] or frame[2])
            has_own = has_own or is_own
        elif not line.startswith("    "):
            is_own = True
        if is_own:
            kept.append(line)
    return "\n".join(kept) if has_own else trace


def own_site(stack: str) -> Site | None:
    """The innermost line of a stack that is the learner's."""
    frames = [frame for line in stack.splitlines() if (frame := _FRAME.match(line))]
    for frame in reversed(frames):
        if not _is_library(frame[1] or frame[2]):
            return Site(frame[1] or frame[2], int(frame[3]), frame[4])
    return None
