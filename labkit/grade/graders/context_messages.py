"""The messages of ring attention: to the right, a block each, or its keys and its values."""

from collections.abc import Iterable, Sequence

from labkit.comm.operation import Operation
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.context_inputs import Given
from labkit.grade.graders.sums import Recognised
from labkit.grade.outcome import Finding, Outcome


def blocks_of(operations: Sequence[Operation], sizes: Sequence[int]) -> list[list[Operation]]:
    """Messages of one direction, by the block that they bring: one of its size, or two of half.

    Ends before the first message that is neither.
    """
    found: list[list[Operation]] = []
    left = list(operations)
    for size in sizes:
        if [each.payload_bytes for each in left[:1]] == [size]:
            taken = 1
        elif [each.payload_bytes for each in left[:2]] == [size / 2] * 2:
            taken = 2
        else:
            break
        found.append(left[:taken])
        left = left[taken:]
    return found


def sent_sizes(given: Given, rank: int) -> list[int]:
    """Bytes of the blocks that a rank sends: its own, its left neighbour's, and so on."""
    n = len(given.q)
    return [given.block_bytes((rank - step) % n) for step in range(n - 1)]


def received_sizes(given: Given, rank: int) -> list[int]:
    """Bytes of the blocks that come to a rank."""
    return sent_sizes(given, (rank - 1) % len(given.q))


def over_budget(evidence: CaseEvidence, given: Given) -> Finding | None:
    """What is wrong with the messages of a case whose outputs are right, or None."""
    n = evidence.world_size
    for rank, operations in enumerate(evidence.operations):
        sends = [each for each in operations if each.kind == "send"]
        others = {each.peer for each in sends if each.peer not in (None, (rank + 1) % n)}
        sizes = sent_sizes(given, rank)
        found: Recognised
        if others:
            found = (
                "sends to others than its right neighbour",
                f"rank {rank} sends to {_ranks(others)}. "
                f"On a ring it has one link, to rank {(rank + 1) % n}, and everything goes over it",
                1,
            )
        elif sum(map(len, blocks_of(sends, sizes))) == len(sends):
            continue  # fewer of them: blocks that nobody further on needs
        else:
            found = _what_is_wrong([each.payload_bytes for each in sends], sizes, given, rank)
        sent = ", ".join(f"{each.payload_bytes:,} bytes" for each in sends[:8])
        budget = ", ".join(f"{size:,}" for size in sizes)
        is_more = bool(others) or sum(each.payload_bytes for each in sends) >= sum(sizes)
        name, why, hint = found
        return Finding(
            Outcome.OVER_BUDGET if is_more else Outcome.WRONG,
            name,
            f"{why}. The budget is {n - 1} blocks of keys and values: {budget} bytes, each in one "
            "message or in two equal ones",
            f"{evidence.label}: rank {rank} sends {sent}",
            hint=hint,
            where=sends[-1].origin,
        )
    return None


def _ranks(ranks: Iterable[int]) -> str:
    return ", ".join(f"rank {each}" for each in sorted(ranks))


def _what_is_wrong(
    sent: Sequence[int], sizes: Sequence[int], given: Given, rank: int
) -> Recognised:
    n = len(given.q)
    home = given.block_bytes((rank + 1) % n)
    if sum(sent) == sum(sizes) + home and len(sent) in (n, 2 * n):
        return (
            "a step too many",
            f"{n} blocks are sent: in the last step the block of rank {(rank + 1) % n} goes to the "
            "rank that has had it from the beginning",
            3,
        )
    if len(set(sent)) == 1 and len(set(given.sizes)) > 1 and sum(sent) > sum(sizes):
        return (
            "padding on the wire",
            "all messages are equal, though shares are not: blocks were filled up to the longest. "
            "num_tokens and n say how long each is",
            3,
        )
    if len(sent) > 2 * len(sizes) and sum(sent) <= sum(sizes):
        return (
            "too many messages",
            f"there are {len(sent)}: each costs a latency, whatever its size",
            1,
        )
    return (
        "sends something else than blocks of keys and values",
        "what goes around is what others compute with: keys and values, as they are, and neither "
        "queries, nor scores, nor outputs",
        1,
    )
