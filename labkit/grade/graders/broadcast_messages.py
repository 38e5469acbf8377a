"""The messages of a broadcast: one to each rank but the root, in as few steps as there can be."""

from labkit.grade import ledger
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.broadcast_inputs import inputs_of, root_of
from labkit.grade.graders.broadcast_tree import (
    Children,
    children_of,
    fewest_steps,
    fewest_steps_below,
    schedule,
    steps_of,
    who_sends_to_whom,
)
from labkit.grade.outcome import Finding, Outcome

_Recognised = tuple[str, str, int]  # diagnosis, explanation, hint


def over_budget(evidence: CaseEvidence) -> Finding | None:
    """What is wrong with the messages of a case whose results are right, or None."""
    children = children_of(evidence)
    num_messages = sum(map(len, children))
    if not num_messages and not inputs_of(evidence)[0].numel():
        return None  # nothing to send: it need not be sent
    found = _wrong_messages(evidence)
    if found is not None:
        details = who_sends_to_whom(children)
    else:
        found = _too_many_steps(children, root_of(evidence))
        details = schedule(children, root_of(evidence))
    if found is None:
        return None
    name, explanation, hint = found
    seen = f"{evidence.label}: {_counted(num_messages, 'message')}"
    return Finding(Outcome.OVER_BUDGET, name, explanation, seen, hint, details=details)


def _wrong_messages(evidence: CaseEvidence) -> _Recognised | None:
    """Whether every rank but the root receives all of x, once."""
    n, root = evidence.world_size, root_of(evidence)
    whole = inputs_of(evidence)[0].nbytes
    received: list[list[int]] = [[] for _ in range(n)]
    for sent in ledger.sends(evidence):
        for message in sent:
            received[message.peer].append(message.payload_bytes)
    need = f"{n} ranks need {_counted(n - 1, 'message')}, one to each rank but the root"
    if n > 2 and sum(map(len, received)) == n * (n - 1):
        return (
            "everybody sends to everybody",
            f"{n * (n - 1)} messages, and {need}. Only the root's x counts: a rank that has not "
            "received it yet has nothing to send",
            1,
        )
    if received[root]:
        times = _counted(len(received[root]), "message")
        return (
            "sends to the root",
            f"rank {root}, the root, has x, and receives {times}: {need}",
            2,
        )
    for rank, sizes in enumerate(received):
        found = None if rank == root else _wrong_receives(rank, sizes, whole)
        if found is not None:
            name, explanation, hint = found
            return (name, f"{explanation}. {need}", hint)
    return None


def _wrong_receives(rank: int, sizes: list[int], whole: int) -> _Recognised | None:
    """What is wrong with the sizes of what one rank receives; it should be all of x, once."""
    if not sizes:
        return (
            "has x without receiving it",
            f"rank {rank} returns the root's x, and nothing was sent to it",
            1,
        )
    if len(sizes) > 1 and whole and sum(sizes) == whole:
        return (
            "sends x in pieces",
            f"rank {rank} receives {len(sizes)} messages of {sizes} bytes. A message takes a step, "
            "whatever its size: send x as a whole",
            1,
        )
    if len(sizes) > 1:
        return (
            "a rank receives more than once",
            f"rank {rank} receives {len(sizes)} messages; x is there with the first",
            2,
        )
    if sizes[0] != whole:
        return (
            "a message of another size than x",
            f"rank {rank} receives {sizes[0]:,} bytes, and x has {whole:,}",
            3,
        )
    return None


def _too_many_steps(children: Children, root: int) -> _Recognised | None:
    n, budget = len(children), fewest_steps(len(children))
    reached = steps_of(children, root)
    missing = [rank for rank in range(n) if rank not in reached]
    if missing:
        return (
            "x does not come from the root",
            f"no way leads over messages from rank {root}, the root, to rank {missing[0]}",
            2,
        )
    steps = max(reached.values())
    if steps <= budget:
        return None
    why = (
        f"it takes {steps} steps until the last rank has x; ceil(log2({n})) = {budget} are enough, "
        "if every rank that has x sends it on in every step: 1, 2, 4, ... ranks have it"
    )
    if len(children[root]) == n - 1:
        return (
            "the root sends to everyone itself",
            f"{why}. Here the other ranks only listen, and the root's one link carries x "
            f"{n - 1} times",
            1,
        )
    if max(map(len, children)) == 1:
        return ("passes x down a chain", f"{why}. Here one rank sends at a time", 1)
    if fewest_steps_below(children, root) <= budget:
        return (
            "sends to the smallest part of the tree first",
            f"{why}. Your tree could do it in {budget}: who sends to whom is right, and the order "
            "is not. Send first to the child that has the most ranks below it, for it has the "
            "longest way to go",
            2,
        )
    return (
        "ranks that have x stand idle",
        f"{why}. Here some rank stops sending while others still wait for x",
        1,
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
