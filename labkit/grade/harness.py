"""What a rank does while it is graded: call the code under test, and note what that does.

    driver: cases by rank  ->  attempt_cases(world, job): load the code, then for each case
                               call it with a WatchedGroup and write a RankSeen into the folder
    driver: reads them, and the journals of a run that did not end

The expected results are in none of this. Records are written case by case, so those before a crash
or a hang are there.
"""

from __future__ import annotations

import collections
import itertools
import os
import pickle
import random
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.comm import Group
from labkit.grade.observed import Event, RankSeen
from labkit.grade.submission import Code
from labkit.grade.watched import BrokenRule, WatchedGroup, learner_site

_MOST_YIELDED = 100_000
_LONGEST_PAUSE_S = 0.002
_NUM_PAUSES = 20


@dataclass(frozen=True)
class Job:
    """The code under test, and how it is run. Travels to every rank."""

    folder: str
    code: Code
    functions: tuple[str, ...]
    """By case: which function is called."""
    late: tuple[int | None, ...]
    """By case: the rank that hesitates before each operation."""
    call: Callable[[Watch, tuple[Any, ...]], Any]
    allowed: tuple[str, ...] | None
    """Operations of the group; None: the code gets no group."""
    closed: tuple[str, ...]
    num_arguments: int | None
    watch_memory: bool

    def record(self, case: int, rank: int) -> Path:
        """Where a rank leaves what it did with a case."""
        return Path(self.folder, f"record-{case}-{rank}")


def attempt_cases(world: Group, job: Job, cases: Sequence[tuple[Any, ...]]) -> None:
    """Run on every rank: the code under test on all its cases. Raises what that code raises."""
    _close(job.closed)
    watch = Watch(world, job)
    earlier: list[Any] = []  # kept, so that no two results have the same memory by chance
    for index, args in enumerate(cases):
        own = pickle.loads(cloudpickle.dumps(args))  # `args` stay what they were
        watch.begin_case(index, own)
        if world.size > 1:
            # No rank is in the next case while another is in this one: messages cannot mix.
            with world.label(MEETING):
                world.all_reduce(torch.zeros(3, dtype=torch.uint8))  # which no exercise sends
        print(f"{MARK}{index}", flush=True)
        # Under one label: two calls in another order are the grader's to name, by their results.
        with world.region(f"{REGION}{index}"), world.label(UNDER_TEST):
            seen, error = _attempt(watch, index, own, earlier)
        path = job.record(index, world.rank)
        path.with_suffix(".part").write_bytes(_pickled(seen))
        os.replace(path.with_suffix(".part"), path)
        if error is not None:
            raise error


REGION = "\x02case "
"""Regions of the journal with this name say which operations belong to which case."""
MARK = "\x02case "
"""Lines of the output with which the cases begin."""
UNDER_TEST = "the function under test"
MEETING = "\x02between cases"
"""The label of the operations with which ranks meet between two cases."""


def _attempt(
    watch: Watch, index: int, args: tuple[Any, ...], earlier: list[Any]
) -> tuple[RankSeen, BaseException | None]:
    seen, output, error = RankSeen(), None, None
    try:
        with watch:
            watch.load_function(index, args)
            output = watch.job.call(watch, args)
            if isinstance(output, Iterator):
                output = list(itertools.islice(output, _MOST_YIELDED))
            watch.require_all_waited()
        seen.returned = True
    except BaseException as raised:
        error = raised
        if isinstance(raised, BrokenRule):
            watch.refuse(raised)
        seen.error = f"{type(raised).__name__}: {raised}"
    if watch.broken is not None:
        broken = watch.broken
        seen.returned, error = False, error or broken
        seen.broke, seen.broke_how, seen.site = broken.name, str(broken), broken.site
    parts = list(_tensors(output))
    seen.is_input = any(_share_memory(part, x) for part in parts for x in _tensors(args))
    seen.is_earlier = any(_share_memory(part, x) for part in parts for x in earlier)
    earlier += parts
    seen.output, seen.args, seen.events = plain(output), plain(args), watch.events
    seen.peak_bytes, seen.largest = watch.peak_bytes, watch.largest
    return seen, error


class Watch(TorchDispatchMode):
    """What the harness and a grader's `call` know of one rank: the function, its group, its events.

    `function`: the learner's function that the case is for. `group`: the watched world; `groups`:
    (group,), or () for functions without one. `note(what, value)` adds to the events of the case.
    `live_bytes`: of tensors made since the call began that are alive.
    """

    def __init__(self, world: Group, job: Job) -> None:
        super().__init__()
        self.job, self.world = job, world
        self.group = WatchedGroup(self, world, "world")
        self.groups = () if job.allowed is None else (self.group,)
        self._axes: dict[Any, dict[str, WatchedGroup]] = {}
        self._random = random.Random(world.rank)
        self._functions: dict[str, Callable[..., Any]] = {}

    def begin_case(self, index: int, args: tuple[Any, ...]) -> None:
        """Forget the last case."""
        self.events: list[Event] = []
        self.pending: dict[int, Any] = {}
        self.broken: BrokenRule | None = None
        self.peak_bytes = self.largest = 0
        self._known = {x.untyped_storage()._cdata: x for x in _tensors(args)}
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._is_open = False
        is_late = self.job.late[index] == self.world.rank
        self._num_pauses = _NUM_PAUSES if is_late else 0

    def load_function(self, index: int, args: tuple[Any, ...]) -> None:
        """Load the function that the case is for."""
        count = self.job.num_arguments or len(args) + len(self.groups)
        self.function = self.load(self.job.functions[index], count)

    def load(self, name: str, num_arguments: int) -> Callable[..., Any]:
        """A function of the learner's, loaded once."""
        if name not in self._functions:
            self._functions[name] = self.job.code.load(name, num_arguments)
        return self._functions[name]

    def note(self, what: str, value: Any = None) -> None:
        """Add an event of the grader's own, at this place in the order of events."""
        self.events.append(
            Event(what, is_note=True, value=plain(value), live_bytes=self.live_bytes)
        )

    def mesh(self, **sizes: int) -> types.SimpleNamespace:
        """A mesh whose groups are watched: mesh.tp, mesh.world. Every rank makes the same ones."""
        from labkit.mesh import Mesh

        key = tuple(sizes.items())
        if key not in self._axes:  # making groups takes longer than what is done with them
            with self.opened():
                mesh = Mesh(self.world, **sizes)
            self._axes[key] = {
                axis: WatchedGroup(self, getattr(mesh, axis), axis) for axis in sizes
            }
        return types.SimpleNamespace(world=self.group, sizes=dict(sizes), **self._axes[key])

    def pause(self) -> None:
        """Be late, on the rank that this case wants late."""
        if self._num_pauses:
            self._num_pauses -= 1
            time.sleep(self._random.uniform(0, _LONGEST_PAUSE_S))

    def refuse(self, error: BrokenRule) -> BrokenRule:
        """Remember the first broken rule, for code that catches every exception; and return it."""
        self.broken = self.broken or error
        return error

    def require_all_waited(self) -> None:
        """Raise for the first operation that was never waited for."""
        for index in sorted(self.pending):
            event = self.events[index]
            raise self.refuse(
                BrokenRule(
                    "never waits for an operation",
                    f"the {event.what} was never waited for: the function returned while it was "
                    "under way. Call wait() on its Pending",
                    event.site,
                )
            )

    @contextmanager
    def opened(self) -> Iterator[None]:
        """For this block communication passes, and tensors made in it do not count."""
        before, self._is_open = self._is_open, True
        try:
            yield
        finally:
            self._is_open = before

    @property
    def live_bytes(self) -> int:
        """Of tensors made since the call began, and alive; 0 where memory is not watched."""
        return sum(storage.nbytes() for storage in self.live_storages())

    def live_storages(self) -> list[torch.UntypedStorage]:
        """Memory of tensors made since the call began that is alive, arguments left out."""
        alive = (ref() for ref in list(self._live.values()))
        return [storage for storage in alive if storage is not None]

    def follow(self, x: torch.Tensor) -> None:
        """Count a tensor's memory from now on."""
        if not self.job.watch_memory or x.layout is not torch.strided:
            return
        storage = x.untyped_storage()
        key = storage._cdata
        if key not in self._known and key not in self._live:
            self._live[key] = weakref.ref(storage, lambda _: self._live.pop(key, None))
            self.largest = max(self.largest, storage.nbytes() // x.element_size())
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, the default, imports torch._dynamo at the first operator: 3 seconds

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform an operator of torch, unless it communicates outside the group that was given."""
        if not self._is_open and "c10d" in func.namespace:
            raise self.refuse(self.forbidden(f"torch.distributed ({func.overloadpacket})"))
        result = func(*args, **(kwargs or {}))
        if self.job.watch_memory and not self._is_open:
            for each in _tensors(result):
                self.follow(each)
        return result

    def forbidden(self, operation: str) -> BrokenRule:
        """The error for an operation that the exercise does not allow."""
        names = ", ".join(f"group.{name}" for name in self.job.allowed or ())
        return BrokenRule(
            "calls an operation that is not allowed",
            f"{operation} is not allowed in this exercise; "
            + (f"use {names}" if names else "the functions only calculate"),
            learner_site(),
        )


class _Closed(types.ModuleType):
    """Stands for a module that has the answer: whatever is looked up in it is refused."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__path__", "__all__"):
            raise AttributeError(name)  # what inspect looks at in every module
        what = self.__name__ if name.startswith("__") else f"{self.__name__}.{name}"
        raise BrokenRule(
            "calls the answer itself",
            f"{what} has the answer, or most of it; write it yourself",
            learner_site(),
        )


def _close(names: Sequence[str]) -> None:
    """From now on, importing from these modules and calling them raises BrokenRule."""
    for name in names:
        for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
            sys.modules[loaded] = _Closed(loaded)
        sys.modules[name] = _Closed(name)
        parent, _, attribute = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], attribute, sys.modules[name])


def plain(value: Any) -> Any:
    """The value as it is now, of plain types: tensors as detached copies, numpy's numbers as
    Python's, ranges and arrays as lists, named tuples and such as tuples."""
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return value.clone() if value.layout is torch.strided else value.to_dense()
    if isinstance(value, collections.abc.Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range | collections.deque):
        return (tuple if isinstance(value, tuple) else list)(plain(item) for item in value)
    if hasattr(value, "tolist"):  # numpy's
        return value.tolist()
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    if not one.numel() or not other.numel():
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _pickled(seen: RankSeen) -> bytes:
    try:
        return cloudpickle.dumps(seen)
    except Exception:  # a lock, a generator, a module: no result that anyone could compare
        seen.output = f"<{type(seen.output).__name__}>"
        seen.args = ()
        return cloudpickle.dumps(seen)
