"""The traffic matrix: bytes from each rank to each other rank, by tier.

               to rank 0     1   |   2     3
from rank 0        .       12.3  |  4.1    .        blue: within a host
          1      12.3       .    |   .    4.1       orange: between hosts
               ------------------+-------------
          2       4.1       .    |   .    12.3
          3        .       4.1   |  12.3   .

The numbers are the sends of a run's journals, summed by source and destination. Around them are
names, sums, tiers, and a note on traffic that is not in the matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.calc.units import bytes_text, exact_bytes_text, number_text
from labkit.comm import Topology
from labkit.comm.operation import Timeline
from labkit.viz import style
from labkit.viz.journals import timelines_of
from labkit.viz.picture import Picture, blank_axes

WIDTH = 9.0  # inches
LEFT, HEADER, FOOTER = 1.35, 1.1, 0.62
_TOTALS = 0.9
_MAX_CELL_WIDTH, _CELL_HEIGHT, _NARROW_CELL_HEIGHT = 1.6, 0.4, 0.32
# Up to here bytes are written exactly: what differs must not look equal by rounding.
_EXACT = 100_000


WITHIN, BETWEEN = "#0072b2", "#d55e00"


MAX_RANKS = 16
_PALEST = 0.88  # how far the least of all cells is moved towards white


@dataclass(frozen=True)
class Sent:
    """The messages from one rank to another."""

    nbytes: int = 0
    messages: int = 0

    def __add__(self, other: "Sent") -> "Sent":
        """Both together."""
        return Sent(self.nbytes + other.nbytes, self.messages + other.messages)


def traffic_matrix(
    run: Any, *, count: str = "bytes", hosts: Any = None, title: str | None = None
) -> Picture:
    """Draw what every rank sent to every other one: a row per source, a column per destination.

    run: a Run, or a list of Timelines by rank. count: "bytes" or "messages". hosts: the ranks of
    each host, [[0, 1], [2, 3]], or a labkit.Topology; the run's own topology by default. With more
    than one host, cells between hosts are orange, and each tier's sum is in the heading.

    Messages count: send and isend, and labkit.collectives, which uses them. No journal has the
    receivers of the backend's own collectives; a note says how many bytes they sent.
    Returns a Picture. Raises ValueError for more than 16 ranks, for hosts that don't fit and for
    another count, TypeError for an object without timelines.
    """
    if count not in COUNTS:
        raise ValueError(f"count={count!r}: say what is counted, 'bytes' or 'messages'")
    timelines = timelines_of(run)
    num_ranks = len(timelines)
    if not 1 <= num_ranks <= MAX_RANKS:
        raise ValueError(f"{num_ranks} ranks: a matrix that can be read has 1 to {MAX_RANKS}")
    hosts = getattr(run, "topology", None) if hosts is None else hosts
    sent = sent_between(timelines)
    grid = grid_of(sent, count, hosts_of(hosts, num_ranks))
    picture = Picture(WIDTH, grid.height, f"{count} from rank to rank, {num_ranks} ranks")
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, WIDTH, grid.height)
    axes.text(0.12, 0.2, title or f"{grid.unit} from rank to rank", **style.TITLE)
    draw_tiers(axes, grid, sent)
    _draw_cells(axes, grid)
    _draw_frames(axes, grid)
    draw_names(axes, grid)
    draw_totals(axes, grid)
    axes.text(0.12, grid.height - 0.16, note(sent_by_the_library(timelines)), **style.FAINT)
    return picture


def sent_between(timelines: Sequence[Timeline]) -> list[list[Sent]]:
    """Return [source][destination], global ranks: all messages posted, on any group.

    ValueError for a message to a rank whose timeline is not among them.
    """
    table = [[Sent() for _ in timelines] for _ in timelines]
    for source, timeline in enumerate(timelines):
        for operation in timeline.operations:
            if operation.kind == "send" and operation.peer is not None:
                if operation.peer >= len(timelines):
                    raise ValueError(
                        f"rank {source} sent to rank {operation.peer}, and there are timelines of "
                        f"{len(timelines)} ranks only; give those of all ranks, run.timeline"
                    )
                table[source][operation.peer] += Sent(operation.sent_bytes, 1)
    return table


def sent_by_the_library(timelines: Sequence[Timeline]) -> dict[str, int]:
    """Return bytes of the backend's collectives, by kind: the journal does not know to whom."""
    nbytes: dict[str, int] = {}
    for timeline in timelines:
        for operation in timeline.operations:
            if operation.is_collective and operation.kind != "split" and operation.sent_bytes:
                nbytes[operation.kind] = nbytes.get(operation.kind, 0) + operation.sent_bytes
    return nbytes


def hosts_of(hosts: Any, num_ranks: int) -> list[list[int]]:
    """Return each host's ranks: from a Topology or from lists of ranks; None: all on one host.

    Raises ValueError unless every rank is on exactly one host, TypeError for anything else.
    """
    if hosts is None:
        return [list(range(num_ranks))]
    if isinstance(hosts, Topology):
        found: list[list[int]] = [[] for _ in range(hosts.hosts)]
        for rank in range(hosts.world_size):
            found[hosts.host_of(rank)].append(rank)
    else:
        found = [list(host) for host in hosts]
    ranks = [rank for host in found for rank in host]
    if sorted(ranks) != list(range(num_ranks)) or not all(found):
        raise ValueError(
            f"hosts={found!r:.200}: each of ranks 0 to {num_ranks - 1} is on exactly one host, and "
            "a host has a rank; such as [[0, 1], [2, 3]]"
        )
    return found


COUNTS: dict[str, Callable[[Sent], int]] = {
    "bytes": lambda sent: sent.nbytes,
    "messages": lambda sent: sent.messages,
}


class Grid(NamedTuple):
    """The matrix that is drawn: ranks in the order of their hosts, and a number for each pair."""

    hosts: list[list[int]]
    values: list[list[int]]
    """[source][destination]."""
    unit: str
    text: Callable[[int], str]
    """Writes a number; all numbers are in one unit."""
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
        """The type size at which the longest number fits its cell; 0 if it would be too small."""
        longest = max(len(self.text(value)) for row in self.values for value in row)
        points = min(style.BASE_POINTS, 72 * 0.92 * self.cell_width / (0.62 * longest))
        return points if points >= style.SMALLEST_POINTS else 0.0

    @property
    def host_of(self) -> dict[int, int]:
        """By rank."""
        return {rank: number for number, host in enumerate(self.hosts) for rank in host}


def grid_of(sent: list[list[Sent]], count: str, hosts: list[list[int]]) -> Grid:
    """Return the matrix of what is counted: "bytes" or "messages"."""
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
    """Return what the cells count, and how a number of it is written."""
    if count == "messages" or most < _EXACT:
        return count.capitalize(), number_text
    unit = bytes_text(most).split()[1]
    size = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    return unit, lambda value: f"{float(f'{value / size:.3g}'):g}"


def draw_tiers(axes: Axes, grid: Grid, sent: list[list[Sent]]) -> None:
    """Draw the sum of each tier, beside its colour."""
    host_of = grid.host_of
    tiers = {True: Sent(), False: Sent()}
    for source, row in enumerate(sent):
        for destination, cell in enumerate(row):
            tiers[host_of[source] == host_of[destination]] += cell
    names = (
        {True: "within a host", False: "between hosts"} if len(grid.hosts) > 1 else {True: "in all"}
    )
    x = 0.12
    for is_within, name in names.items():
        colour = WITHIN if is_within else BETWEEN
        axes.add_patch(Rectangle((x, 0.42), 0.13, 0.13, facecolor=colour, edgecolor="none"))
        tier = tiers[is_within]
        plural = "" if tier.messages == 1 else "s"
        sums = f"{exact_bytes_text(tier.nbytes)} in {number_text(tier.messages)} message{plural}"
        axes.text(x + 0.2, 0.485, f"{name}: {sums}", **style.SMALL)
        x += 3.4


def draw_names(axes: Axes, grid: Grid) -> None:
    """Draw ranks and hosts, above the columns and left of the rows."""
    axes.text(LEFT - 0.12, HEADER - 0.16, "to rank", **style.FAINT | {"ha": "right"})
    axes.text(0.12, HEADER - 0.16, "from rank", **style.FAINT)
    for number, rank in enumerate(grid.ranks):
        name = style.SMALL | {"fontsize": style.BASE_POINTS}
        axes.text(grid.x(number + 0.5), HEADER - 0.16, str(rank), **name | {"ha": "center"})
        axes.text(LEFT - 0.12, grid.y(number + 0.5), str(rank), **name | {"ha": "right"})
    if len(grid.hosts) == 1:
        return
    for number, (begin, end) in enumerate(zip(grid.boundaries, grid.boundaries[1:])):
        middle = (begin + end) / 2
        axes.text(grid.x(middle), HEADER - 0.36, f"host {number}", **style.FAINT | {"ha": "center"})
        axes.text(0.12, grid.y(middle), f"host {number}", **style.FAINT)


def draw_totals(axes: Axes, grid: Grid) -> None:
    """Draw each rank's sent total at the right, and its received total below."""
    n = len(grid.ranks)
    x, y = grid.x(n) + 0.72, grid.y(n) + 0.16
    axes.text(x, HEADER - 0.16, "sent", **style.FAINT | {"ha": "right"})
    axes.text(LEFT - 0.12, y, "received", **style.FAINT | {"ha": "right"})
    look = style.SMALL | {"fontsize": min(style.SMALL_POINTS, grid.points)}
    for number, rank in enumerate(grid.ranks):
        sent = sum(grid.values[rank])
        received = sum(row[rank] for row in grid.values)
        axes.text(x, grid.y(number + 0.5), grid.text(sent), **style.SMALL | {"ha": "right"})
        axes.text(grid.x(number + 0.5), y, grid.text(received), **look | {"ha": "center"})


def note(by_the_library: dict[str, int]) -> str:
    """Say what the matrix leaves out, and why; `by_the_library`: bytes by kind."""
    if not by_the_library:
        return "all of the run's messages"
    kinds = ", ".join(f"{kind} {bytes_text(nbytes)}" for kind, nbytes in by_the_library.items())
    return f"not shown, because the backend chooses the receivers: {kinds}"


def _draw_cells(axes: Axes, grid: Grid) -> None:
    most = max(map(max, grid.values)) or 1
    host_of, points = grid.host_of, grid.points
    for row, source in enumerate(grid.ranks):
        for column, destination in enumerate(grid.ranks):
            value = grid.values[source][destination]
            tier = WITHIN if host_of[source] == host_of[destination] else BETWEEN
            # By the square root: a tenth of the most can still be distinguished from nothing.
            colour = style.tint(tier, _PALEST * (1 - (value / most) ** 0.5)) if value else "white"
            corner = (grid.x(column), grid.y(row))
            axes.add_patch(
                Rectangle(
                    corner,
                    grid.cell_width,
                    grid.cell_height,
                    facecolor="#f0f0f0" if source == destination else colour,
                    edgecolor=style.GRID,
                    linewidth=0.7,
                )
            )
            look = style.SMALL | {"ha": "center", "fontsize": points}
            if value:
                look["color"] = style.text_on(colour)
            text = grid.text(value) if value else "·"
            if source != destination and points:
                axes.text(grid.x(column + 0.5), grid.y(row + 0.5), text, **look)


def _draw_frames(axes: Axes, grid: Grid) -> None:
    """Draw a heavy line round each host's own cells, where there is more than one host."""
    if len(grid.hosts) == 1:
        return
    for begin, end in zip(grid.boundaries, grid.boundaries[1:]):
        axes.add_patch(
            Rectangle(
                (grid.x(begin), grid.y(begin)),
                (end - begin) * grid.cell_width,
                (end - begin) * grid.cell_height,
                fill=False,
                edgecolor=style.INK,
                linewidth=1.6,
            )
        )
