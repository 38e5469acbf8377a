"""What a round trip of tokens sends, in how many collectives, and how often experts are called."""

from collections import Counter
from collections.abc import Sequence

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.expert_inputs import Given
from labkit.grade.graders.expert_watch import Seen
from labkit.grade.outcome import Finding, Outcome

_COUNT_BYTES = 8
_MOST_COLLECTIVES = 3
Why = tuple[str, str]


def over_budget(evidence: CaseEvidence, given: Given) -> Finding | None:
    """More on the wire than rows and counts, or less; or in more collectives than it takes."""
    n = evidence.world_size
    if n == 1:
        return None
    room = (n - 1) * _COUNT_BYTES * given.num_experts
    for rank, operations in enumerate(evidence.operations):
        due = given.sent_rows[rank] * given.row_bytes
        sent = sum(each.sent_bytes for each in operations)
        about = (
            f"rank {rank} sends {sent:,} bytes, and rows there and results back are {due:,}, with "
            f"at most {room:,} for counts"
        )
        if sent < due:
            why = "the outputs are right: something came in another way than through `group`"
            return _found(evidence, Outcome.WRONG, ("fewer bytes than the rows have", why), about)
        if sent > due + room:
            return _found(evidence, Outcome.OVER_BUDGET, _why(given, operations), about)
    return _more_collectives(evidence)


def _more_collectives(evidence: CaseEvidence) -> Finding | None:
    for rank, operations in enumerate(evidence.operations):
        if len(operations) > _MOST_COLLECTIVES:
            names = ", ".join(f"{each.kind} of {each.payload_bytes:,} bytes" for each in operations)
            why = (
                "more than three collectives",
                "the counts, the rows, the results: each collective more costs a latency, and "
                "waits for the slowest rank",
            )
            return _found(evidence, Outcome.OVER_BUDGET, why, f"rank {rank}: {names}")
    return None


def _why(given: Given, operations: Sequence[Operation]) -> Why:
    """What the bytes are that need not be sent."""
    room = _COUNT_BYTES * given.num_experts
    dtype, rows = str(given.tokens[0].dtype), [each for each in operations if _is_rows(each, given)]
    if any(each.kind == "all_gather" and each.payload_bytes > room for each in operations):
        return (
            "gathers all tokens on all ranks",
            "every rank gets everybody's rows, and needs those for its own experts: an n-th, on "
            "average. all_to_all sends each row to one rank",
        )
    if any(each.dtype.removeprefix("torch.") not in dtype for each in rows):
        return (
            "sends rows in another dtype",
            f"rows travel as {rows[0].dtype}, and x_TD is {dtype}: that is what its bytes are for",
        )
    if any(_is_padded(each, given) for each in rows):
        return (
            "pads rows to equal blocks",
            "every rank gets as many rows as every other, and most of them are filling: "
            "all_to_all takes the numbers of rows, as they are",
        )
    if len(rows) > 2:
        return (
            "sends rows a third time",
            f"{len(rows)} exchanges have rows in them: one there and one back are enough",
        )
    if any(_has_numbers(each, given, room) for each in operations):
        return (
            "sends a number with every row",
            "each row's expert travels besides the row. Rows are sorted by expert, so how many "
            "there are for each says the same in E numbers",
        )
    return (
        "sends more than rows and counts",
        "each token that has its expert elsewhere goes there once, and its result comes back once",
    )


def _is_rows(operation: Operation, given: Given) -> bool:
    """Whether what travels has features."""
    is_float = "float" in operation.dtype
    return is_float and operation.shape[-1:] == given.tokens[0].shape[1:]


def _has_numbers(operation: Operation, given: Given, room: int) -> bool:
    """Whether the numbers of experts travel: as integers, or as one more feature."""
    width = given.tokens[0].shape[1]
    is_wider = "float" in operation.dtype and operation.shape[-1:] == (width + 1,)
    return is_wider or ("int" in operation.dtype and operation.payload_bytes > room)


def _is_padded(operation: Operation, given: Given) -> bool:
    """Whether all blocks are equally long, and those of some rank's tokens are not."""
    if operation.kind != "all_to_all" or operation.splits is None:
        return False
    n = given.num_ranks
    between = given.counts.view(n, n, -1).sum(2)
    return len(set(operation.splits[0])) == 1 and len(set(between.flatten().tolist())) > 1


def more_calls(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """Experts that are called more than once, or with rows that are nobody's."""
    for rank, each in enumerate(seen):
        times, rows = Counter(expert for expert, _ in each.applied), Counter[int]()
        for expert, number in each.applied:
            rows[expert] += number
        for expert, number in rows.items():
            due = int(given.counts[:, expert].sum())
            about = f"rank {rank} calls expert {expert} {times[expert]} times, with {number} rows "
            about += f"together, and {due} tokens are for it"
            if number > due:
                why = (
                    "computes rows that are nobody's",
                    "filling goes through an expert and costs what tokens cost: cut it off first",
                )
                return _found(evidence, Outcome.OVER_BUDGET, why, about)
            if times[expert] > 1:
                why = (
                    "calls an expert more than once",
                    "an expert is a few matrix products, and those of few rows are slow: put the "
                    "rows from all ranks together, and call it once",
                )
                return _found(evidence, Outcome.OVER_BUDGET, why, about)
    return None


def _found(evidence: CaseEvidence, outcome: Outcome, why: Why, about: str) -> Finding:
    return Finding(outcome, *why, first_seen=f"{evidence.label}: {about}", hint=1)
