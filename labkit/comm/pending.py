"""An operation in flight, as a value."""

import enum
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from labkit.comm.journal import Journal

Result = TypeVar("Result")


def mark(error: BaseException) -> None:
    """Note on an error that it came out of a communication: mostly a consequence, not a cause."""
    error.came_from_a_communication = True  # type: ignore[attr-defined]


def is_marked(error: BaseException | None) -> bool:
    """Whether the error, or the one that it was raised from, came out of a communication."""
    while error is not None:
        if getattr(error, "came_from_a_communication", False):
            return True
        error = error.__cause__
    return False


class _State(enum.Enum):
    IN_FLIGHT = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()


class Pending(Generic[Result]):
    """An operation that was posted and may still be under way.

    `wait()` is the only way to its result. Until then the tensors handed to the operation belong
    to it: a tensor that is being sent must not change, one that is being received must not be read.
    Wait for each one, sends too: until then nobody knows that it has arrived.
    """

    def __init__(
        self,
        work: Any,
        finish: Callable[[], Result],
        journal: Journal,
        record: int,
        in_flight: set["Pending[Any]"],
    ) -> None:
        """`work`: the backend's handle. `finish`: makes the result once the work is complete.

        `in_flight`: where the group holds this one until it is complete or has failed.
        """
        self._work = work
        self._finish: Callable[[], Result] | None = finish
        self._journal = journal
        self._record = record
        self._state = _State.IN_FLIGHT
        self._in_flight = in_flight
        in_flight.add(self)
        self._result: Result

    def wait(self) -> Result:
        """Block until the operation is complete; return its result (None for a send).

        A second call returns the same result at once. Raises what the backend raises when a peer
        is gone or the group's timeout has passed; a second call then raises RuntimeError.
        """
        if self._state is _State.DONE:
            return self._result
        if self._state is _State.FAILED:
            raise RuntimeError("this operation failed when it was first waited for; see that error")
        self._journal.waiting(self._record)
        return self.complete()

    def belongs_to(self, work: Any) -> None:
        """Let `work` stand for it: the backend's handle of all messages that start together."""
        self._work = work

    def complete(self) -> Result:
        """`wait()` of a blocking operation: it has been waiting since it was posted."""
        try:
            if self._work is not None:  # nccl gives blocking operations no handle
                self._work.wait()
            assert self._finish is not None
            self._result = self._finish()
        except BaseException as error:
            mark(error)
            self._state = _State.FAILED
            self._journal.failed(self._record)
            self._in_flight.discard(self)
            raise
        self._state = _State.DONE
        self._journal.done(self._record)
        self._work = self._finish = None  # let go of the buffers
        self._in_flight.discard(self)
        return self._result
