"""One step of a ring all-reduce, large: the chunks of each rank, and the messages of the step.

           chunk 0      chunk 1      chunk 2
rank 0    |0 . .|      |0 . 2|      |0 . .|        a column per chunk, a stripe per rank whose
                          ^            |           contribution is in it; an arrow for each
rank 1    |0 1 .|  ...                 v           message of this step

The panel beside the picture has the step in words and numbers.
"""

from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.calc.units import exact_bytes_text, number_text
from labkit.viz import style
from labkit.viz.rings import RingWalk, ring_walk
from labkit.viz.style import CellPainter, Picture, blank_axes

MAX_RANKS = 8
_WIDTH, _LEFT, _PANEL = 9.0, 0.75, 2.75  # inches
_HEADER, _FOOTER = 1.2, 0.6
_CELL_HEIGHT, _GAP = 0.36, 0.3
_PHASE_COLOURS = {
    phase: style.kind_family(phase.replace("-", "_")).colour
    for phase in ("reduce-scatter", "all-gather")
}


class _Layout(NamedTuple):
    """Sizes in inches; a row is a rank in the order of the ring, a column a chunk."""

    num_ranks: int

    @property
    def column_width(self) -> float:
        """A cell and the gap to the next."""
        return (_WIDTH - _LEFT - _PANEL - 0.15) / self.num_ranks

    @property
    def cell_width(self) -> float:
        """One chunk of one rank."""
        return min(0.9 * self.column_width, 1.5)

    @property
    def height(self) -> float:
        """Height of the whole picture."""
        return self.top(self.num_ranks) + _FOOTER - _GAP / 2

    def left(self, chunk: int) -> float:
        """Return the left edge of a column's cells."""
        return _LEFT + chunk * self.column_width

    def top(self, row: int) -> float:
        """Return the upper edge of a row's cells."""
        return _HEADER + row * (_CELL_HEIGHT + _GAP)


def ring_step(run: Any, step: int, *, title: str | None = None) -> Picture:
    """Draw where every chunk is after one step of a ring all-reduce, and the step's messages.

    run: a Run of one ring all-reduce on at most 8 ranks, or the RingWalk of one. step: 0 for the
    start, up to 2(n-1) for the end. Numbers in a cell are the ranks whose contributions are in it.

    `labkit.notebook.ring_slider(run)` has a slider over the steps; `viz.ring_steps(run)` shows all
    at once. Returns a Picture. Raises ValueError for a step outside the ring, for more ranks, and
    as `ring_walk` does.
    """
    walk = run if isinstance(run, RingWalk) else ring_walk(run)
    num_ranks, num_steps = len(walk.ranks), len(walk.steps)
    if num_ranks > MAX_RANKS:
        raise ValueError(f"{num_ranks} ranks: a step that can be read has {MAX_RANKS} or fewer")
    if not 0 <= step <= num_steps:
        raise ValueError(f"step={step!r}: this ring starts at step 0 and ends after {num_steps}")
    layout = _Layout(num_ranks)
    picture = Picture(
        _WIDTH, layout.height, f"step {step} of {num_steps} of a ring on {num_ranks} ranks"
    )
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, _WIDTH, layout.height)
    axes.text(0.12, 0.2, title or f"Ring all-reduce, {num_ranks} ranks", **style.TITLE)
    _draw_progress(axes, walk, step)
    painter = CellPainter(axes)
    _draw_names(axes, layout, walk)
    _draw_cells(painter, layout, walk, step)
    if step:
        _draw_arrows(axes, layout, walk, step)
    draw_panel(axes, walk, step, _WIDTH - _PANEL + 0.1, _HEADER + 0.1)
    note = "numbers: the ranks whose contribution is in the cell; heavy frame: changed in this step"
    axes.text(0.12, layout.height - 0.14, note, **style.FAINT)
    painter.paint()
    return picture


def _draw_progress(axes: Axes, walk: RingWalk, step: int) -> None:
    """Draw a box per step in the colour of its phase, filled up to this one."""
    num_steps = len(walk.steps)
    width = min(0.42, (_WIDTH - 0.3) / num_steps)
    for number in range(1, num_steps + 1):
        colour = _PHASE_COLOURS[walk.phase(number)]
        is_past = number <= step
        axes.add_patch(
            Rectangle(
                (0.12 + (number - 1) * width, 0.42),
                0.9 * width,
                0.2,
                facecolor=(colour, 1.0 if is_past else 0.22),
                edgecolor=style.INK if number == step else "none",
                linewidth=1.6,
            )
        )
        text = style.SMALL | {"ha": "center", "fontsize": 7.0}
        text["color"] = style.text_on(colour) if is_past else style.FAINT_INK
        axes.text(0.12 + (number - 0.55) * width, 0.525, str(number), **text)
    for phase, first in (("reduce-scatter", 0), ("all-gather", num_steps // 2)):
        axes.text(0.12 + first * width, 0.76, phase, **style.FAINT)


def _draw_names(axes: Axes, layout: _Layout, walk: RingWalk) -> None:
    for row, rank in enumerate(walk.ranks):
        middle = layout.top(row) + _CELL_HEIGHT / 2
        axes.text(0.12, middle, f"rank {rank}", **style.SMALL)
    name = "chunk " if layout.column_width > 0.8 else ""
    for chunk in range(layout.num_ranks):
        middle = layout.left(chunk) + layout.cell_width / 2
        axes.text(middle, _HEADER - 0.24, f"{name}{chunk}", **style.FAINT | {"ha": "center"})
    if not name:
        axes.text(0.12, _HEADER - 0.24, "chunk", **style.FAINT)


def _draw_cells(painter: CellPainter, layout: _Layout, walk: RingWalk, step: int) -> None:
    before = walk.states[max(step - 1, 0)]
    stripe = layout.cell_width / layout.num_ranks
    digits = style.SMALL | {"ha": "center", "zorder": 5, "fontsize": 8.5 if stripe > 0.12 else 6.0}
    for row, holding in enumerate(walk.states[step]):
        for chunk, sources in enumerate(holding):
            x, y = layout.left(chunk), layout.top(row)
            colours = [
                style.rank_colour(rank) if rank in sources else "#ffffff" for rank in walk.ranks
            ]
            painter.stripes(x, y, layout.cell_width, _CELL_HEIGHT, colours)
            has_changed = before[row][chunk] != sources
            painter.frame(x, y, layout.cell_width, _CELL_HEIGHT, heavy=has_changed)
            for place, rank in enumerate(walk.ranks):
                if rank in sources:
                    middle = x + (place + 0.5) * stripe
                    painter.axes.text(middle, y + _CELL_HEIGHT / 2, str(rank), **digits)


def _draw_arrows(axes: Axes, layout: _Layout, walk: RingWalk, step: int) -> None:
    """Draw arrows to the next row; from the last row out at the bottom and in at the top."""
    row_of = {rank: row for row, rank in enumerate(walk.ranks)}
    for hop in walk.steps[step - 1]:
        x = layout.left(hop.chunk) + layout.cell_width / 2
        begin = layout.top(row_of[hop.source]) + _CELL_HEIGHT
        end = layout.top(row_of[hop.destination])
        if end > begin:
            _arrow(axes, x, begin, end)
            continue
        _arrow(axes, x, begin, begin + 0.8 * _GAP)
        _arrow(axes, x, end - 0.16, end)
        note = style.FAINT | {"fontsize": 7.0}
        axes.text(x + 0.09, begin + 0.5 * _GAP, f"to rank {hop.destination}", **note)


def _arrow(axes: Axes, x: float, begin: float, end: float) -> None:
    axes.annotate(
        "",
        xy=(x, end),
        xytext=(x, begin),
        arrowprops={
            "arrowstyle": "-|>,head_width=0.25,head_length=0.5",
            "color": style.INK,
            "linewidth": 1.6,
            "shrinkA": 0,
            "shrinkB": 0,
        },
        zorder=6,
    )


def draw_panel(axes: Axes, walk: RingWalk, step: int, x: float, y: float) -> None:
    """Write this step's messages and the total so far, from (x, y) in inches downwards."""
    if not step:
        lines = ["Each rank holds its own contribution", "to every chunk, and nothing else."]
        for number, line in enumerate(lines):
            axes.text(x, y + 0.22 * number, line, **style.SMALL)
        return
    axes.text(x, y, f"step {step}: {walk.phase(step)}", **style.SMALL | {"fontweight": "bold"})
    y += 0.3
    for hop in walk.steps[step - 1]:
        size = f"{number_text(hop.numel)} number{'' if hop.numel == 1 else 's'}"
        text = f"rank {hop.source} sends chunk {hop.chunk}, {size}"
        axes.text(x, y, text, **style.SMALL)
        y += 0.22
    y += 0.1
    for line in (_sent_so_far(walk, step), _complete(walk, step), _when(walk, step)):
        axes.text(x, y, line, **style.FAINT)
        y += 0.22


def _sent_so_far(walk: RingWalk, step: int) -> str:
    sent = dict.fromkeys(walk.ranks, 0)
    for hops in walk.steps[:step]:
        for hop in hops:
            sent[hop.source] += hop.nbytes
    low, high = (exact_bytes_text(of(sent.values())) for of in (min, max))
    return f"sent so far by each rank: {low if low == high else f'{low} to {high}'}"


def _complete(walk: RingWalk, step: int) -> str:
    cells = [sources for holding in walk.states[step] for sources in holding]
    complete = sum(len(sources) == len(walk.ranks) for sources in cells)
    return f"complete: {complete} of {len(cells)} cells"


def _when(walk: RingWalk, step: int) -> str:
    """Write the times. Ranks don't wait for each other, so steps overlap."""
    hops = walk.steps[step - 1]
    begin, end = min(hop.sent_s for hop in hops), max(hop.arrived_s for hop in hops)
    unit = style.time_unit(end)
    return (
        f"on its way from {begin * unit.per_second:.3g} to {end * unit.per_second:.3g} {unit.name}"
    )
