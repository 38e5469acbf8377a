"""Closing a group gives back what split took; all members do it together, and it is an end."""

import os
from types import SimpleNamespace

import pytest
import torch

from labkit import Mismatch, RankError, run
from labkit.collectives import ring_all_reduce
from labkit.comm.group import NotAMember
from labkit.comm.mismatch_detector import MismatchDetector, SameHostRanks, hashed

WORLD_SIZES = [1, 2, 3, 4]


def num_open():
    """Open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts with /proc")


def makes_many(world, num_groups):
    """Return what is open after two groups and after all, what one takes, sums of operations."""
    reported, sums = [], []
    for number in range(num_groups):
        before = num_open()
        with world.split(0) as group:
            sums.append(group.all_reduce(torch.ones(1)).item())
            taken = [now - then for now, then in zip(num_open(), before, strict=True)]
            sums.append(ring_all_reduce(torch.ones(3), group)[0].item())
            right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
            if group.size > 1:
                sending = group.isend(torch.ones(1), right)
                group.recv(torch.empty(1), left)
                sending.wait()
        if number in (1, num_groups - 1):
            reported.append(num_open())
    return reported, taken, sums


@needs_proc
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_of_closed_groups_nothing_stays_open(world_size):
    for (early, late), taken, sums in run(makes_many, world_size, (8,), timeout=600).values:
        assert late == early
        assert taken == [world_size + 4 - (world_size == 1), 3], "as split's docstring says"
        assert set(sums) == {world_size}


def keeps_what_compares(world):
    """How many groups' entries are compared at the end of the run: before, during and after."""
    detectors, counts = world._same_host.detectors, []
    counts.append(len(detectors))
    with world.split(0) as group:
        group.all_reduce(torch.ones(1))
        ring_all_reduce(torch.ones(3), group)
        counts.append(len(detectors))
    counts.append(len(detectors))
    return counts


def test_a_closed_group_has_left_the_comparison():
    assert run(keeps_what_compares, 2).values == [[1, 2, 1]] * 2


def used_when_closed(world):
    group, x, other = world.split(0), torch.ones(2), 1 - world.rank
    group.close()
    group.close()
    said = []
    for use in (
        lambda: group.all_reduce(x),
        lambda: group.all_reduce(x, wait=False),
        lambda: group.isend(x, other),
        lambda: group.recv(x, other),
        lambda: group.split(0),
        lambda: ring_all_reduce(x, group),
        group.barrier,
        group.__enter__,
    ):
        try:
            use()
        except RuntimeError as error:
            said.append(str(error))
    sub = world.split(0)
    return said, sub.all_reduce(x).tolist(), repr(group)


def test_every_call_on_a_closed_group_says_so():
    for said, total, shown in run(used_when_closed, 2).values:
        assert [text[:31] for text in said] == ["the group world.1.0 is closed, "] * 8
        assert total == [2, 2], "other groups go on"
        assert "world.1.0" in shown


def outlived(world):
    with world.split(0) as group:
        pair = group.split(0)
    return pair.all_reduce(torch.ones(1)).item()


def test_what_was_split_from_a_group_lives_on():
    assert run(outlived, 2).values == [2.0, 2.0]


def in_flight(world):
    group = world.split(0)
    pending = group.all_reduce(torch.ones(1), wait=False)
    with pytest.raises(RuntimeError, match=r"world.1.0 .*\(1\)"):
        group.close()
    total = pending.wait().item()
    again = group.all_reduce(torch.ones(1)).item()
    group.close()
    return total, again


def test_a_group_with_operations_in_flight_stays_as_it_is():
    assert run(in_flight, 2).values == [(2.0, 2.0)] * 2


def the_world(world):
    with pytest.raises(RuntimeError, match="world"):
        world.close()
    with pytest.raises(RuntimeError, match="world"), world:
        pass
    return world.all_reduce(torch.ones(1)).item()


def test_the_world_is_not_closed():
    assert run(the_world, 2).values == [2.0, 2.0]


def without_the_others(world):
    group = world.split(0)
    if world.rank == 0:
        group.close()
    else:
        group.all_reduce(torch.ones(1))


def test_an_operation_where_others_close_is_an_error_before_it_begins():
    with pytest.raises(Mismatch, match=r"rank 0 calls close.*rank 1 calls all_reduce"):
        run(without_the_others, 2)


def test_who_leaves_compares_what_was_not_there_before(tmp_path):
    same_host = SameHostRanks(frozenset({0, 1}), tmp_path)
    ours, theirs = (MismatchDetector(same_host, "world.1.0", (0, 1), member) for member in (0, 1))
    asked = []
    ours._evidence = SimpleNamespace(raise_if_collective_differs=lambda *what: asked.append(what))
    ours.declare(1, hashed("all_reduce"))
    ours.compare(1)
    theirs.declare(1, hashed("barrier"))
    ours.leave()
    assert asked == [(1, 1)]
    assert same_host.detectors == [theirs]


def leaves_by_an_error(world):
    with world.split(0) as group:
        group.all_reduce(torch.ones(1))
        if world.rank == 1:
            raise KeyError("loss")
        group.barrier()


def test_an_error_in_the_with_is_what_the_run_ends_with():
    with pytest.raises(RankError, match="KeyError: 'loss'") as caught:
        run(leaves_by_an_error, 2)
    assert caught.value.rank == 1


def some_are_in_no_group(world):
    with world.split(None if world.rank == 1 else 0) as group:
        total = group.all_reduce(torch.ones(1)).item() if group else None
    group.close()
    return total, isinstance(group, NotAMember)


def test_who_is_no_member_closes_nothing():
    assert run(some_are_in_no_group, 3).values == [(2.0, False), (None, True), (2.0, False)]


def test_a_close_is_in_the_timeline_and_moves_nothing():
    (operations, _) = (each.operations for each in run(outlived, 2).timeline)
    (close,) = (each for each in operations if each.kind == "close")
    assert close.done_s is not None
    assert close.sent_bytes == 0
    assert close.origin.function == "outlived"
