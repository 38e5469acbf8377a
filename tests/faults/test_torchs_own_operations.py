"""Find the operation that blocks a rank outside labkit's Group API, from torch's own record.

A rank that has started a collective of torch's and sleeps, or waits for a child or another group,
waits for something else than it looks: such a program is right, and must not be ended.
"""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from labkit import Deadlock, run

STALL_S = 0.5
LATE_S = 2.0  # several times what the doctor needs for a verdict


def sleeps(world):
    time.sleep(LATE_S)


def waits_for_an_event(world):
    event = threading.Event()
    threading.Timer(LATE_S, event.set).start()
    event.wait()


def _begins_and(meanwhile):
    """Rank 0 begins a collective, does something else, then sends what rank 1 waits for."""

    def program(world):
        x, message = torch.ones(1), torch.ones(1)
        if world.rank == 0:
            work = dist.all_reduce(x, async_op=True)
            meanwhile(world)
            world.send(message, 1)
            work.wait()
        else:
            world.recv(message, 0)
            dist.all_reduce(x)
        assert x.item() == world.size

    program.__name__ = meanwhile.__name__
    return program


def sleeps_with_a_functional_collective_under_way(world):
    total = functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD)
    if world.rank == 0:
        time.sleep(LATE_S)
        world.send(torch.ones(1), 1)
    else:
        world.recv(torch.zeros(1), 0)
    assert total.item() == world.size


def is_woken_by_a_signal(world):
    """Its main thread waits for an event, a thread for the other rank: until a signal comes."""
    woken, x = threading.Event(), torch.zeros(1)
    if world.rank == 1:
        thread = threading.Thread(target=dist.recv, args=(torch.zeros(1), 0))
        thread.start()
        signal.signal(signal.SIGALRM, lambda number, frame: woken.set())
        # Again and again: a signal may reach another thread, and then does not wake this one.
        signal.setitimer(signal.ITIMER_REAL, LATE_S, 0.1)
        woken.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        dist.send(x, 0)
        thread.join()
    else:
        dist.recv(x, 1)
        dist.send(x, 1)


def meets_a_group_in_one_process_group(world):
    """Rank 1's Group has no operation of torch's, and its part counts all the same."""
    if world.rank == 1:
        time.sleep(LATE_S)
    (dist if world.rank == 0 else world).all_reduce(torch.ones(1))


RIGHT = [
    (_begins_and(sleeps), 2),
    (_begins_and(waits_for_an_event), 2),
    (sleeps_with_a_functional_collective_under_way, 2),
    (is_woken_by_a_signal, 2),
    (meets_a_group_in_one_process_group, 3),
]


def test_programs_that_are_right_come_to_their_ends():
    with ThreadPoolExecutor() as pool:  # side by side: most of the time they wait
        for ended in [pool.submit(run, *each, timeout=600, stall=STALL_S) for each in RIGHT]:
            ended.result()


def reduces_alone(world):
    if world.rank != 0:
        dist.all_reduce(torch.ones(1))  # <-


def goes_backward_without_rank_0(world):
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    loss = model(torch.ones(1, 3)).sum()
    if world.rank != 0:
        loss.backward()  # <-


def goes_backward_beside_what_it_has_started(world):
    """Rank 1 waits in DDP's all_reduce, not in the one that it has started before."""
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    group = dist.new_group()
    loss = model(torch.ones(1, 3)).sum()
    if world.rank != 0:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        loss.backward()  # <-
        work.wait()


def reduces_functionally(world):
    if world.rank != 0:
        total = functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD)  # <-
        total.add_(1)


def gathers_a_dtensor(world):
    mesh = init_device_mesh("cpu", (world.size,))
    whole = distribute_tensor(torch.ones(world.size, 4), mesh, [Shard(0)])
    if world.rank != 0:
        whole.full_tensor()  # <-


@pytest.mark.parametrize(
    "program",
    [
        reduces_alone,
        goes_backward_without_rank_0,
        goes_backward_beside_what_it_has_started,
        reduces_functionally,
        gathers_a_dtensor,
    ],
    ids=lambda program: program.__name__,
)
def test_a_hang_is_found_with_its_line(program):
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(require_its_line, program), [2, 3]))


def require_its_line(program, world_size):
    with pytest.raises(Deadlock) as caught:
        run(program, world_size, timeout=600, stall=STALL_S)
    said = str(caught.value).splitlines()[0]
    with open(__file__) as file:
        marked = [n for n, line in enumerate(file, start=1) if line.rstrip().endswith("# <-")]
    lines = [f"test_torchs_own_operations.py, line {n})" for n in marked]
    assert any(line in said for line in lines), said
