"""What the next load gives when the power is cut after each operation of a save.

    rank 0       .  m  c w w s . . .  c w s d R d d r x x x
    rank 1       m  .  . . . . c w s
                 --------------------------------------------> operations
    all kept     -  -  - - - - - - -  - - - - 1 1 1 1 1 1 1     what the next load gives
    none kept    -  -  - - - - - - -  - - - - - 1 1 1 1 1 1

A letter is an operation: m make folder, c create, w write, s sync, d sync folder, R rename,
x remove. Each row below is a way in which what was not synced is kept or lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from matplotlib.patches import Patch, Rectangle

from labkit.checkpoint.power_cut import Operation
from labkit.viz import style
from labkit.viz.cells import blank_axes
from labkit.viz.picture import Picture

KINDS = {
    "make_folder": ("m", "make folder", "#c9ced3"),
    "create": ("c", "create", "#a9c6e3"),
    "write": ("w", "write", "#56b4e9"),
    "sync": ("s", "sync", "#009e73"),
    "sync_folder": ("d", "sync folder", "#84b49c"),
    "rename": ("R", "rename", "#e69f00"),
    "remove": ("x", "remove", "#e0705a"),
    "remove_folder": ("x", "remove", "#e0705a"),
}
_STATES = ("#ececec", "#bfe0f5", "#8fcf9f", "#f6c6e0", "#f0b13c")
MIXED = "mixed"
_WIDTH, _LEFT, _RIGHT, _HEADER, _ROW, _BOTTOM = 9.0, 1.25, 0.12, 0.78, 0.27, 0.12  # inches
MAX_OPERATIONS = 80


def power_cuts(
    operations: Sequence[Operation],
    found: Mapping[str, Sequence[int | str | None]],
    *,
    title: str = "a power cut after each operation, and what the next load gives",
) -> Picture:
    """Draw the operations of all ranks in the order of time, and the outcomes below.

    found: by the way in which things are lost, after each operation, what the next load gives: a
    step, None for no checkpoint, "mixed". Returns a Picture. ValueError for more than 80
    operations, and for another number of outcomes than of operations.
    """
    n = len(operations)
    if not 1 <= n <= MAX_OPERATIONS:
        raise ValueError(f"{n} operations: a picture that can be read has 1 to {MAX_OPERATIONS}")
    for way, each in found.items():
        if len(each) != n:
            raise ValueError(f"{way}: {len(each)} outcomes of {n} operations: give one after each")
    ranks = [_rank_of(each) for each in operations]
    rows = [f"rank {rank}" for rank in range(max(ranks) + 1)] + list(found)
    height = _HEADER + _ROW * (len(rows) + 0.5) + _BOTTOM
    states = dict.fromkeys(state for each in found.values() for state in each)
    words = ", ".join("no checkpoint" if state is None else str(state) for state in states)
    picture = Picture(_WIDTH, height, f"{title}: {n} operations; loads give {words}")
    axes = picture.add_axes((0, 0, 1, 1))
    blank_axes(axes, _WIDTH, height)
    axes.text(0.12, 0.2, title, **style.TITLE)
    width = (_WIDTH - _LEFT - _RIGHT) / n
    gap = 0.5 * _ROW
    for number, name in enumerate(rows):
        below = 0 if name.startswith("rank ") else gap
        axes.text(0.12, _HEADER + below + (number + 0.5) * _ROW, name, **style.SMALL)

    def cell(column: int, row: float, text: str, colour: str) -> None:
        x, y = _LEFT + column * width, _HEADER + row * _ROW
        axes.add_patch(Rectangle((x, y), 0.94 * width, 0.9 * _ROW, color=colour, linewidth=0))
        look = style.SMALL | {"ha": "center", "color": style.text_on(colour)}
        axes.text(x + 0.47 * width, y + 0.45 * _ROW, text, **look | {"fontsize": 7.5})

    for column, (operation, rank) in enumerate(zip(operations, ranks, strict=True)):
        letter, _, colour = KINDS[operation.kind]
        cell(column, rank, letter, colour)
    for number, outcomes in enumerate(found.values()):
        for column, state in enumerate(outcomes):
            text = "·" if state is None else "!" if state == MIXED else str(state)
            cell(column, max(ranks) + 1.5 + number, text, _colour_of(state))
    _draw_legend(picture, height, operations, MIXED in states)
    return picture


def _draw_legend(
    picture: Picture, height: float, operations: Sequence[Operation], has_mixed: bool
) -> None:
    """Below the title: the kinds of operations that occur, and the outcomes."""
    present = dict.fromkeys(KINDS[each.kind] for each in operations)
    handles = [Patch(color=colour, label=f"{a} {name}") for a, name, colour in present]
    handles.append(Patch(color=_STATES[0], label="· no checkpoint"))
    if has_mixed:
        handles.append(Patch(color=style.ALARM, label="! mixed"))
    picture.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.004, 1 - 0.36 / height),
        ncols=len(handles),
        frameon=False,
        fontsize=style.SMALL_POINTS - 0.5,
        handlelength=1.0,
        columnspacing=1.0,
        borderaxespad=0,
    )


def _rank_of(operation: Operation) -> int:
    """The rank whose file it is; what is of no rank's file is the leader's."""
    found = re.search(r"rank-(\d+)", operation.path.name)
    return int(found[1]) if found else 0


def _colour_of(state: int | str | None) -> str:
    if state is None:
        return _STATES[0]
    return style.ALARM if isinstance(state, str) else _STATES[1 + (state - 1) % 4]
