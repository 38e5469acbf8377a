"""The tree of a broadcast, as the journals have it: who sends to whom, in which order, in how many
steps.

A rank has x one step after the rank above it sent it, and it sends one message at a time: so what
it sends first is one step further down, what it sends second two steps, and so on. This counts the
order of calls; how long anything took does not matter.
"""

from collections.abc import Sequence

from labkit.grade import ledger
from labkit.grade.evidence import CaseEvidence

Children = Sequence[Sequence[int]]
"""By rank: whom it sends to, in order."""


def children_of(evidence: CaseEvidence) -> Children:
    """The messages of a case. (They are a tree if every rank but the root receives one.)"""
    return [[message.peer for message in sent] for sent in ledger.sends(evidence)]


def fewest_steps(world_size: int) -> int:
    """Steps in which one rank's x can come to all: the ranks that have it double in each."""
    return (world_size - 1).bit_length()


def steps_of(children: Children, root: int) -> dict[int, int]:
    """In which step each rank has x; ranks that no message leads to from the root are not there."""
    steps, ranks = {root: 0}, [root]
    for rank in ranks:  # which grows on the way
        for number, child in enumerate(children[rank], start=1):
            if child not in steps:
                steps[child] = steps[rank] + number
                ranks.append(child)
    return steps


def fewest_steps_below(children: Children, rank: int) -> int:
    """Steps that a tree takes below `rank` at best: it sends first to where the way is longest."""
    below = sorted((fewest_steps_below(children, child) for child in children[rank]), reverse=True)
    return max((number + steps for number, steps in enumerate(below, start=1)), default=0)


def schedule(children: Children, root: int) -> str:
    """A line for each step of a tree: `step 2: 0 -> 1, 2 -> 3`."""
    steps = steps_of(children, root)
    lines = []
    for step in range(1, max(steps.values()) + 1):
        arrows = [
            f"{rank} -> {child}"
            for rank, its in enumerate(children)
            for child in its
            if steps.get(child) == step
        ]
        lines.append(f"step {step}: {', '.join(arrows)}")
    return "\n".join(lines)


def who_sends_to_whom(children: Children) -> str:
    """A line for each rank: `rank 0 sends to 1, 2`."""
    return "\n".join(
        f"rank {rank} sends to {', '.join(map(str, its)) or 'nobody'}"
        for rank, its in enumerate(children)
    )
