"""A ring all-reduce step by step, from the journals of a real run or the states it recorded.

`ring_walk` follows the chunks. A journal does not record the content of a message, but on a ring it
follows from the order. Each rank passes on in the next step the chunk that it has received. So the
k-th message of a rank carries what the (k-1)-th message of its left neighbour brought, back to the
rank where the chunk began. `ring_walk` checks each message for this: the number of messages, their
sizes, and that a rank sent no chunk before the chunk arrived.

`tagged` makes numbers that carry their origin, so that a picture can be drawn from what a run
really returned. Rank r's cell c (from 0) is (c + 1) * 10**r: the decimal place is the rank, the
digit the cell.

    rank 0     1     2     3              all_reduce gives every rank
    rank 1    10    20    30                  111   222   333
    rank 2   100   200   300              and 110 is the sum of ranks 1 and 2 alone
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from labkit import calc
from labkit.comm.operation import Timeline
from labkit.viz import style
from labkit.viz.journals import Message, matched_messages, timelines_of
from labkit.viz.picture import CellPainter, Picture, blank_axes

Holding = tuple[frozenset[int], ...]
"""By chunk: the ranks whose contributions are in it."""


@dataclass(frozen=True)
class Hop:
    """One chunk on its way from a rank to its right neighbour. Times: the run's, in seconds."""

    source: int
    destination: int
    chunk: int
    numel: int
    nbytes: int
    sent_s: float
    arrived_s: float


@dataclass(frozen=True)
class RingWalk:
    """A ring all-reduce as it ran: 2(n-1) steps of n hops each, and the states after them."""

    ranks: tuple[int, ...]
    """Global ranks in the order of the ring, beginning with the lowest."""
    steps: tuple[tuple[Hop, ...], ...]
    """By step: the hop out of each rank, in the order of `ranks`."""
    states: tuple[tuple[Holding, ...], ...]
    """Before the first step, then after each: what each rank holds, in the order of `ranks`."""

    def phase(self, step: int) -> str:
        """Return the half of the all-reduce that a step, from 1, belongs to."""
        return "reduce-scatter" if step <= len(self.steps) // 2 else "all-gather"

    def states_of_ranks(self) -> list[list[Holding]]:
        """By rank, then by step: what `viz.ring_steps` draws."""
        return [list(states) for states in zip(*self.states)]


def ring_walk(run: Any) -> RingWalk:
    """Follow every chunk of the one ring all-reduce in a run.

    run: a Run of a ring all-reduce, labkit's or your own, or its Timelines by rank. Chunk s is
    the one that is complete on the s-th rank of the ring after n - 1 steps; in labkit's ring that
    is the s-th of torch.tensor_split. Other operations than send and recv may be in the run.

    Raises ValueError for messages that do not form a ring, or not exactly one all-reduce, and says
    what they are; TypeError for an object without timelines.
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
    """Return the ranks from the lowest on, each followed by the one that it sends to."""
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
    """Check that each rank sends on what its left neighbour sent it in the step before."""
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
    """Return the start, and each step's result: a receiver has the sender's contributions too."""
    holdings = [[frozenset({rank})] * len(ranks) for rank in ranks]
    position = {rank: number for number, rank in enumerate(ranks)}
    yield tuple(tuple(holding) for holding in holdings)
    for step in steps:
        for hop in step:  # one for each chunk, so that none sees another's contributions
            sent = holdings[position[hop.source]][hop.chunk]
            holdings[position[hop.destination]][hop.chunk] |= sent
        yield tuple(tuple(holding) for holding in holdings)


_WIDTH = 9.0  # inches
_HEADER = 0.62
_MAX_COLUMNS = 8


class _Layout(NamedTuple):
    """Sizes in inches. A block is one step: a row of chunks for every rank."""

    ranks: tuple[int, ...]
    num_chunks: int
    columns: int
    name_width: float = 0.6
    gap: float = 0.16

    @property
    def num_ranks(self) -> int:
        """Rows of a block."""
        return len(self.ranks)

    @property
    def row_height(self) -> float:
        """One rank's row, with the gap below it."""
        return 0.3 if self.num_ranks <= 4 else 0.2

    @property
    def block_width(self) -> float:
        """All chunks of one rank."""
        return (_WIDTH - self.name_width - 0.1) / self.columns - self.gap

    @property
    def block_height(self) -> float:
        """The heading and all ranks' rows."""
        return 0.32 + self.row_height * self.num_ranks + 0.12


def ring_steps(
    states: Any,
    *,
    step_names: Sequence[str] | None = None,
    title: str | None = None,
) -> Picture:
    """Draw one block per step: a row per rank, a cell per chunk, a stripe per contribution.

    states: a Run of one ring all-reduce; its journals say who held what (rings.py says how).
    Or recorded states, by rank, then by step (the first is the start). Such a state has one
    entry per chunk: either the ranks whose contributions are in it (a set), or the number itself
    where the run worked on `viz.tagged(rank, world_size)`: then a rank only has to keep
    `x.clone()` after every step, and what is drawn is what it held.
    step_names: a heading for every state; "start", "step 1", ... by default.

    Cells fill up, one stripe per rank in its place, until all colours are there; a heavy outline
    marks changes of the step. Returns a Picture. Raises ValueError for states that don't form a
    table of ranks x steps x chunks, and for a run of anything but one ring.
    """
    ranks, table = _table(states)
    num_steps, num_chunks = _dimensions(table)
    num_ranks = len(ranks)
    names = _step_names(step_names, num_steps)
    columns = min(num_steps, _MAX_COLUMNS if num_chunks <= 4 else _MAX_COLUMNS // 2)
    layout = _Layout(ranks, num_chunks, columns)
    height = _HEADER + -(-num_steps // columns) * layout.block_height
    picture = Picture(_WIDTH, height, f"ring of {num_ranks} ranks in {num_steps - 1} steps")
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, _WIDTH, height)
    painter = CellPainter(axes)
    _draw_header(painter, title or f"{num_ranks} ranks, {num_steps - 1} steps", ranks)
    for step in range(num_steps):
        row, column = divmod(step, columns)
        x = layout.name_width + column * (layout.block_width + layout.gap)
        y = _HEADER + row * layout.block_height
        axes.text(x, y + 0.18, names[step], **style.FAINT)
        _draw_block(painter, layout, table, step, x, y)
        if column == 0:
            _draw_names(painter, layout, y)
    painter.paint()
    return picture


def _table(states: Any) -> tuple[tuple[int, ...], list[list[Holding]]]:
    """Return the ranks in the order of the rows, and what each held: by rank, then by step."""
    if isinstance(states, RingWalk):
        return states.ranks, states.states_of_ranks()
    is_timelines = isinstance(states, list) and any(isinstance(each, Timeline) for each in states)
    if is_timelines or hasattr(states, "timeline"):
        return _table(ring_walk(states))
    table = [[_holding(state) for state in steps] for steps in states]
    return tuple(range(len(table))), table


def _holding(state: Any) -> Holding:
    return tuple(_ranks_in(entry) for entry in state)


def _ranks_in(entry: Any) -> frozenset[int]:
    if isinstance(entry, (set, frozenset, list, tuple)):
        return frozenset(entry)
    ranks = contributors(float(entry))
    if ranks is None:
        raise ValueError(
            f"{float(entry)} is no sum of tags: record sets of ranks, or run on viz.tagged(...)"
        )
    return frozenset(ranks)


def _dimensions(table: list[list[Holding]]) -> tuple[int, int]:
    steps = {len(states) for states in table}
    chunks = {len(holding) for states in table for holding in states}
    if len(steps) != 1 or len(chunks) != 1 or 0 in steps | chunks:
        raise ValueError(
            f"every rank needs the same number of steps and chunks, at least one: "
            f"got steps {sorted(steps)} and chunks {sorted(chunks)}"
        )
    return steps.pop(), chunks.pop()


def _step_names(given: Sequence[str] | None, num_steps: int) -> Sequence[str]:
    if given is None:
        return ["start", *(f"step {step}" for step in range(1, num_steps))]
    if len(given) != num_steps:
        raise ValueError(f"{len(given)} step_names for {num_steps} states (the start is one)")
    return given


def _draw_header(painter: CellPainter, title: str, ranks: Sequence[int]) -> None:
    painter.axes.text(0.12, 0.2, title, **style.TITLE)
    x = 0.12
    for rank in ranks:
        painter.stripes(x, 0.38, 0.13, 0.13, [style.rank_colour(rank)])
        painter.axes.text(x + 0.18, 0.445, f"from rank {rank}", **style.SMALL)
        x += 0.95 if len(ranks) <= 8 else 8.7 / len(ranks)


def _draw_names(painter: CellPainter, layout: _Layout, y: float) -> None:
    for row, rank in enumerate(layout.ranks):
        middle = y + 0.32 + (row + 0.42) * layout.row_height
        painter.axes.text(0.12, middle, f"rank {rank}", **style.SMALL)


def _draw_block(
    painter: CellPainter, layout: _Layout, table: list[list[Holding]], step: int, x: float, y: float
) -> None:
    width, height = layout.block_width / layout.num_chunks, 0.84 * layout.row_height
    for row, states in enumerate(table):
        top = y + 0.32 + row * layout.row_height
        for chunk, ranks in enumerate(states[step]):
            left = x + chunk * width
            colours = [
                style.rank_colour(source) if source in ranks else "#ffffff"
                for source in layout.ranks
            ]
            painter.stripes(left, top, width, height, colours)
            has_changed = step > 0 and states[step - 1][chunk] != ranks
            painter.frame(left, top, width, height, heavy=has_changed)


MAX_CELLS = 9  # one decimal digit
MAX_RANKS = 15  # float64 and int64 hold 15 decimal digits exactly


def tagged(rank: int, num_cells: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return `num_cells` numbers that carry their origin: give them to a primitive to watch it.

    Returns (num_cells,). Raises ValueError for more than 9 cells or a rank above 14, which one
    decimal digit per rank cannot carry, and for a dtype that cannot hold the sums exactly.
    """
    if not 0 <= rank < MAX_RANKS:
        raise ValueError(f"rank {rank} has no decimal place of its own; use ranks 0 to 14")
    if not 1 <= num_cells <= MAX_CELLS:
        raise ValueError(f"{num_cells} cells do not fit one decimal digit; use 1 to 9")
    if dtype not in (torch.float64, torch.int64):
        raise ValueError(f"{dtype} rounds sums of tags; use torch.float64 or torch.int64")
    return torch.arange(1, num_cells + 1, dtype=dtype) * 10**rank


def contributors(value: float) -> dict[int, int] | None:
    """Return the cell of each rank in a sum of tags: {rank: cell}. None: it is no such sum.

    contributors(330) == {1: 2, 2: 2}; contributors(0) == {}; contributors(2.5) is None.
    A cell that was counted twice shows as the wrong cell: 2 is cell 1 once, or cell 0 twice.
    """
    if value < 0 or value != int(value) or value >= 10**MAX_RANKS:
        return None
    digits = str(int(value))[::-1]
    return {rank: int(digit) - 1 for rank, digit in enumerate(digits) if digit != "0"}


def cells_of(value: Any) -> list[float] | None:
    """Return a rank's values as a flat list of numbers, or None if it holds nothing."""
    if value is None:
        return None
    tensor = torch.as_tensor(value)
    numbers: Sequence[float] = tensor.detach().to("cpu", torch.float64).flatten().tolist()
    return list(numbers) or None
