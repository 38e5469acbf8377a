"""Named axes over the ranks of a group: coordinates, and the group along each axis.

    mesh = Mesh(world, dp=2, tp=4)        dp 0: ranks 0 1 2 3       mesh.tp: one of the two rows
    mesh.tp.all_reduce(x)                 dp 1: ranks 4 5 6 7       mesh.dp: one of four columns
    mesh.combined_group("dp", "tp")               all of them               what both axes span

The last axis varies fastest, so its neighbours have neighbouring numbers and, as launchers number
ranks, sit on one host. Put the axis with the most traffic last: tp.

An axis of size 1 has groups of one rank, so code for a mesh also works without that axis.
Paper: Megatron-LM, arXiv:2104.04473, section 2, and the launchers of every framework since.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from labkit import arguments

if TYPE_CHECKING:
    from labkit.comm import Group

AXES = ("dp", "pp", "cp", "ep", "tp")


class Mesh:
    """The ranks of `world` as a box with named axes, seen from one of them.

    `mesh.tp` is the Group of ranks that differ from this one in tp only, and `mesh.tp.rank` this
    rank's coordinate there. `sizes`: by axis, in order. `coordinates`: of this rank, by axis.
    """

    def __init__(self, world: Group | None, **sizes: int) -> None:
        """world: None for torch.distributed's default group. sizes: by axis, slowest first, e.g.
        dp=2, tp=4. Every rank makes the same mesh.

        Their product must be world.size, else ValueError names sizes that would do. ValueError for
        an axis that is not one of AXES. Wire: world.split for each axis, unless it is all of world.
        """
        from labkit.comm.group import chosen  # it takes torch with it

        self.world = world = chosen(world)
        self.sizes = {axis: _size(axis, size) for axis, size in sizes.items()}
        if math.prod(self.sizes.values()) != world.size:
            raise ValueError(_wrong_product(self.sizes, world.size))
        self.coordinates = coordinates_at(world.rank, self.sizes)
        self._groups = {axis: self._group(axis) for axis in self.sizes}
        self._joined: dict[tuple[str, ...], Group] = {
            (each,): g for each, g in self._groups.items()
        }

    def __getattr__(self, axis: str) -> Group:
        groups: dict[str, Group] = self.__dict__.get("_groups", {})
        if axis not in groups:
            raise AttributeError(
                f"this mesh has no axis {axis!r}, only {', '.join(groups) or 'none'}; make it with "
                f"{axis}=1 or more"
                if axis in AXES
                else f"a mesh has no {axis!r}"
            )
        return groups[axis]

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.sizes.items())
        return f"Mesh({sizes}) at {self.coordinates}"

    def combined_group(self, *axes: str) -> Group:
        """Return the Group of ranks that differ from this one in these axes only, such as "dp",
        "ep".

        For dp and ep, for example, they are the ranks with copies of all parameters but the
        experts'. Its ranks are in the order of their numbers. Every rank of the world calls it,
        with the same axes, and in the same order where several are joined (a Mismatch says where
        they are not); the same axes give the same group. ValueError for an axis that the mesh does
        not have, or has here twice. Wire: world.split the first time.
        """
        for axis in axes:
            if axis not in self.sizes or axes.count(axis) > 1:
                known = ", ".join(self.sizes) or "none"
                raise ValueError(f"axes={axes!r}: give some of {known}, each once")
        key = tuple(axis for axis in self.sizes if axis in axes)
        if key not in self._joined:
            self._joined[key] = self._group(*key)
        return self._joined[key]

    def rank_at(self, **coordinates: int) -> int:
        """Return the number in `world` of the rank there; axes left out are this rank's own."""
        where = self.coordinates | coordinates
        if where.keys() != self.sizes.keys():
            unknown = sorted(where.keys() - self.sizes.keys())
            raise ValueError(f"this mesh has no axis {unknown[0]!r}, only {', '.join(self.sizes)}")
        rank = 0
        for axis, size in self.sizes.items():
            at = arguments.whole(axis, where[axis], f"0 to {size - 1}", least=0, most=size - 1)
            rank = rank * size + at
        return rank

    def _group(self, *axes: str) -> Group:
        from labkit.comm import Group

        if math.prod(self.sizes[axis] for axis in axes) == self.world.size:
            return self.world
        # Another mesh, or other axes, may have groups as large. The label describes them, so that
        # ranks that make different ones notice.
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.sizes.items())
        with self.world.label(f"{' and '.join(axes) or 'no axis'} of a mesh of {sizes}"):
            group = self.world.split(self.rank_at(**dict.fromkeys(axes, 0)))
        assert isinstance(group, Group)
        return group


def coordinates_at(rank: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the coordinates of a rank in a mesh of these sizes, by axis. No ranks need to run.

    coordinates_at(5, {"dp": 2, "pp": 2, "tp": 2}) == {"dp": 1, "pp": 0, "tp": 1}
    """
    most = math.prod(sizes.values()) - 1
    arguments.whole("rank", rank, f"0 to {most}", least=0, most=most)
    found = {}
    for axis in reversed(list(sizes)):
        rank, found[axis] = divmod(rank, sizes[axis])
    return dict(reversed(found.items()))


def ranks_along(axis: str, rank: int, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the ranks of `mesh.<axis>` of this rank, which differ from it in that axis only.

    ranks_along("pp", 5, {"dp": 2, "pp": 2, "tp": 2}) == (5, 7)
    """
    axes = list(sizes)
    if axis not in axes:
        raise ValueError(f"axis={axis!r}: give one of {', '.join(axes)}")
    stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1 :])
    first = rank - coordinates_at(rank, sizes)[axis] * stride
    return tuple(range(first, first + sizes[axis] * stride, stride))


def _size(axis: str, size: int) -> int:
    if axis not in AXES:
        raise ValueError(f"{axis!r} is no axis; choose among {', '.join(AXES)}")
    return arguments.whole(axis, size, "give the number of ranks along this axis, 1 or more")


def _wrong_product(sizes: dict[str, int], num_ranks: int) -> str:
    product = math.prod(sizes.values())
    said = " * ".join(f"{axis}={size}" for axis, size in sizes.items()) or "no axis at all"
    text = f"{said} makes {product} ranks, but there are {num_ranks}"
    for axis, size in sizes.items():
        if num_ranks % (product // size) == 0:
            return f"{text}; try {axis}={num_ranks * size // product}"
    return f"{text}; give sizes whose product is {num_ranks}"
