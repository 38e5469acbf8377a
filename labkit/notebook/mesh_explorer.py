"""A mesh to point at: the ranks by node, and whom each one talks to along which axis.

mesh_explorer(dp=2, pp=2, tp=4)                      # 16 ranks on two nodes of 8
mesh_explorer(tp=4, dp=4, gpus_per_node=4)           # axes in the order of the arguments
"""

from __future__ import annotations

import math
from typing import Any

import ipywidgets as widgets

from labkit import arguments
from labkit.notebook.mesh_grid import mesh_html
from labkit.notebook.shown import box
from labkit.notebook.slider_names import with_slider_names
from labkit.viz.mesh_places import checked_sizes, group_text, groups_of

MOST_RANKS, _MOST_COORDINATES = 64, 256
_SIZES, _NODES = (1, 2, 3, 4, 6, 8, 16), (1, 2, 4, 8, 16)
_LOOK: dict[str, Any] = {"style": {"description_width": "8em"}, "layout": {"width": "22em"}}


class MeshExplorer:
    """Knobs for the axes of a mesh, and its ranks as a grid. `sizes`: what is shown."""

    def __init__(self, sizes: dict[str, int], gpus_per_node: int, rank: int) -> None:
        """Where the knobs stand at first, and what the static form shows."""
        self._start = (sizes, gpus_per_node, rank)
        self._axes = {axis: _knob(axis, _SIZES, size) for axis, size in sizes.items()}
        self._node = _knob("GPUs per node", _NODES, gpus_per_node)
        self._rank = widgets.BoundedIntText(
            value=rank, min=0, max=math.prod(sizes.values()) - 1, description="rank", **_LOOK
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
            told = f"{num_ranks} ranks; up to {MOST_RANKS} are drawn. Make an axis shorter."
            self._said.value = box(f"<div>{told}</div>")
            return
        self._rank.max = num_ranks - 1  # which moves a rank that is no longer there
        self._said.value = mesh_html(self.sizes, self._node.value, self._rank.value)

    def __repr__(self) -> str:
        sizes, gpus_per_node, rank = self._start
        axes = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        told = [group_text(*each, gpus_per_node) for each in groups_of(rank, sizes).items()]
        return "\n".join([f"mesh {axes}, {gpus_per_node} GPUs per node; rank {rank}", *told])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        return {**bundle, "text/plain": repr(self), "text/html": mesh_html(*self._start)}


def mesh_explorer(*, gpus_per_node: int = 8, rank: int = 0, **sizes: int) -> MeshExplorer:
    """The ranks of Mesh(world, **sizes) by node; point at one. The last line of a cell shows it.

    sizes: by axis, slowest first, as for Mesh; up to 64 ranks. rank: chosen at first. TypeError,
    ValueError: an axis that is none, too many ranks, a rank or a node that cannot be.
    """
    checked = checked_sizes(sizes or {"dp": 2, "pp": 2, "tp": 2}, MOST_RANKS, _MOST_COORDINATES)
    node = arguments.whole("gpus_per_node", gpus_per_node, "1 to 16", most=16)
    last = math.prod(checked.values()) - 1
    chosen = arguments.whole("rank", rank, f"0 to {last}", least=0, most=last)
    return MeshExplorer(checked, node, chosen)


def _knob(name: str, stops: tuple[int, ...], start: int) -> Any:
    options = sorted({*stops, start})
    return widgets.SelectionSlider(options=options, value=start, description=name, **_LOOK)
