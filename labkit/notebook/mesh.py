"""A mesh as a grid of ranks: point at one to highlight the ranks that it talks to, by axis.

mesh_explorer(dp=2, pp=2, tp=4)                      # 16 ranks on two nodes of 8
mesh_explorer(tp=4, dp=4, gpus_per_node=4)           # axes in the order of the arguments

    node 0   [0] [1] [2] [3]         pointing at rank 5: 4 in tp's colour, 7 in pp's, 1 in dp's
    node 1   [4] [5] [6] [7]

No script: CSS alone, `:has(...:hover)`, so that it also works in a page that nbconvert made. In a
browser without it, the tooltip of a rank has its groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import ipywidgets as widgets

from labkit import arguments
from labkit.notebook.controls import choice, with_slider_names
from labkit.notebook.shown import BORDER, FAINT, WithWidget, box, scrolled
from labkit.viz.mesh_places import Place, checked_sizes, group_text, groups_of, places

COLOURS = {"dp": "#72b1d4", "pp": "#f2ca74", "cp": "#cc9ec0", "ep": "#d9d26a", "tp": "#74cbb2"}
# The theme's own colour, inverted: a fixed black would vanish on a dark page.
_CHOSEN = "background: var(--jp-content-font-color0, #222); color: var(--jp-layout-color0, #fff);"
_CELL = (
    f"display: inline-block; margin: 2px; padding: 3px 0; border: 1px solid {BORDER}; "
    "text-align: center; font-size: 11px; line-height: 1.35; cursor: default;"
)


def mesh_html(sizes: Mapping[str, int], gpus_per_node: int, rank: int) -> str:
    """Return the grid, with `rank` chosen until the pointer is over another one, and its groups.

    sizes: by axis, slowest first, checked by the caller. Depends on its arguments only.
    """
    name = "labkit-mesh-" + "-".join(f"{axis}{size}" for axis, size in sizes.items())
    name += f"-{gpus_per_node}-{rank}"
    everyone = places(sizes, gpus_per_node)
    rules = [_rules(name, place.rank, rank, sizes) for place in everyone]
    nodes: dict[int, list[str]] = {}
    for place in everyone:
        nodes.setdefault(place.node, []).append(_cell(place, sizes, gpus_per_node))
    label = f"display: inline-block; width: 4.5em; color: {FAINT};"
    rows = "".join(
        f'<div style="white-space: nowrap;"><span style="{label}">node {node}</span>'
        f"{''.join(cells)}</div>"
        for node, cells in nodes.items()
    )
    return (
        f'<style>{"".join(rules)}</style><div class="{name}">{scrolled(rows, "ranks by node")}'
        f"{_words(rank, sizes, gpus_per_node)}</div>"
    )


def _rules(name: str, rank: int, chosen: int, sizes: Mapping[str, int]) -> str:
    """Return CSS for the pointer over `rank`; for the chosen one, also without."""
    over = [f".{name}:has(.r{rank}:hover)"]
    if rank == chosen:
        over.append(f".{name}:not(:has(.rank:hover))")
    found = []
    for axis, members in groups_of(rank, sizes).items():
        others = [f"{each} .r{other}" for each in over for other in members if other != rank]
        if others:
            colour = f"background: {COLOURS[axis]}; color: #222222;"
            found.append(f"{','.join(others)}{{{colour}}}")
    return "".join([*found, f"{','.join(f'{each} .r{rank}' for each in over)}{{{_CHOSEN}}}"])


def _cell(place: Place, sizes: Mapping[str, int], gpus_per_node: int) -> str:
    where = " ".join(f"{axis}{at}" for axis, at in place.coordinates.items())
    tooltip = "\n".join([f"rank {place.rank}", *_group_texts(place.rank, sizes, gpus_per_node)])
    width = f"width: {2.3 * len(sizes) + 0.4:.1f}em;"  # three letters for each axis
    return (
        f'<span class="rank r{place.rank}" style="{_CELL} {width}" title="{escape(tooltip)}">'
        f"<b>{place.rank}</b><br>{escape(where)}</span>"
    )


def _words(rank: int, sizes: Mapping[str, int], gpus_per_node: int) -> str:
    """Return the chosen rank's groups, with the colours of the axes."""
    lines = [
        f'<div><span style="display: inline-block; width: 0.9em; height: 0.9em; background: '
        f'{COLOURS[axis]};"></span> {escape(text)}</div>'
        for axis, text in zip(sizes, _group_texts(rank, sizes, gpus_per_node), strict=True)
    ]
    return f'<div style="margin-top: 4px;">rank {rank}{"".join(lines)}</div>'


def _group_texts(rank: int, sizes: Mapping[str, int], gpus_per_node: int) -> list[str]:
    groups = groups_of(rank, sizes)
    return [group_text(axis, members, gpus_per_node) for axis, members in groups.items()]


MOST_RANKS, _MOST_COORDINATES = 64, 256
_WIDTH, _LABEL_WIDTH = "22em", "8em"
_SIZES, _NODES = (1, 2, 3, 4, 6, 8, 16), (1, 2, 4, 8, 16)


class MeshExplorer(WithWidget):
    """Knobs for the axes of a mesh, and its ranks as a grid. `sizes`: those on show."""

    def __init__(self, sizes: dict[str, int], gpus_per_node: int, rank: int) -> None:
        """Take the knobs' first positions, which the static form shows."""
        self._start = (sizes, gpus_per_node, rank)
        self._axes = {axis: _knob(axis, _SIZES, size) for axis, size in sizes.items()}
        self._node = _knob("GPUs per node", _NODES, gpus_per_node)
        self._rank = widgets.BoundedIntText(
            value=rank,
            min=0,
            max=math.prod(sizes.values()) - 1,
            description="rank",
            style={"description_width": _LABEL_WIDTH},
            layout={"width": _WIDTH},
        )
        self._said = widgets.HTML()
        knobs = [*self._axes.values(), self._node, self._rank]
        for knob in knobs:
            knob.observe(self._refresh, names="value")
        columns = [widgets.VBox(each) for each in (knobs[: len(sizes)], knobs[len(sizes) :])]
        row = widgets.HBox(columns, layout={"flex_flow": "row wrap"})
        self._widget = with_slider_names(widgets.VBox([row, self._said]))
        self._refresh()

    @property
    def sizes(self) -> dict[str, int]:
        """By axis, slowest first."""
        return {axis: knob.value for axis, knob in self._axes.items()}

    def _refresh(self, _: Any = None) -> None:
        num_ranks = math.prod(self.sizes.values())
        if num_ranks > MOST_RANKS:
            text = f"{num_ranks} ranks; up to {MOST_RANKS} are drawn. Make an axis shorter."
            self._said.value = box(f"<div>{text}</div>")
            return
        self._rank.max = num_ranks - 1  # which moves a rank that is no longer there
        self._said.value = mesh_html(self.sizes, self._node.value, self._rank.value)

    def __repr__(self) -> str:
        sizes, gpus_per_node, rank = self._start
        axes = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        groups = [group_text(*each, gpus_per_node) for each in groups_of(rank, sizes).items()]
        return "\n".join([f"mesh {axes}, {gpus_per_node} GPUs per node; rank {rank}", *groups])

    def _static_html(self) -> str:
        return mesh_html(*self._start)


def mesh_explorer(*, gpus_per_node: int = 8, rank: int = 0, **sizes: int) -> MeshExplorer:
    """Show the ranks of Mesh(world, **sizes) by node, as the last line of a cell. Point at one.

    sizes: by axis, slowest first, as for Mesh; up to 64 ranks. rank: chosen at first. TypeError,
    ValueError for an unknown axis, too many ranks, and an impossible rank or node.
    """
    checked = checked_sizes(sizes or {"dp": 2, "pp": 2, "tp": 2}, MOST_RANKS, _MOST_COORDINATES)
    node = arguments.whole("gpus_per_node", gpus_per_node, "1 to 16", most=16)
    last = math.prod(checked.values()) - 1
    chosen = arguments.whole("rank", rank, f"0 to {last}", least=0, most=last)
    return MeshExplorer(checked, node, chosen)


def _knob(label: str, stops: tuple[int, ...], start: int) -> Any:
    return choice(label, stops, start, str, width=_WIDTH, label_width=_LABEL_WIDTH)
