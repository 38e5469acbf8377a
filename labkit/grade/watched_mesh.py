"""A mesh for code under test: named axes over the ranks of a watched group, each a watched group.

    mesh = WatchedMesh(group, {"dp": 2, "tp": 2})        mesh.tp.all_reduce(x), mesh.world.rank

In a case in which something is altered, every sum that the rank passes on is, on every axis: a
check need not know which group is called first.
"""

from typing import Any
from weakref import WeakKeyDictionary

import torch

from labkit.comm import Group
from labkit.grade.tampering import change_one
from labkit.grade.watched_group import WatchedGroup
from labkit.mesh import Mesh

Sizes = tuple[tuple[str, int], ...]
# Making groups takes longer than what is done with them; ranks make the same ones in one order.
_MADE: WeakKeyDictionary[Group, dict[Sizes, Mesh]] = WeakKeyDictionary()


class AxisGroup(WatchedGroup):
    """One group of a mesh."""

    def __init__(self, whole: WatchedGroup, group: Group) -> None:
        """`whole`: the group of all ranks, as the case has set it up."""
        super().__init__(group, whole.gate, whole._allowed)
        self.begin_case(whole._delay_s)
        self._is_altered = whole._altered is not None

    def _perform(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """As a watched group's, with one number changed in what is added up."""
        op = options.get("op", args[1] if len(args) > 1 else "sum")
        if self._is_altered and op not in ("max", "min"):
            if args and isinstance(args[0], torch.Tensor):
                args = (change_one(args[0].clone()), *args[1:])
            elif isinstance(options.get("x"), torch.Tensor):
                options = {**options, "x": change_one(options["x"].clone())}
        return super()._perform(name, args, options)


class WatchedMesh:
    """`mesh.world`, and a group for each axis by its name."""

    def __init__(self, group: WatchedGroup, sizes: dict[str, int]) -> None:
        """Every rank makes the same meshes in the same order. sizes: as Mesh's."""
        meshes = _MADE.setdefault(group._group, {})
        key = tuple(sizes.items())
        with group.gate.opened():
            if key not in meshes:
                meshes[key] = Mesh(group._group, **sizes)
        self._sizes = dict(sizes)
        self.world = AxisGroup(group, group._group)
        self._groups = {axis: AxisGroup(group, getattr(meshes[key], axis)) for axis in sizes}

    def __getattr__(self, axis: str) -> AxisGroup:
        groups: dict[str, AxisGroup] = self.__dict__.get("_groups", {})
        if axis not in groups:
            raise AttributeError(f"this mesh has {', '.join(groups)} and world, and no {axis!r}")
        return groups[axis]

    def end_case(self) -> None:
        """Raise NeverWaited for an operation that nobody waited for, on any axis."""
        for group in (self.world, *self._groups.values()):
            group.end_case()
