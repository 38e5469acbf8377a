"""A grader: cases, the right answer, the budget, and the usual mistakes.

A grader is data and small functions; engine.py does the grading. There are two kinds:

    OnRanks     a function that is called on every rank, with a group as its last argument
    Questions   functions that calculate: they are called in one process, without a group

An exercise with several functions may have a list of graders, for one after the other.

A mistake is a name, an explanation, the number of the hint that helps, and patches of the solution
that make it. It is recognised by what these return, or by a predicate over what was observed.
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
    """How a mistake is made: in the text of the solution, or as a program of its own."""

    replacements: tuple[tuple[str, str], ...] = ()
    text: str = ""

    def applied_to(self, solution: str) -> str:
        """The wrong program. Raises ValueError unless each text to replace stands there once."""
        if self.text:
            return self.text
        for old, new in self.replacements:
            if (count := solution.count(old)) != 1:
                raise ValueError(f"the solution has {old!r} {count} times; a patch needs it once")
            solution = solution.replace(old, new)
        return solution


def patch(*texts: str) -> Patch:
    """patch(old, new, old, new, ...): each `old` stands exactly once in the text, in its turn."""
    return Patch(tuple(zip(texts[::2], texts[1::2], strict=True)))


def patches(old: str, *new: str) -> list[Patch]:
    """One patch for each of the new texts."""
    return [patch(old, each) for each in new]


def program(text: str) -> Patch:
    """A whole short program, where the mistake needs another one than a patched solution."""
    return Patch(text=text)


Predicate = Callable[[Observed], bool | str]


@dataclass(frozen=True)
class Mistake:
    """A mistake that learners make.

    It holds in a case with a wrong result if a program of `made_by` returns the same on all ranks,
    or, where there is a predicate, if that holds. Predicates are for what results do not tell, and
    for a property that wrong results of many programs share. They may raise, on odd results: that
    counts as no. The engine names the mistake that holds in most of the cases that went wrong; of
    several, one with a predicate or whose program is right wherever the answer is, then the first.
    """

    name: str
    why: str
    """An explanation in one to three sentences: the cause, and how to think about it."""
    made_by: Patch | Sequence[Patch] = ()
    """How the mistake is made; several ways where the explanation is the same."""
    seen: Predicate | None = None
    """Asked of cases with something wrong in them."""
    over_budget: Predicate | None = None
    """Asked of cases with right results. It may say yes with a text that has the numbers."""
    hung: Predicate | None = None
    """Asked of the case that did not end."""
    crashed: Predicate | None = None
    """Asked of the case in which a rank raised an error."""
    hint: int = 1
    """1: the concept, 2: the invariant, 3: the lines where it goes wrong."""

    @property
    def patches(self) -> Sequence[Patch]:
        """All ways to make it."""
        return (self.made_by,) if isinstance(self.made_by, Patch) else self.made_by

    @property
    def outcome(self) -> Outcome:
        """How a check ends that finds it."""
        if self.over_budget:
            return Outcome.OVER_BUDGET
        if self.hung:
            return Outcome.HUNG
        return Outcome.CRASHED if self.crashed else Outcome.WRONG

    @property
    def predicate(self) -> Predicate | None:
        """The one that it has; None where it is known by its results."""
        return self.seen or self.over_budget or self.hung or self.crashed


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
    """The usual way to call the code under test: the arguments, then the group if there is one."""
    return watch.function(*args, *watch.groups)


def close(
    got: Any, right: Any, case: Case | None = None, steps: float = 8, share: float = 0.0
) -> bool:
    """Return whether a result is the right one: types and shapes, and values but for rounding.

    Tensors: same shape and dtype; floating-point numbers within `steps` times the dtype's epsilon,
    all numbers within `share`, per unit of the largest number. Python's floats: within 1e-9 of the
    right one. A list for a tuple will do.
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
    # Lists and dicts come here only with other lengths or keys.
    is_comparable = type(got) is type(right) and not isinstance(right, list | tuple | dict)
    return is_comparable and bool(got == right)


def within(steps: float) -> Callable[[Any, Any, Case], bool]:
    """`close` with another tolerance, for results of long computations."""
    return lambda got, right, case: close(got, right, case, steps)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Grader:
    functions: tuple[str, ...] = ()
    """The form of the learner's code; by default one function called as the exercise."""
    right: Callable[..., Any]
    """The right result, from the arguments: a ByRank of results, or one that is right on all ranks.
    It runs in the driver only. A case with `known` passes that too, as a keyword."""
    mistakes: Sequence[Mistake]
    shown: str
    """The text of a pass: `sums are exact, and no rank sent more than 2(n-1)/n of x`."""
    same: Callable[[Any, Any, Case], bool] = close
    """Returns True if a result is the right one: (got, right, case)."""
    call: Callable[[Any, tuple[Any, ...]], Any] = directly
    """How the code under test is called on a rank, with a watched.Watch and the arguments; what it
    returns is the result. Needed where modules are made on the rank, or several functions work
    together. It lives in the grader's module."""
    budget: Callable[[Observed], Budget] = lambda observed: Budget()
    closed: tuple[str, ...] = ()
    """Modules of labkit that have the answer: importing from them or calling them is refused."""
    keeps_arguments: bool = True
    """True if a call must leave its arguments unchanged."""
    new_result: bool = True
    """True if the result must have memory of its own."""
    watch_memory: bool = False
    """True if tensors made during the call are followed; costs some microseconds for each."""
    describe: Callable[[Observed], str] | None = None
    """The wrong result in words, instead of `got 3, expected 5`."""
    unexplained: tuple[str, str] | None = None
    """(name, why) of a wrong result that no mistake explains."""
    fault: Callable[[Observed], Finding | None] = lambda observed: None
    """Further findings for a case that no mistake explains. With right results: what it costs
    too much, beside the budget."""
    picture: Callable[[Observed], str] = lambda observed: ""
    """Lines that show the wrong result, such as a schedule's grid."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OnRanks(_Grader):
    """A grader of a function that runs on ranks, once per case and world size."""

    cases: Callable[[int, Draw], Iterable[Case]]
    """Cases of a world size, simple ones first."""
    allowed: tuple[str, ...]
    """Operations of the group that the code may use."""
    # 3 first: with 2 ranks the left and the right neighbour are the same, and mistakes cancel.
    world_sizes: tuple[int, ...] = (3, 2, 4, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions(_Grader):
    """A grader of functions that calculate."""

    cases: Callable[[Draw], Iterable[Case]]
    """Questions, simple ones first. With several functions each names its own."""
    allowed: tuple[str, ...] = ()
    world_sizes: tuple[int, ...] = (1,)


Grader = OnRanks | Questions


@functools.cache
def load_graders(name: str) -> tuple[Grader, ...]:
    """The grader of the exercise `name`, or one for each of its parts."""
    graders = load_module(get_exercise(name).subject, "exercises", name).GRADER
    parts = graders if isinstance(graders, list) else [graders]
    return tuple(dataclasses.replace(part, functions=part.functions or (name,)) for part in parts)


def functions_of(name: str) -> tuple[str, ...]:
    """The functions that the learner writes."""
    return tuple(function for part in load_graders(name) for function in part.functions)
