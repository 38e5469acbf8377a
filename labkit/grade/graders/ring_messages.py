"""The messages of a ring all-reduce: to whom, how many, and how large."""

from collections import Counter

from labkit.grade import ledger
from labkit.grade.evidence import CaseEvidence
from labkit.grade.ledger import Message
from labkit.grade.outcome import Finding, Outcome

_Recognised = tuple[str, str, int]  # diagnosis, explanation, hint


def over_budget(evidence: CaseEvidence) -> Finding | None:
    """What is wrong with the messages of a case whose sums are right, or None."""
    sends = ledger.sends(evidence)
    not_a_ring = _not_a_ring(evidence, sends)
    if not_a_ring is not None:
        return not_a_ring
    segments = segment_bytes(evidence)
    for rank, messages in enumerate(sends):
        if not is_within_budget([m.payload_bytes for m in messages], segments):
            name, explanation, hint = _what_is_wrong(evidence, messages, segments)
            seen = f"{evidence.label}: rank {rank} sends {_in_words(messages)}"
            return Finding(Outcome.OVER_BUDGET, name, explanation, seen, hint)
    return _total_is_wrong(evidence, sends)


def segment_bytes(evidence: CaseEvidence) -> list[int]:
    """The sizes of n segments that differ by at most one element, the longest first."""
    x = evidence.case.arguments[0][0]
    return [segment.nbytes for segment in x.flatten().tensor_split(evidence.world_size)]


def is_within_budget(sizes: list[int], segments: list[int]) -> bool:
    """Whether one rank's messages are what a ring needs.

    Each of the two phases sends every segment but one, so the sizes are those of all segments
    twice, less any two. Empty segments may be sent or skipped.
    """
    sent = Counter(size for size in sizes if size)
    wanted = Counter(size for size in segments * 2 if size)
    num_left_out = wanted.total() - sent.total()
    return len(sizes) <= 2 * (len(segments) - 1) and sent <= wanted and num_left_out <= 2


def _not_a_ring(evidence: CaseEvidence, sends: list[list[Message]]) -> Finding | None:
    n = evidence.world_size
    for rank, messages in enumerate(sends):
        peers = sorted({message.peer for message in messages})
        if len(peers) > 1 or any((peer - rank) % n not in (1, n - 1) for peer in peers):
            return Finding(
                Outcome.WRONG,
                "not a ring",
                "the sums are right, but they did not come around a ring: a rank sends to one "
                "neighbour, always the same, because that is the link it has. Sending to others "
                "shares links with their messages, and a rank that everybody sends to receives "
                "n - 1 times as much as it should",
                f"{evidence.label}: rank {rank} sends to ranks {', '.join(map(str, peers))}",
                hint=1,
            )
    return None


def _what_is_wrong(
    evidence: CaseEvidence, messages: list[Message], segments: list[int]
) -> _Recognised:
    n, whole = evidence.world_size, sum(segments)
    sizes = [message.payload_bytes for message in messages]
    budget = f"2(n-1) = {2 * (n - 1)} messages of {_range_in_words(segments)} bytes"
    all_equal = len(set(sizes)) == 1
    if sizes and all_equal and sizes[0] == whole and segments[0] < whole:
        return _whole_tensors(len(sizes), n, whole, budget)
    if sizes and all_equal and sizes[0] * n > whole and len(sizes) <= 2 * (n - 1):
        return _padding(sizes[0], n, whole, budget)
    if len(sizes) > 2 * (n - 1) and set(sizes) <= set(segments):
        return (
            "a step too many",
            f"{len(sizes)} messages where the budget is {budget}: after n - 1 steps of adding a "
            "segment is complete, and after n - 1 more every rank has it",
            3,
        )
    if len(sizes) > 2 * (n - 1):
        return (
            "too many messages",
            f"{len(sizes)} messages where the budget is {budget}. Each message costs a latency, "
            "whatever its size",
            1,
        )
    return (
        "unequal segments",
        f"the budget is {budget}, and the sizes of the n segments differ by one element at most. "
        "(torch.chunk cuts differently: its last part is short, or missing)",
        3,
    )


def _whole_tensors(num_messages: int, n: int, whole: int, budget: str) -> _Recognised:
    if num_messages == n - 1:
        return (
            "gathers everything, then adds",
            f"every rank's whole tensor goes to every rank: {num_messages * whole:,} bytes where "
            f"a ring sends {2 * (n - 1) * whole // n:,}. The ratio is n/2, so it grows with every "
            f"rank that you add. The budget is {budget}",
            1,
        )
    return (
        "sends the whole tensor in every step",
        f"each message is all of x, {whole:,} bytes; one nth of it is due. The budget is {budget}",
        1,
    )


def _total_is_wrong(evidence: CaseEvidence, sends: list[list[Message]]) -> Finding | None:
    """Each segment makes n - 1 hops in each phase, so all ranks together send 2(n-1) times x."""
    n, whole = evidence.world_size, sum(segment_bytes(evidence))
    sizes = [message.payload_bytes for messages in sends for message in messages]
    wanted = 2 * (n - 1) * whole
    if sum(sizes) == wanted:
        return None
    name, explanation, hint = (
        "unequal segments",
        f"all ranks together sent {sum(sizes):,} bytes; n segments with n - 1 hops in each of two "
        f"phases are {wanted:,}",
        3,
    )
    if len(set(sizes)) == 1 and sizes[0] * n > whole:
        name, explanation, hint = _padding(sizes[0], n, whole, f"{wanted:,} bytes for all ranks")
    outcome = Outcome.OVER_BUDGET if sum(sizes) > wanted else Outcome.WRONG
    return Finding(outcome, name, explanation, evidence.label, hint)


def _padding(size: int, n: int, whole: int, budget: str) -> _Recognised:
    return (
        "padding on the wire",
        f"all messages have {size:,} bytes, and n of those are {size * n:,}, more than x's "
        f"{whole:,}: what is sent was padded to a size that n divides. The budget is {budget}",
        3,
    )


def _in_words(messages: list[Message]) -> str:
    """`4 messages: 128, 128, 124 and 128 bytes`"""
    sizes = [f"{message.payload_bytes:,}" for message in messages[:8]]
    if not sizes:
        return "nothing"
    listed = sizes[0] if len(sizes) == 1 else f"{', '.join(sizes[:-1])} and {sizes[-1]}"
    more = "" if len(messages) <= 8 else f" ... ({len(messages) - 8} more)"
    noun = "message" if len(messages) == 1 else "messages"
    return f"{len(messages)} {noun}: {listed} bytes{more}"


def _range_in_words(sizes: list[int]) -> str:
    low, high = min(sizes), max(sizes)
    return f"{low:,}" if low == high else f"{low:,} or {high:,}"
