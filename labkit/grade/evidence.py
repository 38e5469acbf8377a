"""What a judge looks at: the inputs, what each rank made of them, and the journals."""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.comm.operation import Operation, Region, Timeline
from labkit.grade.exchange import Arguments, Exchange, Record
from labkit.grade.harness import MARK, REGION
from labkit.grade.moving import was_moving
from labkit.grade.own_numbers import counted
from labkit.launch.errors import RunError, RunTimeout
from labkit.launch.result import Run


@dataclass(frozen=True, slots=True)
class Case:
    """One call of the code under test, on all ranks together."""

    label: str
    """The input in words: `12 float32 elements`."""
    arguments: tuple[Arguments, ...]
    """By rank; each rank gets its own and no other."""
    delays_s: tuple[float, ...]
    """By rank: the longest sleep before an operation."""
    altered: tuple[int, int] | None = None
    """(rank, number): the number-th message that this rank receives is changed on its way, or what
    it passes to its number-th collective, so that the result must be another one; what it would be
    otherwise is then wrong."""


@dataclass(frozen=True, slots=True)
class CaseEvidence:
    """What came of a case. `records` and `operations` are by rank.

    Operations have the numbers that the learner counts (own_numbers.py).
    """

    case: Case
    records: tuple[Record | None, ...]
    operations: tuple[tuple[Operation, ...], ...]
    printed: tuple[str, ...] = ()
    regions: tuple[tuple[Region, ...], ...] = ()
    """By rank: named spans that began during the case, that of the case itself left out."""

    @property
    def world_size(self) -> int:
        """How many ranks took part."""
        return len(self.records)

    @property
    def completed(self) -> list[Record]:
        """Every rank's record; empty unless the function returned on all of them."""
        done = [record for record in self.records if record is not None and record.returned]
        return done if len(done) == self.world_size else []

    def has_returned(self, rank: int) -> bool:
        """Whether the function came back on this rank (an ended run makes others raise)."""
        record = self.records[rank]
        return record is not None and record.returned

    @property
    def label(self) -> str:
        """`3 ranks, 12 float32 elements`"""
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return f"{ranks}, {self.case.label}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """All cases at one world size: one launch."""

    world_size: int
    cases: tuple[CaseEvidence, ...]
    failure: RunError | None = None
    """How the launch ended, where it did not end well."""
    was_moving: bool = False
    """Whether that was because its time was up, and it had not come to a standstill (moving.py)."""
    socket_bytes: tuple[int | None, ...] = ()
    """By rank: what the kernel counted on its sockets, over all cases."""


def collect(
    cases: Sequence[Case],
    world_size: int,
    exchange: Exchange,
    ended: Run | RunError,
    timeout_s: float,
) -> Attempt:
    """The evidence of one launch, whichever way it ended; it was given `timeout_s`."""
    timelines = [counted(each) for each in ended.timeline or [Timeline()] * world_size]
    logs = ended.logs or [""] * world_size
    evidence = tuple(
        CaseEvidence(
            case,
            tuple(
                exchange.get_record(index, rank)
                if not isinstance(ended, RunTimeout) or _is_over(index, timelines[rank])
                else None  # what has come since the journals were read, they do not tell of
                for rank in range(world_size)
            ),
            tuple(_operations_of(index, timeline) for timeline in timelines),
            tuple(_printed_in(index, log) for log in logs),
            tuple(_regions_of(index, timeline) for timeline in timelines),
        )
        for index, case in enumerate(cases)
    )
    if isinstance(ended, RunError):
        return Attempt(world_size, evidence, ended, was_moving(ended, timeout_s))
    sockets = tuple(traffic.socket_bytes for traffic in ended.traffic)
    return Attempt(world_size, evidence, socket_bytes=sockets)


def _operations_of(case: int, timeline: Timeline) -> tuple[Operation, ...]:
    """What the rank posted between the beginning and the end of its region for the case."""
    start_s, end_s = _span_of(case, timeline)
    return tuple(each for each in timeline.operations if start_s <= each.posted_s <= end_s)


def _regions_of(case: int, timeline: Timeline) -> tuple[Region, ...]:
    start_s, end_s = _span_of(case, timeline)
    return tuple(each for each in timeline.regions if start_s < each.start_s <= end_s)


def _is_over(case: int, timeline: Timeline) -> bool:
    """Whether the rank has come to the end of the case."""
    name = f"{REGION}{case}"
    return any(each.name == name and each.end_s is not None for each in timeline.regions)


def _span_of(case: int, timeline: Timeline) -> tuple[float, float]:
    """When the rank was in the case; an empty span where it never was."""
    for region in timeline.regions:
        if region.name == f"{REGION}{case}":
            return region.start_s, float("inf") if region.end_s is None else region.end_s
    return float("inf"), float("-inf")


def _printed_in(case: int, log: str) -> str:
    _, found, after = log.partition(f"{MARK}{case}\n")
    return after.partition(MARK)[0] if found else ""
