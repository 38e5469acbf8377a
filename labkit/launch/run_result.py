"""Run: everything that a run left behind, by rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.comm import Lateness, Operation, Timeline, Topology


@dataclass(frozen=True, slots=True)
class OperationTraffic:
    """All operations of one kind on one rank."""

    count: int = 0
    payload_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def plus(self, operation: Operation) -> OperationTraffic:
        """Return the sums with one more operation."""
        return OperationTraffic(
            self.count + 1,
            self.payload_bytes + operation.payload_bytes,
            self.sent_bytes + operation.sent_bytes,
            self.received_bytes + operation.received_bytes,
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one rank sent and received, according to its journal.

    The bytes of a library collective are those of the algorithm that the backend uses (see
    comm/traffic.py). `socket_bytes` is what the kernel counted on the rank's sockets: these
    bytes and gloo's notes of 48 bytes, two for a message sent and one for a message received. None
    where there is no such count (macOS).
    """

    sent_bytes: int
    received_bytes: int
    by_operation: dict[str, OperationTraffic]
    socket_bytes: int | None = None

    @classmethod
    def of(cls, operations: Iterable[Operation], socket_bytes: int | None = None) -> Traffic:
        """Return the sums over a journal."""
        by_operation: dict[str, OperationTraffic] = {}
        for operation in operations:
            so_far = by_operation.get(operation.kind, OperationTraffic())
            by_operation[operation.kind] = so_far.plus(operation)
        return cls(
            sum(traffic.sent_bytes for traffic in by_operation.values()),
            sum(traffic.received_bytes for traffic in by_operation.values()),
            by_operation,
            socket_bytes,
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a rank held: resident memory on the CPU, allocated tensors on a GPU."""

    start_bytes: int
    peak_bytes: int

    @property
    def growth_bytes(self) -> int:
        """Growth of the peak above the bytes that were held when the function started."""
        return self.peak_bytes - self.start_bytes


@dataclass(slots=True)
class Run:
    """The result of `labkit.run`. Each list has one entry per rank.

    Times in `timeline` are seconds; 0 is the moment when the first rank began the function.
    """

    world_size: int
    device: str
    """"cpu" (gloo) or "cuda" (nccl)."""
    values: list[Any] = field(repr=False)
    """The function's value."""
    logs: list[str] = field(repr=False)
    """The rank's output, stderr included."""
    timeline: list[Timeline] = field(repr=False)
    """Its communication and computation, with times."""
    traffic: list[Traffic] = field(repr=False)
    """Bytes sent and received, in all and by operation."""
    memory: list[Memory] = field(repr=False)
    """Resident memory at the start and at the peak."""
    seconds: float = 0.0
    """From the call of `run` to its return."""
    ready_seconds: float = 0.0
    """From the call of `run` until every rank's process group was up."""
    topology: Topology | None = None
    """The links that messages were throttled to."""
    lateness: list[Lateness] = field(default_factory=list, repr=False)
    """With a topology, for each rank: messages received, and those that came late."""

    def show(self) -> None:
        """Show the run as a picture: one lane per rank (`labkit.viz.timeline`)."""
        from labkit.viz import timeline

        timeline(self).show()

    def save(self, path: str | Path) -> Path:
        """Write the run to a new folder, which `Run.load` opens on any machine.

        All of it is there afterwards, or nothing. Raises FileExistsError where something is already
        there, OSError where nothing can be written, and TypeError, naming the rank, for a value
        that cannot be pickled. The format: hosts/saved_run.py.
        """
        from labkit.hosts import saved_run

        return saved_run.save(self, path)

    @classmethod
    def load(cls, *paths: str | Path, trust: bool = False, partial: bool = False) -> Run:
        """Load a run from its folder, or from the folders of its hosts. The last attempt counts.

        trust: values that are neither plain data nor tensors are pickles, and reading one can run
        any code. Say True only where you know who wrote the folder.
        partial: take what is there. A value that is missing, damaged or not to be trusted is None;
        a failed run is returned too.

        Raises the error that the run ended with (RankError, RunError), FileNotFoundError where
        there is no run, UntrustedValue, ValueError that names missing ranks or a damaged file, and
        TypeError for what is no name of a folder.
        """
        from labkit.hosts import saved_run

        kept = saved_run.load(paths, trust=trust, partial=partial)
        first = kept.first
        return cls(
            world_size=len(kept.ranks),
            device=first.device,
            values=kept.values,
            logs=[rank.log if rank else "" for rank in kept.ranks],
            timeline=kept.timelines,
            traffic=[
                Traffic.of(timeline.operations, rank.socket_bytes if rank else None)
                for rank, timeline in zip(kept.ranks, kept.timelines, strict=True)
            ],
            memory=[Memory(*rank.memory) if rank else Memory(0, 0) for rank in kept.ranks],
            seconds=first.seconds,
            ready_seconds=first.ready_seconds,
            topology=first.topology,
            lateness=[(rank and rank.lateness) or Lateness() for rank in kept.ranks]
            if first.topology
            else [],
        )

    def to_chrome_trace(self, path: str | Path) -> Path:
        """Write the run as a trace that ui.perfetto.dev and chrome://tracing open."""
        from labkit.viz import chrome_trace

        return chrome_trace.write(self, path)
