"""A ring all-reduce step by step, from the journals of a real run or the states it recorded."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from labkit.comm.operation import Timeline
from labkit.viz import style
from labkit.viz.cells import CellPainter, blank_axes
from labkit.viz.picture import Picture
from labkit.viz.ring_walk import Holding, RingWalk, ring_walk
from labkit.viz.tags import contributors

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
    """One block per step: a row per rank, a cell per chunk, a stripe per contribution.

    states: a Run of one ring all-reduce; its journals say who held what (ring_walk.py says how).
    Or what ranks recorded, by rank, then by step (the first is the start). Such a state has one
    entry per chunk: either the ranks whose contributions are in it (a set), or the number itself
    where the run worked on `viz.tagged(rank, world_size)`: then a rank only has to keep
    `x.clone()` after every step, and what is drawn is what it held.
    step_names: a heading for every state; "start", "step 1", ... by default.

    Cells fill up, one stripe per rank in its place, until all colours are there; a heavy outline
    marks what changed in the step. Returns a Picture. Raises ValueError for states that don't form
    a table of ranks x steps x chunks, and for a run of something else than one ring.
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
    """The ranks, in the order of the rows, and what each held: by rank, then by step."""
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
