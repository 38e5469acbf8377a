"""A grader: cases, the right answer, the budget, and the usual mistakes.

A grader is data and small functions; engine.py does the grading. There are two kinds:

    OnRanks     a function that is called on every rank, with a group as its last argument
    Questions   functions that calculate: they are called in one process, without a group

An exercise with several functions may have a list of graders, one for each part.

A mistake is a name, an explanation, the number of the hint that helps, and patches that put the
mistake into the solution. The engine recognises it by the results of the patched solution, or by a
predicate over the observed case.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from labkit.grade.catalog import get_exercise, load_module
from labkit.grade.observed import ByRank, Case, Draw, Observed, pairs
from labkit.grade.verdict import Finding, Outcome

__all__ = ["Budget", "ByRank", "Case", "Draw", "Mistake", "Observed", "OnRanks", "Outcome"]
__all__ += ["Patch", "Questions", "close", "patch", "patches", "program", "within"]


@dataclass(frozen=True)
class Patch:
    """A program with a mistake: replacements in the solution's text, or a whole text."""

    replacements: tuple[tuple[str, str], ...] = ()
    text: str = ""

    def applied_to(self, solution: str) -> str:
        """Return the wrong program. Raises ValueError unless each text to replace occurs once."""
        if self.text:
            return self.text
        for old, new in self.replacements:
            if (count := solution.count(old)) != 1:
                raise ValueError(f"the solution has {old!r} {count} times; a patch needs it once")
            solution = solution.replace(old, new)
        return solution


def patch(*texts: str) -> Patch:
    """patch(old, new, old, new, ...): replace in this order; each `old` must occur exactly once."""
    return Patch(tuple(zip(texts[::2], texts[1::2], strict=True)))


def patches(old: str, *new: str) -> list[Patch]:
    """Return one patch for each of the new texts."""
    return [patch(old, each) for each in new]


def program(text: str) -> Patch:
    """Return a patch that replaces the solution by another program."""
    return Patch(text=text)


Predicate = Callable[[Observed], bool | str]


@dataclass(frozen=True)
class Mistake:
    """A mistake that learners make.

    It holds in a case with a wrong result if a program of `made_by` returns the same result on all
    ranks. A mistake with a predicate holds where the predicate is true. Predicates are for mistakes
    that results do not show, or that many different wrong results share. A predicate that raises,
    on a result of another form, counts as false. The engine names the mistake that holds in most of
    the wrong cases. If several do, it takes the one whose program agrees with the learner's in most
    cases overall (a predicate counts as all), then the first in the list.
    """

    name: str
    why: str
    """An explanation in one to three sentences: the cause, and how to think about it."""
    made_by: Patch | Sequence[Patch] = ()
    """How the mistake is made; several ways where the explanation is the same."""
    wrong: Predicate | None = None
    """Evaluated in cases with a wrong result."""
    over_budget: Predicate | None = None
    """Evaluated in cases with right results. It may return a text with the numbers for True."""
    hung: Predicate | None = None
    """Evaluated in the case that did not end."""
    crashed: Predicate | None = None
    """Evaluated in the case in which a rank raised an error."""
    hint: int = 1
    """1: the concept, 2: the invariant, 3: the lines where it goes wrong."""

    @property
    def patches(self) -> Sequence[Patch]:
        """The patches that make the mistake, as a sequence."""
        return (self.made_by,) if isinstance(self.made_by, Patch) else self.made_by

    @property
    def outcome(self) -> Outcome:
        """The outcome of a check that finds this mistake."""
        if self.over_budget:
            return Outcome.OVER_BUDGET
        if self.hung:
            return Outcome.HUNG
        return Outcome.CRASHED if self.crashed else Outcome.WRONG

    @property
    def predicate(self) -> Predicate | None:
        """The mistake's predicate; None if it is recognised by its results."""
        return self.wrong or self.over_budget or self.hung or self.crashed


@dataclass(frozen=True)
class Budget:
    """The most that one rank may use in one case; None: as much as it likes.

    The numbers are the same for all ranks, or a list by rank.
    """

    sends: int | Sequence[int] | None = None
    """Messages."""
    bytes_per_send: float | Sequence[float] | None = None
    collectives: int | Sequence[int] | None = None
    payload_bytes: float | Sequence[float] | None = None
    """Bytes handed to messages and collectives."""
    sent_bytes: float | Sequence[float] | None = None
    """Bytes on the wire, collectives as on a ring (Observed.sent_bytes)."""
    steps: int | None = None
    """The longest chain of messages that wait for each other (Observed.num_steps)."""
    peak_bytes: float | Sequence[float] | None = None
    """Bytes of tensors made during the call and alive together; needs watch_memory."""
    largest: int | Sequence[int] | None = None
    """Elements of the largest tensor made during the call; needs watch_memory."""


def directly(watch: Any, args: tuple[Any, ...]) -> Any:
    """Call the code under test with the arguments, then the group if there is one."""
    return watch.function(*args, *watch.groups)


def close(
    got: Any, right: Any, case: Case | None = None, steps: float = 8, share: float = 0.0
) -> bool:
    """Return whether a result has the right types and shapes, and the right values up to rounding.

    Tensors must have the same shape and dtype. The tolerance of floating-point elements is `steps`
    times the dtype's epsilon, or `share` if that is larger, times the largest number. Integer
    elements must be equal unless there is a `share`. Python's floats may differ by a factor of
    1e-9. A list counts as equal to a tuple.
    """
    return all(_is_close(a, b, steps, share) for _, a, b in pairs(got, right))


def _is_close(got: Any, right: Any, steps: float, share: float) -> bool:
    if isinstance(right, torch.Tensor):
        if (
            not isinstance(got, torch.Tensor)
            or got.shape != right.shape
            or got.dtype != right.dtype
        ):
            return False
        if share and not right.is_floating_point():
            got, right = got.double(), right.double()
        if not right.is_floating_point() or not right.numel():
            return torch.equal(got, right)
        largest = right.abs().nan_to_num(0.0, 0.0, 0.0).max().item()
        atol = max(steps * torch.finfo(right.dtype).eps, share) * max(largest, 1e-30)
        return torch.allclose(got, right, rtol=0, atol=atol, equal_nan=True)
    if type(right) in (int, float) and type(got) in (int, float):
        tolerance = 1e-9 * abs(right) if float in (type(got), type(right)) else 0
        return bool(got == right or abs(got - right) <= tolerance)
    # Lists and dicts get here only if their lengths or keys differ.
    is_comparable = type(got) is type(right) and not isinstance(right, list | tuple | dict)
    return is_comparable and bool(got == right)


def within(steps: float) -> Callable[[Any, Any, Case], bool]:
    """Return `close` with another tolerance, for results of long computations."""
    return lambda got, right, case: close(got, right, case, steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Grader:
    functions: tuple[str, ...] = ()
    """Names of the functions that the learner writes; by default one, named like the exercise."""
    right: Callable[..., Any]
    """Computes the right result from the arguments: a ByRank, or one result for all ranks. It runs
    in the driver only. A case with `known` passes that too, as a keyword."""
    mistakes: Sequence[Mistake]
    shown: str
    """Text after a pass: `sums are exact, and no rank sent more than 2(n-1)/n of x`."""
    same: Callable[[Any, Any, Case], bool] = close
    """Returns True if a result is the right one: (got, right, case)."""
    call: Callable[[Any, tuple[Any, ...]], Any] = directly
    """Calls the code under test on a rank, with a watched.Watch and the arguments, and returns the
    result. An exercise needs its own if modules are made on the rank, or if several functions work
    together. It is defined in the grader's module."""
    budget: Callable[[Observed], Budget] = lambda observed: Budget()
    closed: tuple[str, ...] = ()
    """Modules of labkit that contain the answer: code under test may not use them."""
    keeps_arguments: bool = True
    """True if a call must leave its arguments unchanged."""
    new_result: bool = True
    """True if the result must have memory of its own."""
    timeout_s: float = 0.0
    """The least timeout of a launch: the code under test starts processes of its own."""
    watch_memory: bool = False
    """True if tensors made during the call are followed; costs some microseconds for each."""
    describe: Callable[[Observed], str] | None = None
    """The wrong result in words, instead of `got 3, expected 5`."""
    unexplained: tuple[str, str] | None = None
    """(name, why) for a wrong result that no mistake explains."""
    fault: Callable[[Observed], Finding | None] = lambda observed: None
    """Returns a further finding for a case that no mistake explains. For right results: a cost that
    the budget does not cover."""
    picture: Callable[[Observed], str] = lambda observed: ""
    """Returns lines that show the wrong result, such as a schedule's grid."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OnRanks(_Grader):
    """A grader of a function that runs on ranks, once per case and world size."""

    cases: Callable[[int, Draw], Iterable[Case]]
    """Cases of a world size, simple ones first."""
    allowed: tuple[str, ...]
    """Operations of the group that the code may use."""
    # 3 first: with 2 ranks the left and the right neighbour are the same, which hides mistakes.
    world_sizes: tuple[int, ...] = (3, 2, 4, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions(_Grader):
    """A grader of functions that calculate."""

    cases: Callable[[Draw], Iterable[Case]]
    """Cases, simple ones first. If there are several functions, each case names its function."""
    allowed: tuple[str, ...] = ()
    world_sizes: tuple[int, ...] = (1,)


Grader = OnRanks | Questions


@functools.cache
def load_graders(name: str) -> tuple[Grader, ...]:
    """Load the grader of the exercise `name`, or one for each of its parts."""
    graders = load_module(get_exercise(name).subject, "exercises", name).GRADER
    parts = graders if isinstance(graders, list) else [graders]
    return tuple(dataclasses.replace(part, functions=part.functions or (name,)) for part in parts)


def functions_of(name: str) -> tuple[str, ...]:
    """Return the names of the functions that the learner writes."""
    return tuple(function for part in load_graders(name) for function in part.functions)
