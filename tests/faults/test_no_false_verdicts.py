"""Healthy programs with random delays: whatever the ranks' pace, the doctor finds no fault."""

import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from labkit.launch import launch

pytestmark = pytest.mark.alone

NUM_RUNS = 200
STALL_S = 0.3  # asks the doctor far more often than the default of 5 s


def reduce_sum(world, step, nap_s):
    world.all_reduce(torch.ones(5))


def branches_for_a_broadcast(world, step, nap_s):
    root = step % world.size
    if world.rank == root:
        world.broadcast(torch.arange(4.0), root=root)
    else:
        world.broadcast(torch.empty(4), root)


def contributes_or_not(world, step, nap_s):
    if world.rank == 0:
        world.all_reduce(torch.ones(3))
    else:
        world.all_reduce(torch.zeros(3))


def ring(world, step, nap_s):
    if world.size > 1:
        pending = world.isend(torch.ones(step + 1), (world.rank + 1) % world.size)
        world.recv(torch.empty(step + 1), (world.rank - 1) % world.size)
        pending.wait()


def in_flight(world, step, nap_s):
    pendings = [world.all_reduce(torch.ones(n + 1), wait=False) for n in range(4)]
    for pending in reversed(pendings):
        pending.wait()


def uneven_rows(world, step, nap_s):
    ranks = range(world.size)
    rows = torch.ones(sum((world.rank + peer) % 3 for peer in ranks), 2)
    splits = [(world.rank + peer) % 3 for peer in ranks]
    world.all_to_all(rows, splits, splits)


def in_groups(world, step, nap_s):
    half = world.split(world.rank % 2)
    half.all_gather(torch.ones(2))
    odd = world.split(0 if world.rank % 2 else None)
    if odd:
        odd.barrier()


def gathers(world, step, nap_s):
    world.gather(torch.ones(2), root=0)
    world.scatter(torch.ones(2 * world.size) if world.rank == 0 else None, torch.empty(2))


def in_turns(world, step, nap_s):
    for turn in range(2 * world.size):
        if turn % world.size == world.rank:
            world.all_reduce(torch.ones(2))
        else:
            world.all_reduce(torch.zeros(2))


def past_the_group(world, step, nap_s):
    torch.distributed.all_reduce(torch.ones(3))


def in_flight_past_the_group(world, step, nap_s):
    """Two process groups, entered in opposite order, and nothing waited for while ranks sleep."""
    groups = [torch.distributed.new_group(), torch.distributed.new_group()]
    if world.rank % 2:
        groups.reverse()
    works = [torch.distributed.all_reduce(torch.ones(2), group=g, async_op=True) for g in groups]
    time.sleep(nap_s)
    for work in works:
        work.wait()


def from_a_thread(world, step, nap_s):
    """Both main threads wait for each other, until another thread sends: later than the stall."""
    if world.rank < 2 <= world.size:
        other = 1 - world.rank
        sender = threading.Timer(nap_s, world.send, (torch.ones(1), other))
        sender.start()
        world.recv(torch.empty(1), src=other)
        sender.join()


STEPS = [
    reduce_sum,
    branches_for_a_broadcast,
    contributes_or_not,
    ring,
    in_flight,
    uneven_rows,
    in_groups,
    gathers,
    in_turns,
    past_the_group,
    in_flight_past_the_group,
    from_a_thread,
]


def program(world, seed):
    """The same random steps on every rank, each at its own pace; some pauses exceed the stall."""
    steps, own = random.Random(seed), random.Random(f"{seed}/{world.rank}")
    late = steps.randrange(world.size), steps.randrange(4)
    long_s = 2 * STALL_S if seed % 5 == 0 else 0.0
    for step in range(4):
        time.sleep(own.uniform(0, 0.01) + (long_s if (world.rank, step) == late else 0))
        steps.choice(STEPS)(world, step, long_s if step == 0 else 0.01)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_healthy_runs_get_no_verdict(world_size, capsys):
    def healthy(seed):
        launch(program, world_size, [(seed,)], stall=STALL_S, timeout=60, device="cpu")

    with ThreadPoolExecutor(2) as pool:  # two at a time: pauses of one are the other's
        list(pool.map(healthy, range(NUM_RUNS // 4)))
    assert_no_fault_was_told(capsys)


@pytest.mark.parametrize("step", [in_turns, in_flight_past_the_group, from_a_thread])
def test_what_only_looks_like_a_fault_gets_no_verdict(step, capsys):
    launch(step, 2, [(0, 3 * STALL_S)], stall=STALL_S, timeout=60, device="cpu")
    assert_no_fault_was_told(capsys)


def assert_no_fault_was_told(capsys):
    """That ranks wait in vain is said of none, but with what may still come."""
    for line in capsys.readouterr().out.splitlines():
        in_vain = re.search("for each other|in a circle|without (calling|sending|receiving)", line)
        assert in_vain is None or "unless another thread" in line, line
