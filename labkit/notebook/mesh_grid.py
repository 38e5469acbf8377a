"""A mesh as a grid of ranks: point at one, and the ranks that it talks to light up, by axis.

    node 0   [0] [1] [2] [3]         pointing at rank 5: 4 in tp's colour, 7 in pp's, 1 in dp's
    node 1   [4] [5] [6] [7]

No script: CSS alone, `:has(...:hover)`, so that it also works in a page that nbconvert made. Where
a browser does not know that, the tooltip of a rank still says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from labkit.notebook.shown import BORDER, FAINT, scrolled
from labkit.viz.mesh_places import Place, group_text, groups_of, places

COLOURS = {"dp": "#72b1d4", "pp": "#f2ca74", "cp": "#cc9ec0", "ep": "#d9d26a", "tp": "#74cbb2"}
# The theme's own, the other way round: a fixed black would vanish on a dark page.
_CHOSEN = "background: var(--jp-content-font-color0, #222); color: var(--jp-layout-color0, #fff);"
_CELL = (
    f"display: inline-block; margin: 2px; padding: 3px 0; border: 1px solid {BORDER}; "
    "text-align: center; font-size: 11px; line-height: 1.35; cursor: default;"
)


def mesh_html(sizes: Mapping[str, int], gpus_per_node: int, rank: int) -> str:
    """The grid, with `rank` chosen until the pointer is over another one; and its groups in words.

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
    """What lights up while the pointer is over `rank`; for the chosen one, also while it is not."""
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
    told = "\n".join([f"rank {place.rank}", *_told(place.rank, sizes, gpus_per_node)])
    width = f"width: {2.3 * len(sizes) + 0.4:.1f}em;"  # three letters for each axis
    return (
        f'<span class="rank r{place.rank}" style="{_CELL} {width}" title="{escape(told)}">'
        f"<b>{place.rank}</b><br>{escape(where)}</span>"
    )


def _words(rank: int, sizes: Mapping[str, int], gpus_per_node: int) -> str:
    """The chosen rank's groups, with the colours of the axes."""
    lines = [
        f'<div><span style="display: inline-block; width: 0.9em; height: 0.9em; background: '
        f'{COLOURS[axis]};"></span> {escape(text)}</div>'
        for axis, text in zip(sizes, _told(rank, sizes, gpus_per_node), strict=True)
    ]
    return f'<div style="margin-top: 4px;">rank {rank}{"".join(lines)}</div>'


def _told(rank: int, sizes: Mapping[str, int], gpus_per_node: int) -> list[str]:
    groups = groups_of(rank, sizes)
    return [group_text(axis, members, gpus_per_node) for axis, members in groups.items()]
