"""Which axis of a mesh an operation belongs to, from a journal, when all ranks have ended.

A journal names the members of each operation's group. Those of mesh.tp differ in tp only, and so do
those of a part of it (ranks with copies of a key-value head). What is over all ranks is said apart:
the norm, which has a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from labkit.comm import Operation, Timeline
from labkit.global_norm import NORM
from labkit.mesh import ranks_along

OTHER = "other"


def axis_of(operation: Operation, rank: int, sizes: Mapping[str, int]) -> str:
    """An axis of the mesh; "norm"; or "other": over several axes, such as a comparison of states.

    rank: whose journal it is. sizes: of the mesh's axes, slowest first, as Mesh.sizes.
    """
    if operation.label == NORM:
        return "norm"
    members = set(operation.group)
    for axis in sizes:
        if members <= set(ranks_along(axis, rank, sizes)):
            return axis
    return OTHER


def sent_by_axis(
    operations: Iterable[Operation], rank: int, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Bytes that a rank sent, by axis; axes without any have 0."""
    found = dict.fromkeys([*sizes, "norm", OTHER], 0)
    for operation in operations:
        found[axis_of(operation, rank, sizes)] += operation.sent_bytes
    return found


def within(timeline: Timeline, region: str) -> list[Operation]:
    """The operations that a rank began within its first region of this name.

    ValueError where it has none that has ended.
    """
    for each in timeline.regions:
        if each.name == region and each.end_s is not None:
            end_s = each.end_s
            return [op for op in timeline.operations if each.start_s <= op.posted_s <= end_s]
    raise ValueError(
        f"no region {region!r} that has ended; name one: with world.region({region!r})"
    )
