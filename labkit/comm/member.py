"""The steps that all operations of a group share, from the entry in the journal to the result.

Member is one rank's place in a group. Pending is an operation in flight, as a value. NamedSpans has
the names that a program gives with `with`: a region of its own work, a label for operations.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from labkit.comm import staging
from labkit.comm.journal import NO_PEER, Journal
from labkit.comm.mismatch import WITHOUT_DATA, OperationMismatch, equal_shape
from labkit.comm.mismatch_detector import NO_PEERS, MismatchDetector, SameHostRanks, hashed
from labkit.comm.operation import NETWORK
from labkit.comm.throttle import Throttle
from labkit.comm.traffic import Traffic

Result = TypeVar("Result")


def mark(error: BaseException) -> None:
    """Mark an error as one of a communication: mostly a consequence, not a cause."""
    error.is_communication_error = True  # type: ignore[attr-defined]


def is_marked(error: BaseException | None) -> bool:
    """Return whether the error, or the one that it was raised from, is one of a communication."""
    while error is not None:
        if getattr(error, "is_communication_error", False):
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
    Wait for each one, sends too: only `wait()` shows that a message has arrived.
    """

    def __init__(
        self,
        work: Any,
        finish: Callable[[], Result],
        journal: Journal,
        record: int,
        in_flight: set[Pending[Any]],
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
        """Wait for `work` instead: the backend's handle of all messages that start together."""
        self._work = work

    def complete(self) -> Result:
        """Block like `wait()`, for an operation that has waited since it was posted."""
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


# Each thread has its own: hooks of a backward pass may run on other threads than the main one.
_label: ContextVar[str | None] = ContextVar("label", default=None)


def current_label() -> str | None:
    """Return the label of this thread's operations, if it has one."""
    return _label.get()


@contextmanager
def messages_of(kind: str, x: torch.Tensor, root: int | None = None) -> Iterator[None]:
    """Label a collective's messages, if they have no label, by what must be equal on all ranks.

    Chunks are flat, so those of another shape of x, or of another algorithm, would fit as well.
    """
    label = f"{kind} of {x.dtype} {tuple(x.shape)}".replace("torch.", "")
    label += "" if root is None else f" from rank {root}"
    with _labelled(label if current_label() is None else current_label()):
        yield


@contextmanager
def _labelled(name: str | None) -> Iterator[None]:
    token = _label.set(name)
    try:
        yield
    finally:
        _label.reset(token)


class NamedSpans:
    """Names that a Group offers for `with`: a region of the timeline, a label for operations."""

    _journal: Journal

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Name a span of this rank's work, for the timeline: `with world.region("forward"):`."""
        if not isinstance(name, str):
            raise TypeError(f"region names a span of work: {name!r} is no text")
        record = self._journal.begin_region(name)
        try:
            yield
        finally:
            self._journal.done(record)

    @contextmanager
    def label(self, name: str) -> Iterator[None]:
        """Say what the operations inside are for: `with world.label(parameter_name):`.

        Operations are matched by order alone, and two iterations of a loop look the same. Labels
        are compared like shapes: if operations that meet have different ones, the ranks get a
        OperationMismatch. The innermost label counts.
        TypeError: a name that is no text.
        """
        if not isinstance(name, str):
            raise TypeError(f"a label says what an operation is for: {name!r} is no text")
        with _labelled(name):
            yield


class Member(NamedSpans):
    """One rank's place in a group, and the journal that its operations go to."""

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        ranks: tuple[int, ...],
        device: torch.device,
        journal: Journal,
        name: str = "world",
        timeout: timedelta | None = None,
        same_host: SameHostRanks = NO_PEERS,
        throttle: Throttle | None = None,
    ) -> None:
        """Programs do not call this; `labkit.run`, `Group.default` and `Group.split` do."""
        # Its methods rather than dist.all_reduce and the like: those add about 10 us of checks
        # and logging per call, which is a tenth of a small all_reduce.
        self._process_group: Any = staging.through_host(process_group, device)
        self._torch_group: dist.ProcessGroup | None = process_group  # below staging and throttle
        is_staged = self._process_group is not process_group
        self._is_gloo = process_group.name() == "gloo" and not is_staged
        self.rank = process_group.rank()
        self._throttle = throttle
        if throttle is not None:
            self._process_group = throttle.throttled(self._process_group, name, ranks, self.rank)
        self.size = process_group.size()
        self.ranks = ranks
        self.device = device
        self.name = name
        self._timeout = timeout
        self._journal = journal
        self._journal_group = journal.group(name, ranks)
        self._same_host = same_host
        self._detector: Any = MismatchDetector(same_host, name, ranks, self.rank)
        self._num_collectives = 0
        self._num_splits = 0
        # Held until waited for: gloo cancels an operation whose handle is dropped.
        self._in_flight: set[Pending[Any]] = set()
        self._num_sent = [0] * self.size
        self._num_received = [0] * self.size

    def __repr__(self) -> str:
        """Which rank of which group this is."""
        return f"Group({self.name}, rank {self.rank} of {self.size}, ranks={list(self.ranks)})"

    @property
    def backend(self) -> str:
        """The backend of the messages: "gloo" or "nccl". Staged and throttled ones are gloo's."""
        is_own = isinstance(self._process_group, dist.ProcessGroup)
        return dist.get_backend(self._process_group) if is_own else "gloo"

    @property
    def torch_name(self) -> str:
        """The name by which a traced graph finds this group's process group.

        RuntimeError on throttled links, which only the operations of a Group go over.
        """
        if self._throttle is not None:
            raise RuntimeError(
                f"{self!r} has throttled links, and collectives in a compiled graph do not go over "
                "them; call run() without topology"
            )
        assert self._torch_group is not None  # a closed group has no name to give
        return str(self._torch_group.group_name)

    def _post(
        self,
        kind: str,
        x: torch.Tensor,
        traffic: Traffic,
        blocking: bool,
        *,
        reduce: str | None = None,
        peer: int | None = None,
        splits: Sequence[Sequence[int]] | None = None,
        medium: str = NETWORK,
    ) -> int:
        """Enter a collective in the journal, and compare it with the others'. peer: in the group.

        Raises OperationMismatch.
        """
        self._detector.require_in_step()
        self._num_collectives += 1
        sequence = self._num_collectives
        root = NO_PEER if peer is None else self.ranks[peer]
        call, label = self._journal.caller(), current_label()
        meant = hashed(kind, medium, root, reduce, label, x.dtype, equal_shape(kind, x.shape))
        # Declared, then written into the journal, then compared: a later rank finds both, and no
        # rank compares before others can see its own declaration (mismatch_detector.py).
        if label is None and kind not in WITHOUT_DATA:
            self._detector.declare(sequence, meant, hashed(call.text))
        else:
            self._detector.declare(sequence, meant)
        if splits is not None:
            self._detector.pairs.declare_rows(sequence, *splits)
        record = self._journal.post(
            kind,
            self._journal_group,
            sequence,
            x,
            sent_bytes=traffic.sent,
            received_bytes=traffic.received,
            blocking=blocking,
            reduce=reduce,
            peer=root,
            splits=splits,
            call=call,
            label=label,
            medium=medium,
        )
        self._compare(record, sequence, has_rows=splits is not None)
        return record

    def _compare(self, record: int, sequence: int, *, has_rows: bool) -> None:
        """Compare with the other ranks. Raises OperationMismatch before the operation starts."""
        try:
            self._detector.compare(sequence)
            if has_rows:
                self._detector.pairs.compare_rows(sequence)
        except OperationMismatch as why:
            self._refuse(record, why)
            raise

    def _refuse(self, record: int, why: OperationMismatch) -> None:
        """Let neither this operation nor a later one of this group start."""
        self._journal.failed(record)
        self._detector.refuse(why)

    @contextmanager
    def _under_way(self, record: int) -> Iterator[None]:
        """Note the end of an operation that the block performs. If the block raises, it failed."""
        try:
            yield
        except BaseException:
            self._journal.failed(record)
            raise
        self._journal.done(record)

    def _started(
        self,
        start: Callable[[], Any],
        finish: Callable[[], Any],
        record: int,
        blocking: bool,
        *,
        is_message: bool = False,
    ) -> Any:
        """Start the operation on the backend. Returns its result; a Pending if not `blocking`.

        is_message: a send or recv, of which no backend tells when it is complete.
        """
        try:
            work = start()
        except BaseException as error:
            self._journal.failed(record)
            mark(error)
            raise
        if self._is_gloo and not (blocking or is_message):
            # On gloo's own thread, before `wait()` returns. (nccl's futures complete when their
            # kernel is launched.)
            # gloo's reduce-scatter has no future, and neither has a work of the caller's own group.
            with suppress(RuntimeError, AttributeError):
                work.get_future().add_done_callback(lambda _: self._journal.completed(record))
        pending = Pending(work, finish, self._journal, record, self._in_flight)
        return pending.complete() if blocking else pending
