"""A gate in front of the network: communication passes only while the grader holds it open.

Every way to the wire that torch offers - torch.distributed's functions, a ProcessGroup's methods,
functional collectives, batched messages, pickled objects - becomes an operator of the namespace
c10d or _c10d_functional, and a dispatch mode sees every operator of its thread. So one gate
stands for all of them, and calls that were imported long before grading are caught as well.

A thread that the learner's code starts through `threading` has a gate of its own from its first
call on: code may use threads, and may not communicate in them either.

Not caught: what does not go through torch at all (files, sockets of its own), and threads that are
not `threading`'s. The judge compares journals with each other, and with what the kernel counted on
the sockets (ledger.py).
"""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from torch.utils._python_dispatch import TorchDispatchMode

from labkit.grade.rules import BrokenRule, ForbiddenOperation, learner_site


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

    def __enter__(self) -> Self:
        """Close the gate, in this thread and in those that it starts."""
        # Called first thing in each new thread; modes belong to a thread, and this enters one.
        threading.setprofile(self._enter_in_thread)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Threads that were started in between stay behind the gate."""
        super().__exit__(*raised)
        threading.setprofile(None)

    def _enter_in_thread(self, *_: Any) -> None:
        sys.setprofile(None)
        _InThread(self).__enter__()  # until the thread ends

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
