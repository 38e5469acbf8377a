"""A gate in front of the network: communication passes only while the grader holds it open.

Every way to the wire that torch offers - torch.distributed's functions, a ProcessGroup's methods,
functional collectives, batched messages, pickled objects - becomes an operator of the namespace
c10d or _c10d_functional, and a dispatch mode sees every operator of its thread. So one gate
stands for all of them, and calls that were imported long before grading are caught as well.

A thread that the learner's code starts through `threading` has a gate of its own from its first
call on: code may use threads, and may not communicate in them either. What watches functions of
torch in the one thread, watches them in all (`watching`). Threads that are not `threading`'s, which
nobody would see, are refused, and so are files with answers in them (answer_files.py).

Not caught: what does not go through torch at all (sockets of its own). The judge compares journals
with each other, and with what the kernel counted on the sockets (ledger.py).
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.grade.answer_files import opened_answer
from labkit.grade.bare_threads import BareThreads
from labkit.grade.closed_book import StoppedTheWatch
from labkit.grade.rules import BrokenRule, CalledTheAnswer, ForbiddenOperation, learner_site


class Gate(TorchDispatchMode):
    """Inside `with gate:`, communication outside `with gate.opened():` is a ForbiddenOperation.

    `broken` keeps what was raised, for code that catches every exception, and for threads.
    Costs about 4 microseconds per operator of torch.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        """`allowed`: the operations that the message recommends instead."""
        super().__init__()
        self._allowed = allowed
        # Of each thread: one that a right answer starts must not shut the gate for another.
        self._of_thread = threading.local()
        self.broken: list[BrokenRule] = []
        self._watches: list[TorchFunctionMode] = []
        self._is_shut = self._has_hook = False
        self._bare_threads = BareThreads(self._bare_thread)

    def __enter__(self) -> Self:
        """Close the gate, in this thread and in those that it starts."""
        if not self._has_hook:  # which nobody can take away again
            sys.addaudithook(self._audit)
        self._is_shut = self._has_hook = True
        self._bare_threads.refuse()
        # Called first thing in each new thread; modes belong to a thread, and this enters one.
        threading.setprofile(self._enter_in_thread)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Threads that were started in between stay behind the gate."""
        super().__exit__(*raised)
        threading.setprofile(None)
        self._bare_threads.allow()
        self._is_shut = False

    def _enter_in_thread(self, *_: Any) -> None:
        sys.setprofile(None)
        _InThread(self).__enter__()  # until the thread ends
        _FunctionsInThread(self).__enter__()

    @contextmanager
    def watching(self, mode: TorchFunctionMode) -> Iterator[None]:
        """Let `mode` see the functions of torch that any thread calls, for this block."""
        self._watches.append(mode)
        try:
            with mode:
                yield
        finally:
            self._watches.remove(mode)

    def _bare_thread(self) -> BrokenRule:
        site = learner_site()
        message = (
            f"a thread of _thread at {site}: nobody would see what it does; start it with "
            "threading.Thread"
        )
        return self.refuse(StoppedTheWatch(message, site))

    def _audit(self, event: str, arguments: Sequence[Any]) -> None:
        """Called by Python when a file is opened, and at much else."""
        if not self._is_shut or self.is_open:
            return
        path = opened_answer(event, arguments)
        if path is not None:
            message = f"{path} has the answer in it; work it out"
            raise self.refuse(CalledTheAnswer(message, learner_site()))

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let communication through for the length of this block."""
        was_open, self._of_thread.is_open = self.is_open, True
        try:
            yield
        finally:
            self._of_thread.is_open = was_open

    @property
    def is_open(self) -> bool:
        """Whether a group is communicating in this thread."""
        return getattr(self._of_thread, "is_open", False)

    def refuse(self, error: BrokenRule) -> BrokenRule:
        """Remember `error`; the caller raises it."""
        self.broken.append(error)
        return error

    def forbid(self, operation: str) -> BrokenRule:
        """The error for an operation that is not allowed; the caller raises it."""
        site = learner_site()
        return self.refuse(
            ForbiddenOperation(
                f"{operation} is not allowed in this exercise (called at {site}); "
                f"use {', '.join(f'group.{name}' for name in self._allowed)}",
                site,
            )
        )

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True, the default, imports torch._dynamo at the first operator: 3 seconds, on every rank.
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform `func`, unless it communicates and the gate is closed."""
        if not self.is_open and "c10d" in func.namespace:
            raise self.forbid(f"torch.distributed ({func.overloadpacket})")
        return func(*args, **(kwargs or {}))


class _InThread(TorchDispatchMode):
    """The part of a gate that stands in another thread."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as Gate's

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """As Gate's."""
        return self._gate.__torch_dispatch__(func, types, args, kwargs)


class _FunctionsInThread(TorchFunctionMode):
    """What watches functions of torch, in another thread."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform `func`, as whoever watches at the moment does it."""
        for watch in self._gate._watches[-1:]:
            return watch.__torch_function__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))
