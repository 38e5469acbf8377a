"""Observations for a grader: the inputs of a case, and what every rank did with them.

    Case             the inputs of one call on all ranks together; the driver draws them
    RankObservation  the record of one rank: its result, arguments afterwards, events in order
    Observed         a case and the RankObservation of all ranks; predicates of mistakes take it

Nothing in this file judges. RankObservation travels from the ranks to the driver as a pickle.
"""

from __future__ import annotations

import collections
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from labkit.comm.operation import Site
from labkit.grade.verdict import Finding
from labkit.launch.errors import RunError

Tensor = torch.Tensor
MESSAGES = ("isend", "send")
RECEIVES = ("irecv", "recv")


class ByRank(tuple[Any, ...]):
    """An argument that differs by rank: rank r gets entry r."""


class Case:
    """One call of a function under test, on all ranks together."""

    def __init__(self, label: str, *args: Any, function: str = "", known: Any = None) -> None:
        """label: the input in words, `12 float32 elements`. args: the arguments before the group;
        one that is a ByRank differs by rank, any other is the same for all. function: needed where
        an exercise has several. known: what only the driver needs to know, such as the truth behind
        noisy points; it is not sent to the ranks."""
        self.label, self.args, self.function, self.known = label, args, function, known

    def of_rank(self, rank: int) -> tuple[Any, ...]:
        """The arguments that `rank` gets."""
        return tuple(a[rank] if isinstance(a, ByRank) else a for a in self.args)


class Draw:
    """Makes up inputs for `n` ranks. Everything random comes from one seeded generator, `rng`.

    draw(3, 5)                          ByRank of (3, 5) float32 tensors of whole numbers
    draw(3, 5, permute=(1, 0))          the same numbers, transposed: not contiguous
    draw.normal(8, dtype=torch.float64) ByRank of random normal tensors
    draw.same(4)                        one tensor, the same on every rank
    """

    def __init__(self, n: int, rng: random.Random) -> None:
        self.n, self.rng = n, rng
        self._torch = torch.Generator().manual_seed(rng.randrange(2**31))

    def __call__(
        self,
        *shape: int,
        dtype: torch.dtype = torch.float32,
        permute: Sequence[int] | None = None,
        low: int = -8,
        high: int = 9,
    ) -> ByRank:
        """Whole numbers from low to high - 1, so that sums are exact in any order."""

        def one() -> Tensor:
            x = torch.randint(low, high, shape, generator=self._torch).to(dtype)
            return x if permute is None else x.permute(*permute)

        return ByRank(one() for _ in range(self.n))

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> ByRank:
        """Standard normal numbers."""
        return ByRank(self.same(*shape, dtype=dtype) for _ in range(self.n))

    def same(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """One standard normal tensor for all ranks."""
        return torch.randn(shape, generator=self._torch, dtype=torch.float64).to(dtype)


@dataclass(slots=True)
class Event:
    """One event of a rank in a case: the start of an operation, the end of one, or a note.

    The end of a blocking operation follows its start. A grader adds notes of its own with
    `watch.note(what, value)`: "gradient of w2", "unit 3 forward".
    """

    what: str
    """An operation's name (isend, irecv, send, recv, all_reduce, ...), "wait", or the note."""
    peer: int | None = None
    """The other rank of a message, numbered in the group."""
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    nbytes: int = 0
    """Bytes of the tensor that the rank handed in."""
    began: int | None = None
    """The position of the operation that a "wait" ended."""
    is_pending: bool = False
    """True if the operation returned a Pending."""
    is_note: bool = False
    value: Any = None
    """The value of a note."""
    live_bytes: int = 0
    """Bytes of tensors made since the call began, at this moment; with Grader.watch_memory only."""
    site: Site | None = None
    """The learner's line."""

    @property
    def numel(self) -> int:
        """Elements of the tensor that the rank handed in."""
        return torch.Size(self.shape).numel()


@dataclass(slots=True)
class RankObservation:
    """The record of one rank and one case."""

    output: Any = None
    """The function's result, with tensors copied; None if it did not return."""
    args: tuple[Any, ...] = ()
    """The arguments as they were afterwards."""
    returned: bool = False
    events: list[Event] = field(default_factory=list)
    """Events in order. For a rank that did not return: its operations, from the journal."""
    is_input: bool = False
    """True if the result lies in the memory of an argument."""
    is_earlier: bool = False
    """True if the result lies in the memory of an earlier case's result."""
    broken_rule: Finding | None = None
    """The rule that the code broke (see watched.BrokenRule); None if it broke none."""
    error: str = ""
    """`ValueError: message` if the function raised; empty otherwise."""
    printed: str = ""
    """The rank's output during the case."""
    peak_bytes: int = 0
    """The most bytes of tensors made during the call and alive together; with watch_memory only."""
    largest: int = 0
    """Elements of the largest tensor made during the call; with watch_memory only."""

    @property
    def operations(self) -> list[Event]:
        """The operations that the rank started on its groups, in order."""
        return [e for e in self.events if not e.is_note and e.what != "wait"]

    @property
    def notes(self) -> list[Event]:
        """The grader's own notes, in order."""
        return [e for e in self.events if e.is_note]


@dataclass(eq=False)
class Observed:
    """One case, as all ranks went through it."""

    case: Case
    ranks: list[RankObservation]
    right_of: Callable[..., Any]
    """The grader's `right`."""
    same: Callable[[Any, Any, Case], bool]
    """The grader's comparison of a result with the right one."""

    @property
    def n(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments of the call; a ByRank is indexed by rank."""
        return self.case.args

    @property
    def xs(self) -> Any:
        """The first argument."""
        return self.case.args[0]

    @property
    def ys(self) -> list[Any]:
        """Results by rank; None where a rank did not return."""
        return [rank.output for rank in self.ranks]

    @property
    def y(self) -> Any:
        """The result of rank 0."""
        return self.ranks[0].output

    @cached_property
    def right(self) -> list[Any]:
        """The right results by rank."""
        right = right_result(self.right_of, self.case)
        return list(right) if isinstance(right, ByRank) else [right] * self.n

    @cached_property
    def wrong_ranks(self) -> list[int]:
        """Ranks that returned a result other than the right one."""
        return [
            rank
            for rank, seen in enumerate(self.ranks)
            if seen.returned and not self.is_same(seen.output, self.right[rank])
        ]

    def is_same(self, got: Any, right: Any) -> bool:
        """Compare two results as the grader does; False if they cannot be compared."""
        try:
            return self.same(got, right, self.case)
        except Exception:
            return False

    @property
    def returned(self) -> bool:
        """Return whether the function returned on every rank."""
        return all(rank.returned for rank in self.ranks)

    @property
    def error(self) -> str:
        """`ValueError: message` of the first rank that raised; empty where none did."""
        return next((rank.error for rank in self.ranks if rank.error), "")

    @property
    def label(self) -> str:
        """`3 ranks, 12 float32 elements`"""
        ranks = "" if self.n == 1 else f"{self.n} ranks, "
        return f"{ranks}{self.case.label}"

    def is_answer(self, expected: Sequence[Any]) -> bool:
        """Return whether the results are `expected`, by rank, and at least one is wrong."""
        return bool(self.wrong_ranks) and all(
            self.is_same(seen.output, each) for seen, each in zip(self.ranks, expected, strict=True)
        )

    def operations(self, rank: int, *kinds: str) -> list[Event]:
        """Return the operations that a rank started, in order; only those of `kinds` if given."""
        return [e for e in self.ranks[rank].operations if not kinds or e.what in kinds]

    def messages(self, rank: int) -> list[Event]:
        """Return the messages that a rank sent, in order."""
        return self.operations(rank, *MESSAGES)

    @property
    def num_sends(self) -> int:
        """The most messages that one rank sent."""
        return max(len(self.messages(rank)) for rank in range(self.n))

    def num_collectives(self, rank: int) -> int:
        """Return the number of collective operations that a rank took part in."""
        return sum(e.what not in MESSAGES + RECEIVES for e in self.operations(rank))

    def payload_bytes(self, rank: int) -> int:
        """Return the bytes that a rank handed to its operations, without receives."""
        return sum(e.nbytes for e in self.operations(rank) if e.what not in RECEIVES)

    def sent_bytes(self, rank: int) -> float:
        """Return the bytes that a rank puts on the wire if every collective goes around a ring.

        n ranks, X bytes handed in: all_reduce 2(n-1)/n X, reduce_scatter and all_to_all (n-1)/n X,
        all_gather (n-1) X, broadcast X, a message X.
        """
        n = self.n
        share = {
            "all_reduce": 2 * (n - 1) / n,
            "reduce_scatter": (n - 1) / n,
            "all_to_all": (n - 1) / n,
            "all_gather": n - 1,
        }
        return sum(
            share.get(e.what, 1) * e.nbytes for e in self.operations(rank) if e.what not in RECEIVES
        )

    @cached_property
    def num_steps(self) -> int:
        """Length of the longest chain of messages in which each waits for the arrival of the one
        before: the steps of a lockstep network. Empty messages count too."""
        clocks, longest = [0] * self.n, 0
        arrivals: dict[tuple[int, int], collections.deque[int]]
        arrivals = collections.defaultdict(collections.deque)  # by (source, destination)
        to_do = [collections.deque(_steps_of(rank)) for rank in self.ranks]
        has_moved = True
        while has_moved:  # until the end, or until a receive whose message nobody sends
            has_moved = False
            for rank, steps in enumerate(to_do):
                while steps and (steps[0][0] == "send" or arrivals[steps[0][1], rank]):
                    kind, peer = steps.popleft()
                    has_moved = True
                    if kind == "send":
                        arrivals[rank, peer].append(clocks[rank] + 1)
                        longest = max(longest, clocks[rank] + 1)
                    else:
                        clocks[rank] = max(clocks[rank], arrivals[peer, rank].popleft())
        return longest


def right_result(right_of: Callable[..., Any], case: Case) -> Any:
    """Return the right result of a case: what a grader's `right` computes."""
    known = {} if case.known is None else {"known": case.known}
    return right_of(*case.args, **known)


def _steps_of(rank: RankObservation) -> Iterator[tuple[str, int]]:
    """Yield a rank's sends where they started, and its receives where they ended."""
    for event in rank.events:
        if event.what in MESSAGES and event.peer is not None:
            yield "send", event.peer
        elif event.what == "wait" and event.began is not None:
            began = rank.events[event.began]
            if began.what in RECEIVES and began.peer is not None:
                yield "recv", began.peer


@dataclass(frozen=True)
class Observation:
    """All cases of one launch, and how the launch ended."""

    cases: list[Observed]
    failure: RunError | None
    run_mistakes: Callable[[str], Mapping[Any, Sequence[Observed]]] = lambda function: {}
    """Runs the known mistakes of a function on its cases, and returns their results by patch."""


def plain(value: Any) -> Any:
    """Copy a value into plain types: tensors as detached copies, numpy's numbers as Python's,
    ranges and arrays as lists, subclasses of tuple as tuples, huge integers as inf."""
    if type(value) is int and value.bit_length() > 1023:
        return math.inf if value > 0 else -math.inf  # it does not fit a float
    if type(value) in (int, float, str, bool, type(None)):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()  # raises for a meta tensor: it has no values
    if isinstance(value, collections.abc.Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range | collections.deque):
        return (tuple if isinstance(value, tuple) else list)(plain(item) for item in value)
    if hasattr(value, "tolist"):  # numpy's
        return value.tolist()
    return value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)


def pairs(got: Any, right: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Walk two results in parallel and yield (path, got, right) for each place.

    A path leads through lists, tuples and dicts: `[2]['loss']`. Two containers whose lengths or
    keys differ are one place.
    """
    match got, right:
        case dict(), dict() if got.keys() == right.keys():
            for key in right:
                yield from pairs(got[key], right[key], f"{path}[{key!r}]")
        case (list() | tuple(), list() | tuple()) if len(got) == len(right):
            for index, both in enumerate(zip(got, right, strict=True)):
                yield from pairs(*both, f"{path}[{index}]")
        case _:
            yield path, got, right
