"""Tensors on each rank before and after a primitive, as a run returned them."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from labkit.calc.units import number_text
from labkit.viz import style
from labkit.viz.picture import CellPainter, Picture, blank_axes
from labkit.viz.rings import cells_of, contributors

_WIDTH = 9.0  # inches
_UNKNOWN = "#e4e4e4"
# In units of one row: a rank's row is 1 high, its cells 0.74.
_ROW_INCHES = 0.28
_CELL_HEIGHT, _HEADING, _MAX_CELL_WIDTH = 0.78, 1.5, 1.8
_MAX_CELL_ALONE = 3.2  # a panel without a neighbour fills the picture
_NAME_WIDTH, _ARROW_WIDTH = 1.9, 1.4
_DIGIT_WIDTH = 0.68  # per point of type
Cells = list[float] | None


def moves(
    primitives: Mapping[str, Sequence[tuple[Any, Any]]],
    *,
    columns: int = 2,
    title: str | None = None,
) -> Picture:
    """Draw tensors before and after, by rank, for one primitive or several side by side.

    primitives: name -> one (before, after) pair per rank: just what `run(...).values` is when every
    rank returns its input and its output. A tensor, a list of numbers, or None where a rank holds
    nothing. Use `viz.tagged(rank, num_cells)` as the primitive's input. Then each cell has the
    colours of the ranks whose data really is in it, decoded from the value; other values are
    shown in grey. If numbers do not fit, one digit says which cell it was.

        def broadcast(world):
            before = viz.tagged(world.rank, 4) if world.rank == 0 else torch.zeros(4).double()
            return before, world.broadcast(before, root=0)

        viz.moves({"broadcast": run(broadcast, 4).values})

    Returns a Picture. Raises ValueError if there is nothing to draw, or no column for it.
    """
    panels = {
        name: [(cells_of(before), cells_of(after)) for before, after in pairs]
        for name, pairs in primitives.items()
    }
    if not panels or not all(panels.values()):
        raise ValueError("nothing to draw: pass {name: [(before, after) of rank 0, ...]}")
    columns = min(columns, len(panels))
    panel_inches = _ROW_INCHES * (max(map(len, panels.values())) + _HEADING) + 0.12
    header = 0.45 if title else 0.08
    height = header + -(-len(panels) // columns) * panel_inches + 0.08
    picture = Picture(_WIDTH, height, f"what moves where: {', '.join(panels)}")
    picture.text(0.15 / _WIDTH, 1 - 0.2 / height, title or "", **style.TITLE)
    width = (_WIDTH - 0.15) / columns - 0.15
    for number, (name, pairs) in enumerate(panels.items()):
        row, column = divmod(number, columns)
        own_height = _ROW_INCHES * (len(pairs) + _HEADING)
        left = 0.15 + column * (width + 0.15)
        bottom = height - header - row * panel_inches - own_height
        bounds = (left / _WIDTH, bottom / height, width / _WIDTH, own_height / height)
        _draw_panel(picture.add_axes(bounds), name, pairs, width)
    return picture


def _draw_panel(
    axes: Axes, name: str, pairs: list[tuple[Cells, Cells]], width_inches: float
) -> None:
    num_ranks = len(pairs)
    width = width_inches / _ROW_INCHES  # a unit is as wide as it is high
    blank_axes(axes, width, num_ranks + _HEADING)
    axes.text(0, 0.35, name, **style.TITLE | {"fontsize": style.BASE_POINTS + 1})
    most = [max((len(pair[side] or ()) for pair in pairs), default=0) or 1 for side in (0, 1)]
    free = width - _NAME_WIDTH - _ARROW_WIDTH - 0.1  # the last frame is drawn on its edge
    widest = _MAX_CELL_WIDTH if width_inches < _WIDTH / 2 else _MAX_CELL_ALONE
    cell_width = min(free / max(sum(most), 2 * max(most)), widest)
    after_x = _NAME_WIDTH + most[0] * cell_width + _ARROW_WIDTH
    painter = CellPainter(axes)
    writer = _Writer(pairs, cell_width * _ROW_INCHES * 72)
    for side, x in enumerate((_NAME_WIDTH, after_x)):
        axes.text(x, _HEADING - 0.35, ("before", "after")[side], **style.FAINT)
        column = [pair[side] for pair in pairs]
        values = [value for cells in column for value in cells or ()]
        # One value that is not a sum of tags (a mean) makes the others' digits meaningless too.
        is_tagged = all(contributors(value) is not None for value in values)
        for rank, cells in enumerate(column):
            y = rank + _HEADING
            _draw_cells(painter, writer, cells, x, y, cell_width, is_tagged=is_tagged)
    for rank in range(num_ranks):
        axes.text(0, rank + _HEADING + _CELL_HEIGHT / 2, f"rank {rank}", **style.SMALL)
    middle = _HEADING + (num_ranks - 1 + _CELL_HEIGHT) / 2
    axes.annotate(
        "",
        xy=(after_x - 0.15 * _ARROW_WIDTH, middle),
        xytext=(after_x - 0.85 * _ARROW_WIDTH, middle),
        arrowprops={"arrowstyle": "-|>", "color": style.FAINT_INK, "linewidth": 1.2},
    )
    painter.paint()


class _Writer:
    """Writes the numbers of one panel in one size, or only their digits if they are too long.

    Colours say whose data it is, and the remaining digit which cell: 30300 becomes 3.
    """

    def __init__(self, pairs: list[tuple[Cells, Cells]], room_points: float) -> None:
        values = [value for pair in pairs for cells in pair for value in cells or ()]
        longest = max((len(self._number(value)) for value in values), default=1)
        self.points = min(style.SMALL_POINTS, room_points / (_DIGIT_WIDTH * longest))
        self._is_short = self.points < style.SMALLEST_POINTS
        if self._is_short:
            self.points = style.SMALL_POINTS

    @staticmethod
    def _number(value: float) -> str:
        return number_text(value).replace(",", "")

    def text(self, value: float, *, is_tagged: bool) -> str:
        """Return the text for the cell of `value`; "" if it neither fits nor is a tag."""
        if not self._is_short:
            return self._number(value)
        return "".join(sorted(set(self._number(value)) - {"0"})) if is_tagged else ""


def _draw_cells(
    painter: CellPainter,
    writer: _Writer,
    cells: Cells,
    x: float,
    y: float,
    width: float,
    *,
    is_tagged: bool,
) -> None:
    middle = y + _CELL_HEIGHT / 2
    if cells is None:
        painter.axes.text(x, middle, "nothing", **style.FAINT)
        return
    text = style.SMALL | {"fontsize": writer.points, "ha": "center", "zorder": 5}
    for value in cells:
        ranks = sorted(contributors(value) or ()) if is_tagged else []
        colours = [style.paler(style.rank_colour(rank), 0.3) for rank in ranks]
        blank = "#ffffff" if is_tagged else _UNKNOWN
        painter.stripes(x, y, width, _CELL_HEIGHT, colours or [blank])
        painter.frame(x, y, width, _CELL_HEIGHT)
        painter.axes.text(x + width / 2, middle, writer.text(value, is_tagged=is_tagged), **text)
        x += width
