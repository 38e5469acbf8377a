"""What stands around a traffic matrix: names, sums, tiers, and what is not in it."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.calc.units import bytes_text, exact_bytes_text, number_text
from labkit.viz import style
from labkit.viz.traffic_counts import Sent
from labkit.viz.traffic_grid import HEADER, LEFT, Grid

WITHIN, BETWEEN = "#0072b2", "#d55e00"


def draw_tiers(axes: Axes, grid: Grid, sent: list[list[Sent]]) -> None:
    """The sum of each tier, beside its colour."""
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
    """Ranks and hosts, above the columns and left of the rows."""
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
    """What each rank sent, at the right, and received, below."""
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
    """What the matrix leaves out, and why; `by_the_library`: bytes by kind."""
    if not by_the_library:
        return "all of the run's messages"
    kinds = ", ".join(f"{kind} {bytes_text(nbytes)}" for kind, nbytes in by_the_library.items())
    return f"not shown, because the backend chooses the receivers: {kinds}"
