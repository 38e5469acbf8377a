"""Process groups that a program makes with torch's own functions: those that it refuses."""

import time

import pytest
import torch
import torch.distributed as dist

from labkit import Deadlock, run

pytestmark = pytest.mark.filterwarnings("ignore:Device capability of")


def is_refused(backend):
    try:
        dist.new_group(backend=backend)
    except Exception:
        return True
    return False


def compute(seconds):
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        torch.ones(100).sum()


def computes_after_a_refusal(world):
    """While rank 0 computes, rank 1 waits for it: that ends well."""
    if world.rank == 0:
        assert is_refused("nonsense")
        compute(1.5)
        world.send(torch.ones(1), 1)
        return 1.0
    return world.recv(torch.empty(1), 0).item()


def all_are_refused(world):
    assert is_refused("ucc")
    if world.rank == 0:
        compute(1.5)
    x = torch.ones(1)
    dist.all_reduce(x, group=dist.new_group())
    return x.item()


@pytest.mark.parametrize("program", [computes_after_a_refusal, all_are_refused])
def test_a_rank_whose_group_torch_refused_is_not_waiting_for_it(program):
    assert len(set(run(program, 2, timeout=30, stall=0.5).values)) == 1


def one_is_refused(world, then):
    if world.rank == 0:
        assert is_refused("nonsense")
        if then == "sends":
            world.send(torch.ones(1), 1)
    else:
        dist.new_group()


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("returns", r"rank 1 waits in new_group #1 .*; rank 0 returned .* without calling it"),
        ("sends", r"rank 0 in send #1 to rank 1 .* and rank 1 in new_group #1 "),
    ],
)
def test_who_waits_for_a_group_that_another_rank_was_refused_waits_in_vain(then, said):
    with pytest.raises(Deadlock, match=said):
        run(one_is_refused, 2, [then], timeout=30, stall=0.5)
