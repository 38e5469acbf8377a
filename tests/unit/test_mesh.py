"""Named axes: coordinates, and groups along each, on real ranks."""

import pytest
import torch

from labkit import Mismatch, RankError, run
from labkit.mesh import Mesh
from tests.warm_ranks import runs_on_warm_ranks  # noqa: F401


def groups(world, sizes):
    mesh = Mesh(world, **sizes)
    return mesh.coordinates, {axis: getattr(mesh, axis).ranks for axis in sizes}, repr(mesh)


def test_the_last_axis_has_neighbours_and_the_first_the_largest_steps():
    found = run(groups, 8, ({"dp": 2, "pp": 2, "tp": 2},)).values
    coordinates, ranks, text = found[5]
    assert coordinates == {"dp": 1, "pp": 0, "tp": 1}
    assert ranks == {"dp": (1, 5), "pp": (5, 7), "tp": (4, 5)}
    assert text == "Mesh(dp=2, pp=2, tp=2) at {'dp': 1, 'pp': 0, 'tp': 1}"


def test_every_group_holds_the_ranks_that_differ_in_its_axis_only():
    sizes = {"tp": 3, "dp": 2}
    found = run(groups, 6, (sizes,)).values
    for coordinates, ranks, _ in found:
        for axis in sizes:
            same = [
                rank
                for rank, (others, _, _) in enumerate(found)
                if all(others[a] == coordinates[a] for a in sizes if a != axis)
            ]
            assert list(ranks[axis]) == same


def sums_along(world):
    mesh = Mesh(world, dp=2, tp=2)
    mine = torch.tensor([10.0**world.rank])
    return [mesh.tp.all_reduce(mine).item(), mesh.dp.all_reduce(mine).item(), mesh.tp.rank]


def test_ranks_talk_along_an_axis():
    assert run(sums_along, 4).values == [
        [11, 101, 0],
        [11, 1010, 1],
        [1100, 101, 0],
        [1100, 1010, 1],
    ]


def alone(world):
    mesh = Mesh(world, dp=world.size, tp=1)
    return mesh.tp.size, mesh.dp is world, mesh.rank_at(dp=1), mesh.rank_at()


def test_an_axis_of_one_is_a_group_of_one_and_an_axis_of_all_is_the_world():
    assert run(alone, 3).values == [(1, True, 1, 0), (1, True, 1, 1), (1, True, 1, 2)]


def made(world, sizes):
    Mesh(world, **sizes)


def of(_, what):
    Mesh(what, dp=2)


def asked(world, _):
    Mesh(world, dp=2).pp  # noqa: B018


def misspelled(world, _):
    Mesh(world, dp=2).size  # noqa: B018


def beyond(world, _):
    Mesh(world, dp=2).rank_at(dp=2)


def along_nothing(world, _):
    Mesh(world, dp=2).rank_at(tp=0)


@pytest.mark.parametrize(
    ("function", "sizes", "words"),
    [
        (made, {"dp": 2, "tp": 2}, r"dp=2 \* tp=2 makes 4 .* 2; try dp=1"),
        (made, {"dp": 3}, "dp=3 makes 3 .* 2; try dp=2"),
        (made, {"dp": 3, "tp": 5}, "15 ranks"),
        (made, {}, "no axis"),
        (made, {"tp": 0}, "tp=0"),
        (made, {"tensor": 2}, "'tensor' is no axis"),
        (of, 4, "group=4 is no Group"),
        (asked, {}, "no axis 'pp'.*pp=1"),
        (misspelled, {}, "'size'"),
        (beyond, {}, "dp=2"),
        (along_nothing, {}, "no axis 'tp'"),
    ],
)
def test_what_is_no_mesh_is_refused_with_a_reason(function, sizes, words):
    with pytest.raises(RankError, match=words):
        run(function, 2, (sizes,))


def joined(world):
    mesh = Mesh(world, dp=2, ep=2, tp=2)
    both = mesh.combined_group("dp", "ep")
    same = mesh.combined_group("ep", "dp") is both and mesh.combined_group("tp") is mesh.tp
    return (
        both.ranks,
        same,
        mesh.combined_group("dp", "ep", "tp") is world,
        mesh.combined_group().ranks,
    )


def test_joined_axes_have_the_ranks_that_differ_in_none_but_them():
    found = run(joined, 8).values
    for rank, (ranks, same, is_world, alone) in enumerate(found):
        assert ranks == tuple(range(rank % 2, 8, 2))
        assert same and is_world
        assert alone == (rank,)


def joined_wrongly(world, axes):
    Mesh(world, dp=world.size).joined(*axes)


@pytest.mark.parametrize("axes", [("tp",), ("dp", "dp"), (1,)])
def test_axes_that_are_not_there_cannot_be_joined(axes):
    with pytest.raises(RankError, match="dp"):
        run(joined_wrongly, 2, (axes,))


def joined_in_another_order(world):
    """Rank 0 would take its group along pp and tp for that along dp and pp: the sizes are equal."""
    mesh = Mesh(world, dp=2, pp=2, tp=2)
    pairs = [("dp", "pp"), ("pp", "tp")]
    if world.rank == 0:
        pairs.reverse()
    return [mesh.combined_group(*pair).all_reduce(torch.ones(1)).item() for pair in pairs]


def made_in_another_order(world):
    sizes = {"dp": 2, "tp": 2} if world.rank else {"tp": 2, "dp": 2}
    return Mesh(world, **sizes).tp.all_reduce(torch.ones(1)).item()


@pytest.mark.parametrize(
    ("program", "num_ranks"), [(joined_in_another_order, 8), (made_in_another_order, 4)]
)
def test_meshes_and_joined_axes_in_another_order_on_a_rank_are_an_error(program, num_ranks):
    with pytest.raises(Mismatch, match="dp=2"):
        run(program, num_ranks)
