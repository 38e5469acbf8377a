"""The order of events in a backward pass: gradients that are there, all-reduces, waits."""

from dataclasses import dataclass

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.overlap_inputs import READY, THROUGH, Given
from labkit.grade.outcome import Finding, Outcome


@dataclass(frozen=True)
class Events:
    """Of one rank, from its journal; times on its clock."""

    ready: list[tuple[float, str]]
    """(when, parameter), in order."""
    through_s: float
    operations: tuple[Operation, ...]

    @property
    def last_ready_s(self) -> float:
        """When the last gradient was there."""
        return self.ready[-1][0]

    def text(self) -> str:
        """One event per line."""
        events = [(when, f"gradient of {name} is there") for when, name in self.ready]
        events.append((self.through_s, "backward is through"))
        for each in self.operations:
            events.append((each.posted_s, f"{each.name} begins, {each.payload_bytes} bytes"))
            if each.waited_s is not None and each.waited_s > each.posted_s:
                events.append((each.waited_s, f"waits for {each.name}"))
        return "\n".join(line for _, line in sorted(events))


def events_on(evidence: CaseEvidence, rank: int) -> Events:
    """What the journal has of one rank's backward pass."""
    marks = [(each.start_s, each.name) for each in evidence.regions[rank]]
    ready = sorted((s, name.removeprefix(READY)) for s, name in marks if name.startswith(READY))
    through = [s for s, name in marks if name == THROUGH]
    return Events(ready, through[0] if through else float("inf"), evidence.operations[rank])


def not_one_backward(evidence: CaseEvidence, given: Given) -> Finding | None:
    """Gradients that a single backward() into the parameters did not bring about."""
    for rank in range(evidence.world_size):
        ready = sorted(name for _, name in events_on(evidence, rank).ready)
        if ready != sorted(given.trained):
            return Finding(
                Outcome.WRONG,
                "does not run backward once",
                f"backward has put a gradient into {', '.join(ready) or 'no parameter'}, and there "
                f"are to be one of each of {', '.join(given.trained)}: call loss.backward(), once",
                first_seen=f"{evidence.label}: rank {rank}",
                hint=1,
            )
    return None


def not_overlapped(evidence: CaseEvidence) -> Finding | None:
    """All-reduces that begin too late, or are waited for too early."""
    if evidence.world_size == 1:
        return None
    for rank in range(evidence.world_size):
        events = events_on(evidence, rank)
        early = [each for each in events.operations if each.posted_s < events.last_ready_s]
        name = None
        if not early and all(each.posted_s > events.through_s for each in events.operations):
            name, explanation = (
                "communicates only when backward is through",
                "the values are right, but the first all-reduce begins after the last gradient is "
                "there, so nothing overlaps: a step takes as long as both. Begin each all-reduce "
                "in a hook, as soon as its gradient is there",
            )
        elif not early:
            name, explanation = (
                "waits for the first layer's gradient",
                "the all-reduces begin within backward, but none before the last gradient is "
                "there: the first in your order is one that backward finishes last. It begins with "
                "the last layer, so turn the order around",
            )
        elif any(_is_waited_for(each, events.last_ready_s) for each in early):
            name, explanation = (
                "waits inside backward",
                "all-reduces begin in time, and not all are left alone until the last gradient is "
                "there: whoever waits in a hook holds up backward, and they overlap with nothing. "
                "Begin each with wait=False, keep its Pending, and wait when backward is through",
            )
        if name is not None:
            return Finding(
                Outcome.OVER_BUDGET,
                name,
                explanation,
                first_seen=f"{evidence.label}: rank {rank}",
                hint=1,
                where=events.operations[0].origin,
                details=events.text(),
            )
    return None


def _is_waited_for(operation: Operation, before_s: float) -> bool:
    waited_s = operation.posted_s if operation.blocking else operation.waited_s
    return waited_s is not None and waited_s < before_s
