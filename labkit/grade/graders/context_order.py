"""The order of events on a ring: a block is posted, computed with, and then waited for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.attention_work import Work
from labkit.grade.graders.context_inputs import Given
from labkit.grade.graders.context_messages import blocks_of, received_sizes, sent_sizes
from labkit.grade.graders.context_work import RankWork
from labkit.grade.outcome import Finding, Outcome


@dataclass(frozen=True)
class Transfer:
    """What moves while a rank computes with the block of one step, of one direction or of both."""

    operations: Sequence[Operation]

    @property
    def posted_s(self) -> float:
        """When all of it was under way."""
        return max(each.posted_s for each in self.operations)

    @property
    def waited_s(self) -> float:
        """When the rank first waited for some of it."""
        return min(_waited_s(each) for each in self.operations)

    def overlaps(self, its: RankWork, step: int) -> bool:
        """Whether the rank computes with the block of that step meanwhile."""
        return its.is_enough(its.between(self.posted_s, self.waited_s), step)


def _waited_s(operation: Operation) -> float:
    if operation.blocking or operation.waited_s is None:
        return operation.posted_s
    return operation.waited_s


def not_overlapped(evidence: CaseEvidence, given: Given) -> Finding | None:
    """A block that the rank computes with while the next one is not under way."""
    for rank in range(evidence.world_size):
        its = RankWork(evidence, given, rank)
        receives, sends = _transfers(evidence, given, rank)
        steps = max(len(receives), len(sends))
        # Blocks of later ranks are not computed with, and nothing is there to overlap with.
        for step in range(min(steps, rank + 1)):
            moving = [*receives[step : step + 1], *sends[step : step + 1]]
            both = Transfer([operation for each in moving for operation in each.operations])
            if both.overlaps(its, step):
                continue
            name, why = _why(its, receives, sends, step) or _too_little(its, both, step)
            return Finding(
                Outcome.OVER_BUDGET,
                name,
                f"the values are right; {why}",
                f"{evidence.label}: rank {rank}, block {step} of those that it computes with",
                hint=2,
                where=both.operations[0].origin,
                details=_events(evidence, its, rank),
            )
    return None


def gathers_first(evidence: CaseEvidence, given: Given, rank: int) -> bool:
    """Whether a rank has waited for all blocks before it computes with any."""
    receives, _ = _transfers(evidence, given, rank)
    return _gathers(RankWork(evidence, given, rank), receives)


def _gathers(its: RankWork, receives: Sequence[Transfer]) -> bool:
    if len(receives) < 2 or not its.is_seen:
        return False
    return not its.is_enough(its.between(end_s=receives[-1].waited_s), step=0)


def _transfers(
    evidence: CaseEvidence, given: Given, rank: int
) -> tuple[list[Transfer], list[Transfer]]:
    """What comes and what goes, by step."""
    kinds = (("recv", received_sizes(given, rank)), ("send", sent_sizes(given, rank)))
    found = [
        [Transfer(each) for each in blocks_of(_of_kind(evidence, rank, kind), sizes)]
        for kind, sizes in kinds
    ]
    return found[0], found[1]


def _of_kind(evidence: CaseEvidence, rank: int, kind: str) -> list[Operation]:
    return [each for each in evidence.operations[rank] if each.kind == kind]


def _why(
    its: RankWork, receives: Sequence[Transfer], sends: Sequence[Transfer], step: int
) -> tuple[str, str] | None:
    if _gathers(its, receives):
        return (
            "gathers all blocks before it computes",
            "every block is there before the first is computed with: that is an all-gather, with "
            "its memory, and computing waits for all of it",
        )
    moving = [*receives[step : step + 1], *sends[step : step + 1]]
    begin_s = min(each.posted_s for each in moving)
    if step == 0 and its.is_enough(its.between(end_s=begin_s), step):
        return (
            "posts when it has computed",
            "the rank computes with its own block first, and then begins to send it: nothing is "
            "under way meanwhile. Post isend and irecv, compute, wait",
        )
    if any(each.overlaps(its, step) for each in receives[step : step + 1]):
        if its.is_enough(its.between(receives[step].posted_s, sends[step].posted_s), step):
            return (
                "sends a block only when it has computed with it",
                "the receive is posted in time, and the send of the block in hand is not under way "
                "while the rank computes with it: the neighbour on the right waits that long",
            )
        return (
            "waits for its send before it computes",
            "a send is complete when the neighbour has received it, and until then this rank "
            "computes nothing: isend, and wait() when the computation is done",
        )
    return None


def _too_little(its: RankWork, both: Transfer, step: int) -> tuple[str, str]:
    meanwhile = its.between(both.posted_s, both.waited_s)
    if meanwhile != Work():
        return (
            "computes too little while blocks travel",
            f"between posting and waiting the rank computes {meanwhile}, where the block in hand "
            f"takes {its.needed(step)}: most of that is computed when nothing is under way. Post "
            "isend and irecv, compute all with the block in hand, and wait then",
        )
    return (
        "waits for the next block before it computes",
        "the next block is waited for, and then the rank computes: a step takes as long as both. "
        "Post isend and irecv, compute with the block in hand, and wait then",
    )


def _events(evidence: CaseEvidence, its: RankWork, rank: int) -> str:
    """One event per line; computing between two others is one, with what it amounts to."""
    marks = []
    for each in evidence.operations[rank]:
        marks.append((each.posted_s, f"{each.name} begins, {each.payload_bytes:,} bytes"))
        if each.waited_s is not None and each.waited_s > each.posted_s:
            marks.append((each.waited_s, f"waits for {each.name}"))
    marks.sort()
    lines = [f"computes {before}"] if (before := its.between(end_s=marks[0][0])) != Work() else []
    for (begin_s, line), (end_s, _) in zip(marks, [*marks[1:], (math.inf, "")], strict=True):
        lines.append(line)
        if (work := its.between(begin_s, end_s)) != Work():
            lines.append(f"computes {work}")
    return "\n".join(lines)
