"""The order of a traced graph as lanes: what computes, and which collective is under way meanwhile.

    traced       compute     ==   ==   ==   ==
                 network   ##   ##   ##   ##
    overlapped   compute     == == == ==
                 network   ## ## ## ##

The order is the graph's; the lengths are assumed, and the same for all orders: see `graph_orders`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.compiled.graph import Event
from labkit.viz import style
from labkit.viz.picture import Picture

_WIDTH, _LEFT, _LANE, _HEADER, _FOOTER = 9.0, 1.75, 0.62, 0.5, 0.45
_COMPUTE = style.region_colours(["forward"])["forward"]


def graph_orders(
    orders: Mapping[str, Sequence[Event]],
    *,
    operation: float = 1.0,
    collective: float = 3.0,
    per_kb: float = 1.0,
    title: str = "order of the graph, with assumed lengths",
) -> Picture:
    """Draw orders one below the other, each with a lane for computing and one for the network.

    orders: name -> events(graph). An operation is `operation` long, a collective `collective` and
    `per_kb` for each 1,000 bytes; the network has one at a time. ValueError for nothing to draw.
    """
    if not orders:
        raise ValueError("nothing to draw: pass {name: events(graph)}")
    rows = _LANE * len(orders)
    height = _HEADER + rows + _FOOTER
    picture = Picture(_WIDTH, height, f"{title}: {', '.join(orders)}")
    picture.text(0.1 / _WIDTH, 1 - 0.2 / height, title, **style.TITLE)
    axes = picture.add_axes(
        (_LEFT / _WIDTH, _FOOTER / height, (_WIDTH - _LEFT - 0.1) / _WIDTH, rows / height)
    )
    longest = 0.0
    for row, (name, order) in enumerate(orders.items()):
        now = free = 0.0
        done: dict[int, float] = {}
        for each in order:
            if each.what == "compute":
                length = operation * each.number
                axes.barh(row, length, 0.3, now, color=_COMPUTE)
                now += length
            elif each.what == "start":
                length = collective + per_kb * each.nbytes / 1000
                start = max(now, free)
                colour = style.kind_family(each.kind).colour
                axes.barh(row + 0.32, length, 0.28, start, color=colour, edgecolor="white")
                done[each.number] = free = start + length
            else:
                now = max(now, done[each.number])
        longest = max(longest, now)
        axes.text(
            -0.01, row + 0.15, name, transform=axes.get_yaxis_transform(), ha="right", **style.SMALL
        )
    axes.set_xlim(0, longest)
    axes.set_ylim(len(orders) - 0.3, -0.3)
    axes.axis("off")
    legend = [("computes", _COMPUTE)] + [
        (kind.replace("_", "-"), style.kind_family(kind).colour)
        for kind in ("all_gather", "reduce_scatter")
    ]
    for place, (label, colour) in enumerate(legend):
        x = _LEFT + 1.6 * place
        picture.text(x / _WIDTH, 0.2 / height, "■", **style.SMALL | {"color": colour})
        picture.text((x + 0.2) / _WIDTH, 0.2 / height, label, **style.SMALL)
    return picture
