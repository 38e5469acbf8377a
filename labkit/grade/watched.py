"""WatchedGroup, the group for code under test: it allows fewer operations and records all of them.

It makes mistakes visible that timing usually hides:
- a tensor that is sent is compared, at wait(), with what it was when the send began;
- a receive, or a collective with wait=False, fills the learner's buffer at wait() and no earlier:
  until then the buffer holds NaN, or 113 in integers, so that code that reads early gets it wrong;
- copies are sent, so that no thread of the backend keeps the learner's tensor alive.
"""

from __future__ import annotations

import math
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.comm import Group
from labkit.comm.callers import is_of_a_library
from labkit.comm.operation import Site
from labkit.grade.observed import Event, plain, tensors_in
from labkit.grade.submission import Code

Tensor = torch.Tensor
_UNLIKELY_INTEGER = 113
_LATE_S = 0.001


class BrokenRule(BaseException):
    """The code under test did what its exercise does not allow. `name` is the mistake's name.

    It is no subclass of Exception, so that `except Exception` in that code does not catch it.
    """

    def __init__(self, name: str, message: str, site: Site | None) -> None:
        super().__init__(message)
        self.name, self.site = name, site


def learner_site() -> Site:
    """Return the innermost line on the stack that is neither labkit's nor a library's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_of_a_library(frame.f_code.co_filename):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """True if shape, dtype and every bit are the same: NaN equals itself, -0.0 is not 0.0."""
    both = (x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (one, other))
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(*both)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The code under test, and how to run it. It is sent to every rank."""

    folder: str
    codes: tuple[Code, ...]
    """By case: the code under test."""
    functions: tuple[str, ...]
    """By case: which function is called."""
    call: Callable[[Watch, tuple[Any, ...]], Any]
    allowed: tuple[str, ...]
    """Operations of the group that the code may use. If empty, the code gets no group."""
    closed: tuple[str, ...]
    watch_memory: bool
    continue_after_failure: bool
    """True if the cases after a failing one are run too: on one rank only."""

    def records(self, rank: int) -> Path:
        """Return the file for a rank's records: a pickled RankObservation for each case."""
        return Path(self.folder, f"records-{rank}")


class Watch(TorchDispatchMode):
    """State of one rank for the harness and a grader's `call`: the function, its group, its events.

    `group`: the watched world; `groups`: (group,), or () for functions without one.
    """

    def __init__(self, world: Group, job: Job) -> None:
        super().__init__()
        self.job, self.world = job, world
        self.group = WatchedGroup(self, world)
        self.groups = (self.group,) if job.allowed else ()
        self._split_groups: dict[tuple[int, ...], Any] = {(0,) * world.size: world}
        self._index = 0
        self._functions: dict[str, Callable[..., Any]] = {}

    def begin_case(self, index: int, args: tuple[Any, ...]) -> None:
        """Reset the state for the next case; drop the loaded code if this case has another."""
        if self.job.codes[index] is not self.job.codes[self._index]:
            self._functions.clear()
            sys.modules.pop("submission", None)
        self._index = index
        self.events: list[Event] = []
        self.pending: dict[int, Any] = {}
        self.peak_bytes = self.largest = 0
        given = tensors_in(args) if self.job.watch_memory else ()
        self._known = {x.untyped_storage()._cdata: x for x in given}
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        is_last = index == len(self.job.codes) - 1
        self.is_late = is_last and self.world.rank == index % self.world.size

    @property
    def code(self) -> Code:
        """The code under test."""
        return self.job.codes[self._index]

    @property
    def function(self) -> Callable[..., Any]:
        """The learner's function that the case is for."""
        return self.load(self.job.functions[self._index])

    def load(self, name: str) -> Callable[..., Any]:
        """Return a function of the learner's code, which is loaded once."""
        if name not in self._functions:
            self._functions[name] = self.code.load(name)
        return self._functions[name]

    def note(self, what: str, value: Any = None) -> None:
        """Add a note of the grader to the events."""
        self.events.append(
            Event(what, is_note=True, value=plain(value), live_bytes=self.live_bytes)
        )

    @contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Add the call, such as `free(3)`, to the message of an error that the block raises."""
        try:
            yield
        except Exception as error:
            error.add_note(f"in the call {what}")
            raise

    def mesh(self, **sizes: int) -> types.SimpleNamespace:
        """Return a mesh whose groups are watched: mesh.tp, mesh.world. Every rank must call this.

        Making groups is slow, so two axes that divide the ranks alike share their groups.
        """
        from labkit.mesh import ranks_along

        mesh = types.SimpleNamespace(world=self.group, sizes=sizes)
        for axis in sizes:
            firsts = tuple(ranks_along(axis, rank, sizes)[0] for rank in range(self.world.size))
            if firsts not in self._split_groups:
                with self.opened():
                    self._split_groups[firsts] = self.world.split(firsts[self.world.rank])
            setattr(mesh, axis, WatchedGroup(self, self._split_groups[firsts]))
        return mesh

    def require_all_waited(self) -> None:
        """Raise for the first operation that was never waited for."""
        if self.pending:
            event = self.events[min(self.pending)]
            why = (
                f"the {event.what} was never waited for: the function returned while it was under "
                "way. Call wait() on its Pending"
            )
            raise BrokenRule("never waits for an operation", why, event.site)

    def opened(self) -> AbstractContextManager[Any]:
        """Allow communication in a block, and do not count the tensors that it makes."""
        return torch._C._DisableTorchDispatch()

    @property
    def live_bytes(self) -> int:
        """Bytes of live tensors made since the call began; 0 without watch_memory."""
        return sum(storage.nbytes() for storage in self.live_storages())

    def live_storages(self) -> list[torch.UntypedStorage]:
        """Return the live memory of tensors made since the call began, without the arguments'."""
        return [each for ref in list(self._live.values()) if (each := ref()) is not None]

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
        """Perform an operator of torch, unless it communicates outside the watched group."""
        if "c10d" in func.namespace:
            raise self.forbidden(f"torch.distributed ({func.overloadpacket})")
        result = func(*args, **(kwargs or {}))
        if self.job.watch_memory:
            for each in tensors_in(result):
                self.follow(each)
        return result

    def forbidden(self, operation: str) -> BrokenRule:
        """Return the error for an operation that the exercise does not allow."""
        names = ", ".join(f"group.{name}" for name in self.job.allowed)
        return BrokenRule(
            "calls an operation that is not allowed",
            f"{operation} is not allowed in this exercise; "
            + (f"use {names}" if names else "the functions only calculate"),
            learner_site(),
        )


class WatchedGroup:
    """A Group for code under test: rank, size, ranks, device, and the operations allowed."""

    def __init__(self, watch: Watch, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self.ranks, self.device = group.ranks, group.device
        self.region, self.label = group.region, group.label
        self._watch, self._group = watch, group

    def isend(self, x: Tensor, dst: int) -> WatchedPending:
        """As Group.isend."""
        index = self._begin("isend", x, dst)
        with self._watch.opened():
            pending = self._group.isend(_copy(x), dst)
        return WatchedPending(self._watch, index, pending, x, fills=None)

    def irecv(self, buffer: Tensor, src: int) -> WatchedPending:
        """As Group.irecv; `buffer` holds nonsense until wait() fills it."""
        index = self._begin("irecv", buffer, src)
        with self._watch.opened():
            staging = torch.empty_like(buffer)
            pending = self._group.irecv(staging, src)
            _fill_with_nonsense(buffer)
        return WatchedPending(self._watch, index, pending, buffer, fills=buffer)

    def send(self, x: Tensor, dst: int) -> None:
        """As Group.send."""
        index = self._begin("send", x, dst)
        with self._watch.opened():
            self._group.send(_copy(x), dst)
        self._end(index)

    def recv(self, buffer: Tensor, src: int) -> Tensor:
        """As Group.recv."""
        index = self._begin("recv", buffer, src)
        with self._watch.opened():
            received = self._group.recv(buffer, src)
        self._end(index)
        return received

    def __getattr__(self, name: str) -> Any:
        """Return a watched collective of Group. Its call raises unless the exercise allows it."""
        if name.startswith("_") or not hasattr(Group, name):
            raise AttributeError(
                f"a group has no {name!r}; here there are rank, size, device, ranks, region, label "
                f"and {', '.join(self._watch.job.allowed)}"
            )

        def collective(*args: Any, **options: Any) -> Any:
            x = args[0] if args else options.get("x")
            index = self._begin(name, x)
            out = None if name == "scatter" else options.pop("out", None)
            with self._watch.opened():
                copies = [_copy(each) if each is x else each for each in args]
                options.update({"x": _copy(x)} if "x" in options else {})
                try:
                    result = getattr(self._group, name)(*copies, **options)
                except ValueError as error:  # the advice could be the exercise's solution
                    raise ValueError(str(error).partition(", or use labkit.")[0]) from None
            if options.get("wait", True):
                self._end(index)
                return _fill(out, result, self._watch)
            if out is not None:
                with self._watch.opened():
                    _fill_with_nonsense(out)
            return WatchedPending(self._watch, index, result, x if out is None else out, fills=out)

        return collective

    def _begin(self, what: str, x: Any, peer: int | None = None) -> int:
        """Record the start of an operation; return its position in the events.

        Raises BrokenRule if the exercise does not allow it. On the late rank it sleeps first.
        """
        watch = self._watch
        if what not in watch.job.allowed:
            raise watch.forbidden(f"group.{what}")
        if watch.is_late:
            time.sleep(_LATE_S)
        event = Event(what, peer=peer, site=learner_site())
        if isinstance(x, Tensor):
            event.shape, event.dtype, event.nbytes = tuple(x.shape), x.dtype, x.nbytes
        event.live_bytes = watch.live_bytes
        watch.events.append(event)
        return len(watch.events) - 1

    def _end(self, index: int) -> None:
        self._watch.events.append(Event("wait", began=index))


class WatchedPending:
    """A Pending of a watched group."""

    def __init__(
        self, watch: Watch, index: int, pending: Any, x: Any, fills: Tensor | None
    ) -> None:
        """x: the learner's tensor, which must not change before wait(). fills: the learner's buffer
        that wait() fills, if there is one."""
        self._watch, self._index, self._pending = watch, index, pending
        self._x, self._fills = x, fills
        with watch.opened():
            self._before = x.detach().clone() if isinstance(x, Tensor) else None
        self._is_done, self._result = False, None
        watch.pending[index] = self
        watch.events[index].is_pending = True

    def wait(self) -> Any:
        """Block until the operation is complete; return its result, or None for a send."""
        if self._is_done:
            return self._result
        watch = self._watch
        with watch.opened():
            result = self._pending.wait()
            has_changed = self._before is not None and not same_bytes(self._x, self._before)
        self._is_done = True
        watch.pending.pop(self._index, None)
        began = watch.events[self._index]
        watch.events.append(Event("wait", began=self._index, site=learner_site()))
        if has_changed:
            raise self._changed(began)
        self._result = _fill(self._fills, result, watch)
        self._x = self._before = self._pending = self._fills = None
        return self._result

    def _changed(self, began: Event) -> BrokenRule:
        if self._fills is None:
            return BrokenRule(
                "the tensor changed before the operation completed",
                f"a tensor of shape {began.shape} was handed to {began.what}, and something wrote "
                "to it before wait(): wait first, or hand over a copy",
                began.site,
            )
        return BrokenRule(
            "the buffer changed before its operation completed",
            f"a buffer of shape {began.shape} was handed to {began.what}, and something wrote to "
            "it before wait(), perhaps another receive into the same memory. Give each operation "
            "a buffer of its own, and compute with the result after wait()",
            began.site,
        )


def _copy(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, Tensor) else x


def _fill(out: Tensor | None, result: Any, watch: Watch) -> Any:
    """Copy the result into the learner's buffer if there is one, and return it."""
    if out is not None:
        with watch.opened():
            out.detach().copy_(result)
        return out
    if isinstance(result, Tensor):
        watch.follow(result)
    return result


def _fill_with_nonsense(buffer: Tensor) -> None:
    """Fill a buffer with a value that no right answer has."""
    buffer.detach().fill_(math.nan if buffer.dtype.is_floating_point else _UNLIKELY_INTEGER)
