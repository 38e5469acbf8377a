"""The messages of an uneven all-to-all: every row once and straight, and one number before it."""

from labkit.grade import ledger
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.all_to_all_inputs import counts_of, inputs_of, row_bytes_of
from labkit.grade.graders.sums import Recognised
from labkit.grade.outcome import Finding, Outcome

_COUNT_BYTES = 8
Sizes = dict[tuple[int, int], list[int]]
"""(source, destination) -> the sizes of the messages between them, in order."""


def over_budget(evidence: CaseEvidence) -> Finding | None:
    """What is wrong with the messages of a case whose rows are right, or None."""
    sizes, due = sizes_of(evidence), block_bytes_of(evidence)
    wrong = [pair for pair in due if not is_within_budget(sizes[pair], due[pair])]
    if not wrong:
        return None
    source, destination = wrong[0]
    name, explanation, hint = (
        _fewer(sizes, due)
        or _everything(sizes, evidence)
        or _detour(sizes, due)
        or _padding(sizes, due)
        or _row_by_row(sizes, due, row_bytes_of(evidence))
        or _long_counts(sizes, due)
        or ("too many messages", "each costs a latency, whatever its size", 1)
    )
    sent = ", ".join(f"{size:,}" for size in sizes[source, destination][:8]) or "nothing"
    sent += ", ..." if len(sizes[source, destination]) > 8 else ""
    seen = (
        f"{evidence.label}: rank {source} has {due[source, destination]:,} bytes for rank "
        f"{destination}, and sends it {sent}"
    )
    is_less = sum(map(sum, sizes.values())) <= sum(due.values())
    return Finding(
        Outcome.WRONG if is_less else Outcome.OVER_BUDGET,
        name,
        f"{explanation}. The budget, from each rank to each other: the rows that the one has for "
        f"the other, and at most {_COUNT_BYTES} bytes besides, in at most two messages",
        seen,
        hint,
    )


def is_within_budget(sizes: list[int], due_bytes: int) -> bool:
    """Whether one rank's messages to another can be a number and a block of `due_bytes`."""
    # More than the rows: nobody can know how many they are without at least a byte that says so.
    is_told = sum(sizes) > due_bytes or not due_bytes
    return len(sizes) <= 2 and is_told and sum(sizes) <= due_bytes + _COUNT_BYTES


def sizes_of(evidence: CaseEvidence) -> Sizes:
    """Of all messages, between all pairs of ranks."""
    ranks = range(evidence.world_size)
    sizes: Sizes = {(one, other): [] for one in ranks for other in ranks if one != other}
    for source, messages in enumerate(ledger.sends(evidence)):
        for message in messages:
            sizes[source, message.peer].append(message.payload_bytes)
    return sizes


def block_bytes_of(evidence: CaseEvidence) -> dict[tuple[int, int], int]:
    """(source, destination) -> bytes of the rows that are due."""
    return {
        (source, destination): count * row_bytes_of(evidence)
        for source, counts in enumerate(counts_of(evidence))
        for destination, count in enumerate(counts)
        if source != destination
    }


def _fewer(sizes: Sizes, due: dict[tuple[int, int], int]) -> Recognised | None:
    if sum(map(sum, sizes.values())) > sum(due.values()):
        return None
    return (
        "fewer bytes than rows and counts have",
        "the rows are right, and the messages are too short to have brought them and how many they "
        "are: something was learned in another way",
        1,
    )


def _everything(sizes: Sizes, evidence: CaseEvidence) -> Recognised | None:
    inputs = inputs_of(evidence)
    if not all(inputs[source].nbytes in sent for (source, _), sent in sizes.items()):
        return None
    return (
        "sends everything to everyone",
        "every rank sends all of its rows to all others, and these pick out what is theirs: on n "
        "ranks that is n times what has to be sent. The sender knows whom a row is for",
        1,
    )


def _detour(sizes: Sizes, due: dict[tuple[int, int], int]) -> Recognised | None:
    """Some pair gets less than what is due, and others get more."""
    shortest = [pair for pair in due if sum(sizes[pair]) < due[pair]]
    if not shortest:
        return None
    source, destination = shortest[0]
    return (
        "rows travel more than once",
        f"rank {destination} has the rows of rank {source}, but not from it: another rank has "
        "passed them on. Each such row is sent twice or more, and the links of the ranks in "
        "between carry what is not theirs. Send it straight to whom it is for",
        1,
    )


def _padding(sizes: Sizes, due: dict[tuple[int, int], int]) -> Recognised | None:
    longest = [max(sent, default=0) for sent in sizes.values()]
    if len(longest) < 2 or len(set(longest)) > 1 or longest[0] < max(due.values()):
        return None
    return (
        "padding on the wire",
        f"every block is sent as {longest[0]:,} bytes, as long as the longest of all, however "
        "short it is. With one busy receiver that is nearly all padding: send the rows, and a "
        "number before them",
        1,
    )


def _row_by_row(sizes: Sizes, due: dict[tuple[int, int], int], row_bytes: int) -> Recognised | None:
    for pair, sent in sizes.items():
        if len(sent) > 2 and sent.count(row_bytes) >= due[pair] // max(row_bytes, 1) > 1:
            return (
                "a message for every row",
                f"rank {pair[0]} sends {len(sent)} messages to rank {pair[1]}. Rows for the same "
                "rank stand next to each other: they go as one block, for one latency",
                1,
            )
    return None


def _long_counts(sizes: Sizes, due: dict[tuple[int, int], int]) -> Recognised | None:
    for (source, destination), sent in sizes.items():
        besides = sum(sent) - due[source, destination]
        if len(sent) <= 2 and besides > _COUNT_BYTES:
            return (
                "more than one number besides the rows",
                f"rank {source} sends rank {destination} {besides:,} bytes besides its rows. What "
                "rank s needs to know of rank r is one number, counts[s] on rank r",
                1,
            )
    return None
