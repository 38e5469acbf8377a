"""The numbers of a traffic matrix and where they stand: no drawing here."""

from collections.abc import Callable
from typing import NamedTuple

from labkit.calc.units import bytes_text, number_text
from labkit.viz import style
from labkit.viz.traffic_counts import Sent

WIDTH = 9.0  # inches
LEFT, HEADER, FOOTER = 1.35, 1.1, 0.62
_TOTALS = 0.9
_MAX_CELL_WIDTH, _CELL_HEIGHT, _NARROW_CELL_HEIGHT = 0.9, 0.4, 0.32
# Up to here bytes are written exactly: what differs must not look equal by rounding.
_EXACT = 100_000
COUNTS: dict[str, Callable[[Sent], int]] = {
    "bytes": lambda sent: sent.nbytes,
    "messages": lambda sent: sent.messages,
}


class Grid(NamedTuple):
    """What is drawn: ranks in the order of their hosts, and a number for each pair."""

    hosts: list[list[int]]
    values: list[list[int]]
    """[source][destination]."""
    unit: str
    text: Callable[[int], str]
    """How a number is written: all of them in one unit."""
    cell_width: float
    cell_height: float

    @property
    def ranks(self) -> list[int]:
        """By row and by column."""
        return [rank for host in self.hosts for rank in host]

    @property
    def boundaries(self) -> list[int]:
        """Rows, and columns, at which a host begins, and the end."""
        ends = [0]
        for host in self.hosts:
            ends.append(ends[-1] + len(host))
        return ends

    def x(self, column: float) -> float:
        """Inches from the left."""
        return LEFT + column * self.cell_width

    def y(self, row: float) -> float:
        """Inches from the top."""
        return HEADER + row * self.cell_height

    @property
    def height(self) -> float:
        """Inches of the whole picture."""
        return self.y(len(self.ranks)) + FOOTER

    @property
    def points(self) -> float:
        """The type size at which the longest number fits its cell."""
        longest = max(len(self.text(value)) for row in self.values for value in row)
        return min(style.BASE_POINTS, 72 * 0.92 * self.cell_width / (0.62 * longest))

    @property
    def host_of(self) -> dict[int, int]:
        """By rank."""
        return {rank: number for number, host in enumerate(self.hosts) for rank in host}


def grid_of(sent: list[list[Sent]], count: str, hosts: list[list[int]]) -> Grid:
    """The matrix of what is counted: "bytes" or "messages"."""
    values = [[COUNTS[count](cell) for cell in row] for row in sent]
    unit, text = _writer(count, max(map(max, values)))
    num_ranks = len(sent)
    return Grid(
        hosts,
        values,
        unit,
        text,
        min(_MAX_CELL_WIDTH, (WIDTH - LEFT - _TOTALS - 0.1) / num_ranks),
        _CELL_HEIGHT if num_ranks <= 8 else _NARROW_CELL_HEIGHT,
    )


def _writer(count: str, most: int) -> tuple[str, Callable[[int], str]]:
    """What stands in the cells, and how a number of it is written."""
    if count == "messages" or most < _EXACT:
        return count.capitalize(), number_text
    unit = bytes_text(most).split()[1]
    size = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    return unit, lambda value: f"{float(f'{value / size:.3g}'):g}"
