"""Which chunk sits where after each step of a ring all-reduce, from the journals of a real run.

A journal does not record what is in a message, but on a ring it follows from the order. Each rank
passes on in the next step the chunk that it has received. So the k-th message of a rank carries
what the (k-1)-th message of its left neighbour brought, back to the rank where the chunk began.
`ring_walk` checks each message for this: the number of messages, their sizes, and that a rank sent
no chunk before the chunk arrived.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from labkit import calc
from labkit.viz.messages_in_flight import Message, matched_messages
from labkit.viz.of_a_run import timelines_of

Holding = tuple[frozenset[int], ...]
"""By chunk: the ranks whose contributions are in it."""


@dataclass(frozen=True)
class Hop:
    """One chunk on its way from a rank to its right neighbour. Times: seconds on the run's."""

    source: int
    destination: int
    chunk: int
    numel: int
    nbytes: int
    sent_s: float
    arrived_s: float


@dataclass(frozen=True)
class RingWalk:
    """A ring all-reduce as it ran: 2(n-1) steps of n hops each, and what they left."""

    ranks: tuple[int, ...]
    """Global ranks in the order of the ring, beginning with the lowest."""
    steps: tuple[tuple[Hop, ...], ...]
    """By step: the hop out of each rank, in the order of `ranks`."""
    states: tuple[tuple[Holding, ...], ...]
    """Before the first step, then after each: what each rank holds, in the order of `ranks`."""

    def phase(self, step: int) -> str:
        """Which half of the all-reduce a step, from 1, belongs to."""
        return "reduce-scatter" if step <= len(self.steps) // 2 else "all-gather"

    def states_of_ranks(self) -> list[list[Holding]]:
        """By rank, then by step: what `viz.ring_steps` draws."""
        return [list(states) for states in zip(*self.states)]


def ring_walk(run: Any) -> RingWalk:
    """Follow every chunk of the one ring all-reduce in a run.

    run: a Run of a ring all-reduce, labkit's or one's own, or its Timelines by rank. Chunk s is
    the one that is complete on the s-th rank of the ring after n - 1 steps; in labkit's ring that
    is the s-th of torch.tensor_split. Other operations than send and recv may be in the run.

    Raises ValueError for messages that are no ring, or more or fewer than one all-reduce has, with
    what they are instead; TypeError for what has no timelines.
    """
    timelines = timelines_of(run)
    messages = matched_messages(timelines)
    num_sends = sum(op.kind == "send" for timeline in timelines for op in timeline.operations)
    if len(messages) != num_sends or any(each.recv.done_s is None for each in messages):
        raise ValueError("not all of the run's messages arrived; a ring is drawn when it is done")
    outgoing: dict[int, list[Message]] = {}
    for message in sorted(messages, key=lambda each: each.send.index):
        outgoing.setdefault(message.source, []).append(message)
    ranks = _round(outgoing)
    num_steps = calc.collective("all_reduce", "ring", len(ranks)).steps
    for rank in ranks:
        if len(outgoing[rank]) != num_steps:
            raise ValueError(
                f"rank {rank} sent {len(outgoing[rank])} messages; one ring all-reduce on "
                f"{len(ranks)} ranks has {num_steps} from each. Run it once, with chunks small "
                "enough to travel in one piece (labkit's are cut above 4 MiB)"
            )
    columns = [outgoing[rank] for rank in ranks]
    _check_passed_on(columns)
    steps = tuple(
        tuple(_hop(sent[step], position, step, len(ranks)) for position, sent in enumerate(columns))
        for step in range(num_steps)
    )
    return RingWalk(ranks, steps, tuple(_states(ranks, steps)))


def _round(outgoing: dict[int, list[Message]]) -> tuple[int, ...]:
    """The ranks from the lowest on, each followed by the one that it sends to."""
    if not outgoing:
        raise ValueError("nobody sends anything in this run: there is no ring to draw")
    right = {}
    for rank, messages in sorted(outgoing.items()):
        targets = sorted({message.destination for message in messages})
        if len(targets) > 1:
            raise ValueError(
                f"rank {rank} sends to ranks {', '.join(map(str, targets))}: on a ring everyone "
                "sends to one neighbour only"
            )
        right[rank] = targets[0]
    ring = [min(outgoing)]
    while (following := right.get(ring[-1])) is not None and following not in ring:
        ring.append(following)
    if len(ring) != len(outgoing) or right.get(ring[-1]) != ring[0]:
        arrows = ", ".join(f"{rank} to {right[rank]}" for rank in sorted(right))
        raise ValueError(f"who sends to whom is not one ring: {arrows}")
    return tuple(ring)


def _check_passed_on(columns: Sequence[Sequence[Message]]) -> None:
    """Each rank sends on what its left neighbour sent it in the step before, once it arrived."""
    for position, column in enumerate(columns):
        left = columns[position - 1]
        for step, (came, went) in enumerate(zip(left, column[1:]), start=1):
            assert came.recv.done_s is not None
            if went.send.shape != came.send.shape:
                fault = f"{came.send.shape} came, {went.send.shape} left"
            elif went.send.posted_s < came.recv.done_s:
                fault = f"message {step + 1} left before message {step} had come"
            else:
                continue
            raise ValueError(
                f"rank {went.source} does not pass on what it received in step {step}: {fault}; "
                "on a ring each message but the first is the one received before"
            )


def _hop(message: Message, position: int, step: int, num_ranks: int) -> Hop:
    send = message.send
    assert message.recv.done_s is not None
    return Hop(
        message.source,
        message.destination,
        (position - 1 - step) % num_ranks,
        math.prod(send.shape),
        send.payload_bytes,
        send.posted_s,
        message.recv.done_s,
    )


def _states(ranks: Sequence[int], steps: Iterable[Iterable[Hop]]) -> Iterator[tuple[Holding, ...]]:
    """The start, and what each step leaves: who receives a chunk has the sender's parts too."""
    holdings = [[frozenset({rank})] * len(ranks) for rank in ranks]
    position = {rank: number for number, rank in enumerate(ranks)}
    yield tuple(tuple(holding) for holding in holdings)
    for step in steps:
        for hop in step:  # one for each chunk: none sees what another has brought
            sent = holdings[position[hop.source]][hop.chunk]
            holdings[position[hop.destination]][hop.chunk] |= sent
        yield tuple(tuple(holding) for holding in holdings)
