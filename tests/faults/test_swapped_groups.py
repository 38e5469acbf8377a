"""Groups of the same ranks that change places on one rank, and groups made in another order."""

import re

import pytest
import torch
import torch.distributed as dist

from labkit import Deadlock, Mismatch, run


def in_flight(world):
    first, second = world.split(0), world.split(0)
    if world.rank == 1:
        first, second = second, first
    ones, twos = torch.ones(3), 2 * torch.ones(3)
    pendings = [
        first.all_reduce(ones, wait=False),  # <-
        second.all_reduce(twos, wait=False),  # <-
    ]
    return [pending.wait() for pending in pendings]


def past_the_groups(world):
    first, second = dist.new_group(), dist.new_group()
    if world.rank == 1:
        first, second = second, first
    ones, twos = torch.ones(3), 2 * torch.ones(3)
    works = [
        dist.all_reduce(ones, group=first, async_op=True),  # <-
        dist.all_reduce(twos, group=second, async_op=True),  # <-
    ]
    for work in works:
        work.wait()


def in_a_loop(world):
    groups = [world.split(0), world.split(0)]
    ones, twos = torch.ones(3), 2 * torch.ones(3)
    if world.rank == 1:
        groups.reverse()
    pendings = []
    for group, x in zip(groups, (ones, twos), strict=True):
        pendings.append(group.all_reduce(x, wait=False))  # <-
    return [pending.wait() for pending in pendings]


SAID = {
    in_flight: r"all_reduce #1 of group world.1.0 rank 0 calls first.all_reduce\(ones, .*"
    r"rank 1 second.all_reduce\(twos, .*; as all_reduce #1 of group world.2.0",
    past_the_groups: r"all_reduce #1 of torch.distributed/1 rank 0 .*group=first, .*"
    r"rank 1 .*group=second, .*; as all_reduce #1 of torch.distributed/2",
    in_a_loop: r"#1 of group world.1.0 rank 0 calls .* for ones .*rank 1 .* for twos .*"
    r"; as all_reduce #1 of group world.2.0",
}


@pytest.mark.parametrize("program", SAID, ids=lambda program: program.__name__)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_groups_that_have_changed_places_are_an_error(program, world_size):
    with pytest.raises(Mismatch) as caught:
        run(program, world_size, timeout=20)
    said = str(caught.value).splitlines()[0]
    assert "make the same calls on each other's groups" in said
    assert re.search(SAID[program], said), said
    assert "test_swapped_groups.py, line" in said


def enter_in_another_order(world):
    first, second = world.split(0), world.split(0)
    ones, twos = torch.ones(3), 2 * torch.ones(3)
    if world.rank == 1:
        b = second.all_reduce(twos, wait=False)
        a = first.all_reduce(ones, wait=False)
    else:
        a = first.all_reduce(ones, wait=False)
        b = second.all_reduce(twos, wait=False)
    return (a.wait() + b.wait()).sum()


def take_turns_on_two_groups(world):
    groups, mine, zeros = [world.split(0), world.split(0)], torch.ones(3), torch.zeros(3)
    for turn in range(2 * world.size):
        group = groups[turn % 2]
        if turn % world.size == world.rank:
            group.all_reduce(mine)
        else:
            group.all_reduce(zeros)


@pytest.mark.parametrize("program", [enter_in_another_order, take_turns_on_two_groups])
@pytest.mark.parametrize("world_size", [2, 3])
def test_another_order_of_groups_that_is_meant_is_right(program, world_size):
    run(program, world_size, timeout=20)


def made_in_another_order(world):
    if world.rank == 1:
        dist.new_group([1, 2])
        dist.new_group([0, 1])
    else:
        dist.new_group([0, 1])
        dist.new_group([1, 2])


def all_and_some(world):
    for ranks in (None, [0, 1]) if world.rank == 1 else ([0, 1], None):
        dist.new_group(ranks)


@pytest.mark.parametrize("program", [made_in_another_order, all_and_some])
def test_process_groups_made_in_another_order_are_an_error_at_once(program):
    with pytest.raises(Mismatch, match="in new_group #1, .*makes a group of ranks") as e:
        run(program, 3, timeout=60)
    assert "test_swapped_groups.py, line" in str(e.value).splitlines()[0]


def test_a_process_group_that_one_rank_does_not_make_is_a_deadlock():
    def program(world):
        if world.rank != 1:
            dist.new_group([0, 1])

    with pytest.raises(Deadlock) as caught:
        run(program, 3, timeout=60, stall=1.0)
    said = str(caught.value).splitlines()[0]
    assert re.search("rank 0 waits in new_group #1 .*; rank 1 returned", said), said


def test_process_groups_that_only_their_members_make_are_no_matter_of_order():
    def program(world):
        dist.new_group([2] if world.rank == 2 else [0, 1], use_local_synchronization=True)

    run(program, 3, timeout=20)
