"""Healthy programs with random delays: whatever the ranks' pace, the doctor finds no fault."""

import random
import threading
import time

import pytest
import torch

from labkit.launch import launch

NUM_RUNS = 200
STALL_S = 0.3  # asks the doctor far more often than the default of 5 s


def reduce_sum(world, step):
    world.all_reduce(torch.ones(5))


def branches_for_a_broadcast(world, step):
    root = step % world.size
    if world.rank == root:
        world.broadcast(torch.arange(4.0), root=root)
    else:
        world.broadcast(torch.empty(4), root)


def contributes_or_not(world, step):
    if world.rank == 0:
        world.all_reduce(torch.ones(3))
    else:
        world.all_reduce(torch.zeros(3))


def ring(world, step):
    if world.size > 1:
        pending = world.isend(torch.ones(step + 1), (world.rank + 1) % world.size)
        world.recv(torch.empty(step + 1), (world.rank - 1) % world.size)
        pending.wait()


def in_flight(world, step):
    pendings = [world.all_reduce(torch.ones(n + 1), wait=False) for n in range(4)]
    for pending in reversed(pendings):
        pending.wait()


def uneven_rows(world, step):
    ranks = range(world.size)
    rows = torch.ones(sum((world.rank + peer) % 3 for peer in ranks), 2)
    splits = [(world.rank + peer) % 3 for peer in ranks]
    world.all_to_all(rows, splits, splits)


def in_groups(world, step):
    half = world.split(world.rank % 2)
    half.all_gather(torch.ones(2))
    odd = world.split(0 if world.rank % 2 else None)
    if odd:
        odd.barrier()


def gathers(world, step):
    world.gather(torch.ones(2), root=0)
    world.scatter(torch.ones(2 * world.size) if world.rank == 0 else None, torch.empty(2))


def past_the_group(world, step):
    torch.distributed.all_reduce(torch.ones(3))


def from_a_thread(world, step):
    """The main thread waits for what another thread sends later."""
    if world.rank == 0 and world.size > 1:
        threading.Timer(0.05, world.send, (torch.ones(1), 1)).start()
        world.recv(torch.empty(1), src=1)
    elif world.rank == 1:
        world.recv(torch.empty(1), src=0)
        world.send(torch.ones(1), dst=0)


STEPS = [
    reduce_sum,
    branches_for_a_broadcast,
    contributes_or_not,
    ring,
    in_flight,
    uneven_rows,
    in_groups,
    gathers,
    past_the_group,
    from_a_thread,
]


def program(world, seed):
    """The same random steps on every rank; delays of each rank's own, one of them long."""
    steps, own = random.Random(seed), random.Random(f"{seed}/{world.rank}")
    late = steps.randrange(world.size), steps.randrange(4)
    for step in range(4):
        time.sleep(own.uniform(0, 0.01))
        if seed % 5 == 0 and (world.rank, step) == late:
            time.sleep(2 * STALL_S)
        steps.choice(STEPS)(world, step)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_healthy_runs_get_no_verdict(world_size):
    for seed in range(NUM_RUNS // 4):
        launch(program, world_size, [(seed,)], stall=STALL_S, timeout=60, device="cpu")
