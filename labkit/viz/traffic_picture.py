"""The traffic matrix: how much each rank sent to each other one, with the two tiers apart.

               to rank 0     1   |   2     3
from rank 0        .       12.3  |  4.1    .        blue: within a host
          1      12.3       .    |   .    4.1       orange: between hosts
               ------------------+-------------
          2       4.1       .    |   .    12.3
          3        .       4.1   |  12.3   .
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.viz import style
from labkit.viz.cells import blank_axes
from labkit.viz.of_a_run import timelines_of
from labkit.viz.picture import Picture
from labkit.viz.traffic_counts import hosts_of, sent_between, sent_by_the_library
from labkit.viz.traffic_grid import COUNTS, WIDTH, Grid, grid_of
from labkit.viz.traffic_text import BETWEEN, WITHIN, draw_names, draw_tiers, draw_totals, note

MAX_RANKS = 16
_PALEST = 0.88  # how far the least of all cells is moved towards white


def traffic_matrix(
    run: Any, *, count: str = "bytes", hosts: Any = None, title: str | None = None
) -> Picture:
    """What every rank sent to every other one: a row per source, a column per destination.

    run: a Run, or a list of Timelines by rank. count: "bytes" or "messages". hosts: the ranks of
    each host, [[0, 1], [2, 3]], or a labkit.Topology; the run's own topology by default. With more
    than one host, cells between hosts are orange, and each tier's sum is in the heading.

    Counted are messages: send and isend, and what labkit.collectives makes of them. To whom the
    backend's own collectives send is in no journal; a note says how much it was.
    Returns a Picture. Raises ValueError for more than 16 ranks, for hosts that don't fit and for
    another count, TypeError for what has no timelines.
    """
    if not isinstance(count, str) or count not in COUNTS:
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


def _draw_cells(axes: Axes, grid: Grid) -> None:
    most = max(map(max, grid.values)) or 1
    host_of, points = grid.host_of, grid.points
    for row, source in enumerate(grid.ranks):
        for column, destination in enumerate(grid.ranks):
            value = grid.values[source][destination]
            tier = WITHIN if host_of[source] == host_of[destination] else BETWEEN
            # By the square root: a tenth of the most can still be told from nothing.
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
            if source != destination:
                axes.text(grid.x(column + 0.5), grid.y(row + 0.5), text, **look)


def _draw_frames(axes: Axes, grid: Grid) -> None:
    """A heavy line round each host's own cells, where there is more than one host."""
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
