"""What a rank blocks in that no Group knows of, told from what it has only begun.

A rank that has begun a collective of torch's and sleeps, or waits for a child or for another group,
waits for something else than it looks. None of the programs that are right here may be ended.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.rpc as rpc
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from labkit import Deadlock, run

STALL_S = 0.5
LATE_S = 3.0  # several times what the doctor needs for a verdict


def _computes(seconds):
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        torch.ones(100).sum()


def comes_late_to_a_new_group(world):
    if world.rank == world.size - 1:
        _computes(LATE_S)
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)


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
            if world.rank == 1:
                world.recv(message, 0)
            dist.all_reduce(x)
        assert x.item() == world.size

    return program


def sleeps(world):
    wait_s = LATE_S
    time.sleep(wait_s)


def waits_for_a_child(world):
    subprocess.run(["sleep", str(LATE_S)], check=True)


def waits_for_an_event(world):
    event = threading.Event()
    threading.Timer(LATE_S, event.set).start()
    event.wait()


def waits_with_a_timeout_of_its_own(world):
    store = dist.PrefixStore("of its own", dist.distributed_c10d._get_default_store())
    with contextlib.suppress(RuntimeError):
        store.wait(["nobody sets it"], timedelta(seconds=LATE_S))


def sleeps_with_a_functional_collective_under_way(world):
    x, message = torch.ones(1), torch.ones(1)
    if world.rank == 1:
        world.recv(message, 0)
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    if world.rank == 0:
        time.sleep(LATE_S)
        world.send(message, 1)
    assert (total + 0).item() == world.size


def waits_for_another_group(world):
    """Rank 2 is late to a collective with rank 0, which has begun one with rank 1."""
    with_1, with_2 = dist.new_group([0, 1]), dist.new_group([0, 2])
    x, message = torch.ones(1), torch.ones(1)
    if world.rank == 0:
        work = dist.all_reduce(x, group=with_1, async_op=True)
        dist.all_reduce(torch.ones(1), group=with_2)
        world.send(message, 1)
        work.wait()
    elif world.rank == 1:
        world.recv(message, 0)
        dist.all_reduce(x, group=with_1)
    else:
        _computes(LATE_S)
        dist.all_reduce(torch.ones(1), group=with_2)


def tries_a_backend_that_is_not_there(world):
    if world.rank == 0:
        with contextlib.suppress(AssertionError, ValueError, RuntimeError):
            dist.new_group(backend="nonsense")
        _computes(LATE_S)
        world.send(torch.ones(1), 1)
    elif world.rank == 1:
        world.recv(torch.ones(1), 0)


def gives_up_by_a_timeout_of_its_own(world):
    group = dist.new_group(timeout=timedelta(seconds=LATE_S))
    message = torch.ones(1)
    if world.rank == 0:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1), group=group)
        world.send(message, 1)
    elif world.rank == 1:
        world.recv(message, 0)


def gives_up_on_a_thread(world):
    """A thread waits in a group with a timeout; after it, it brings what others wait for."""
    group, x = dist.new_group(timeout=timedelta(seconds=LATE_S)), torch.zeros(1)
    if world.rank == 0:
        dist.recv(x, 1)
        dist.send(x, 1)
    elif world.rank == 1:

        def attempt(is_async):
            with contextlib.suppress(RuntimeError):
                work = dist.all_reduce(torch.ones(1), group=group, async_op=is_async)
                work.wait()
            dist.send(x, 0)

        thread = threading.Thread(target=attempt, args=(world.size == 2,))
        thread.start()
        dist.recv(x, 0)
        thread.join()


def gives_up_in_a_world_of_its_own(world, folder):
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/store", world.size)
    dist.init_process_group(
        "gloo",
        store=store,
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=LATE_S),
    )
    if world.rank == 0:
        with pytest.raises(RuntimeError):
            dist.all_reduce(torch.ones(1))


def test_a_world_of_the_programs_own_has_the_timeout_that_it_chose(tmp_path):
    run(gives_up_in_a_world_of_its_own, 2, [str(tmp_path)], timeout=60, stall=STALL_S)


def is_woken_by_a_signal(world):
    """Its main thread waits for an event, a thread for the other rank: until a signal comes."""
    woken, x = threading.Event(), torch.zeros(1)
    if world.rank == 1:
        thread = threading.Thread(target=dist.recv, args=(torch.zeros(1), 0))
        thread.start()
        signal.signal(signal.SIGALRM, lambda number, frame: woken.set())
        signal.setitimer(signal.ITIMER_REAL, LATE_S)
        woken.wait()
        dist.send(x, 0)
        thread.join()
    elif world.rank == 0:
        dist.recv(x, 1)
        dist.send(x, 1)


def is_stopped_while_a_thread_sleeps(world):
    """As by a debugger. What threads a stopped rank has, nobody knows."""
    x = torch.ones(1)
    if world.rank == 0:
        threading.Timer(LATE_S, world.send, (x, 1)).start()
        whole = f"sleep 0.3; kill -STOP {os.getpid()}; sleep 2; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", whole], start_new_session=True)
        world.recv(x, 1)
    elif world.rank == 1:
        world.recv(x, 0)
        world.send(x, 0)


def sends_in_a_callback(world):
    """Ranks 0 and 1 receive from each other, until a thread of gloo's runs rank 0's callback."""
    x, message = torch.ones(1), torch.zeros(1)
    if world.rank == 2:
        _computes(LATE_S)
    work = dist.all_reduce(x, async_op=True)
    if world.rank == 0:
        sent = work.get_future().then(lambda future: dist.send(x, 1))
        dist.recv(message, 1)
        sent.wait()
    elif world.rank == 1:
        dist.recv(message, 0)
        dist.send(message, 0)
    work.wait()


def serves_a_remote_call(world, folder):
    """Rank 1 stands in a barrier; what rank 0 waits for, a call from rank 2 makes it send."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/rpc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own use of its own functions
        rpc.init_rpc(
            f"rank_{world.rank}",
            rank=world.rank,
            world_size=world.size,
            rpc_backend_options=options,
        )
        group = dist.new_group()
        if world.rank == 0:
            dist.recv(torch.zeros(1), 1)
        elif world.rank == 2:
            _computes(LATE_S)
            rpc.rpc_sync("rank_1", dist.send, (torch.ones(1), 0))
        dist.barrier(group)
        rpc.shutdown()


def test_a_rank_that_serves_remote_calls_may_send_while_it_waits(tmp_path):
    run(serves_a_remote_call, 3, [str(tmp_path)], timeout=60, stall=STALL_S)


def holds_pythons_lock_and_handles_signals(world):
    """Slurm says by SIGUSR1 that a job is about to end; the doctor must not."""
    notices = []
    signal.signal(signal.SIGUSR1, lambda number, frame: notices.append(number))
    if world.rank == 0:
        ctypes.PyDLL(None).usleep(int(LATE_S * 1e6))
    dist.all_reduce(torch.ones(1))
    assert not notices


@pytest.mark.parametrize(
    ("program", "world_size"),
    [
        (sends_in_a_callback, 3),
        (holds_pythons_lock_and_handles_signals, 2),
        (comes_late_to_a_new_group, 2),
        (comes_late_to_a_new_group, 3),
        *((_begins_and(each), 2) for each in (sleeps, waits_for_a_child, waits_for_an_event)),
        (_begins_and(waits_with_a_timeout_of_its_own), 3),
        (sleeps_with_a_functional_collective_under_way, 2),
        (waits_for_another_group, 3),
        (tries_a_backend_that_is_not_there, 2),
        (gives_up_by_a_timeout_of_its_own, 2),
        (is_woken_by_a_signal, 2),
        (gives_up_on_a_thread, 2),
        (gives_up_on_a_thread, 3),
        (is_stopped_while_a_thread_sleeps, 2),
    ],
)
def test_a_program_that_is_right_comes_to_its_end(program, world_size):
    run(program, world_size, timeout=60, stall=STALL_S)


def receives_from_a_rank_that_has_returned(world):
    if world.rank != 0:
        dist.recv(torch.ones(1), 0)  # <-


def receives_from_each_other(world):
    dist.recv(torch.ones(1), (world.rank + 1) % world.size)  # <-


def sends_to_each_other(world):
    work = dist.isend(torch.ones(1), (world.rank + 1) % world.size)  # <-
    work.wait()


def receives_objects_that_nobody_sends(world):
    if world.rank != 0:
        dist.recv_object_list([None], 0)  # <-


def receives_where_the_others_reduce(world):
    if world.rank == 0:
        dist.recv(torch.ones(1), 1)  # <-
    else:
        dist.all_reduce(torch.ones(1))  # <-


def waits_for_what_it_has_begun(world):
    if world.rank != 0:
        dist.all_reduce(torch.ones(1), async_op=True).wait()  # <-


def joins_a_thread_that_waits(world):
    if world.rank != 0:
        thread = threading.Thread(target=waits_for_what_it_has_begun, args=(world,))
        thread.start()
        thread.join()


def makes_a_group_alone(world):
    if world.rank != 0:
        dist.new_group()  # <-


def goes_backward_without_rank_0(world):
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    loss = model(torch.ones(1, 3)).sum()
    if world.rank != 0:
        loss.backward()  # <-


def wraps_a_model_without_rank_0(world):
    if world.rank != 0:
        DistributedDataParallel(torch.nn.Linear(3, 3))  # <-


def goes_backward_beside_what_it_has_begun(world):
    """Rank 1 waits in DDP's all_reduce, not in the one that it has begun before."""
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    group = dist.new_group()
    loss = model(torch.ones(1, 3)).sum()
    if world.rank != 0:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        loss.backward()  # <-
        work.wait()


def reduces_by_the_process_group_itself(world):
    if world.rank != 0:
        dist.group.WORLD.allreduce([torch.ones(1)]).wait()  # <-


def reduces_functionally(world):
    if world.rank != 0:
        total = functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD)  # <-
        total.add_(1)


def ends_an_epoch_of_ddp_alone(world):
    """What DDP has issued before is no call, and no part of this one."""
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.ones(1, 3)).sum().backward()
    if world.rank != 0:
        dist.all_reduce(torch.ones(1))  # <-


def gathers_a_dtensor(world):
    mesh = init_device_mesh("cpu", (world.size,))
    whole = distribute_tensor(torch.ones(world.size, 4), mesh, [Shard(0)])
    if world.rank != 0:
        whole.full_tensor()  # <-


@pytest.mark.parametrize(
    "program",
    [
        reduces_by_the_process_group_itself,
        reduces_functionally,
        ends_an_epoch_of_ddp_alone,
        gathers_a_dtensor,
        receives_from_a_rank_that_has_returned,
        receives_from_each_other,
        sends_to_each_other,
        receives_objects_that_nobody_sends,
        receives_where_the_others_reduce,
        waits_for_what_it_has_begun,
        joins_a_thread_that_waits,
        makes_a_group_alone,
        goes_backward_without_rank_0,
        wraps_a_model_without_rank_0,
        goes_backward_beside_what_it_has_begun,
    ],
    ids=lambda program: program.__name__,
)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_hang_past_the_groups_is_found_with_its_line(program, world_size):
    with pytest.raises(Deadlock) as caught:
        run(program, world_size, timeout=60, stall=STALL_S)
    said = str(caught.value).splitlines()[0]
    with open(__file__) as file:
        marked = [n for n, line in enumerate(file, start=1) if line.rstrip().endswith("# <-")]
    lines = [f"test_waits_past_the_groups.py, line {n})" for n in marked]
    assert any(line in said for line in lines), said
