"""Deadlocks of ranks that communicate on another thread: proven once all threads wait."""

import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from labkit import Deadlock, run
from labkit.data_parallel.background import CommunicationThread


def waits_for_the_communication_thread_first(world):
    background, x = CommunicationThread.for_group(world), torch.ones(3)
    if world.rank == 0:
        background.start(lambda group: group.all_reduce(x)).wait()  # <-
        world.all_reduce(x)
    else:
        world.all_reduce(x)  # <-
        background.start(lambda group: group.all_reduce(x)).wait()


def messages_of_communication_threads_in_a_cycle(world):
    background, x = CommunicationThread.for_group(world), torch.ones(3)
    background.start(lambda group: group.all_reduce(x)).wait()  # every rank has its thread
    peer = 1 - world.rank
    if world.rank < 2:
        background.start(lambda group: group.recv(torch.empty(3), peer)).wait()  # <-
        world.send(x, peer)


def joined_threads_in_a_cycle(world):
    """As a communication thread, by hand: the main thread waits for a thread that receives."""
    half, x = world.split(0), torch.ones(3)
    half.all_reduce(x)
    peer = 1 - world.rank
    if world.rank < 2:
        thread = threading.Thread(target=lambda: half.recv(torch.empty(3), peer))  # <-
        thread.start()
        thread.join()


PROGRAMS = [waits_for_the_communication_thread_first, messages_of_communication_threads_in_a_cycle]
if sys.version_info < (3, 13):
    PROGRAMS.append(joined_threads_in_a_cycle)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_deadlock_of_communication_threads_ends_as_any_other(program):
    with ThreadPoolExecutor() as pool:  # side by side: most of the time they wait
        list(pool.map(partial(require_a_deadlock, program), [2, 3]))


def require_a_deadlock(program, world_size):
    with pytest.raises(Deadlock) as caught:  # and no RunTimeout
        run(program, world_size, timeout=600, stall=2.0)
    said = str(caught.value).splitlines()[0]
    assert re.search("rank 0 in .* of group world.1.0 .*rank 1 in", said), said
    assert "test_communication_thread_deadlocks.py, line" in said


def test_a_thread_that_is_waited_for_only_so_long_holds_nobody():
    """Main threads give up on threads that receive from each other, and then bring it."""

    def program(world):
        half = world.split(0)
        peer = 1 - world.rank
        thread = threading.Thread(target=lambda: half.recv(torch.empty(3), peer))
        thread.start()
        thread.join(timeout=2)
        half.send(torch.ones(3), peer)
        thread.join()
        return "brought"

    assert run(program, 2, timeout=600, stall=0.5).values == ["brought"] * 2


def test_a_thread_that_may_still_bring_it_is_waited_for():
    """All these threads wait, until a third thread lets rank 0's main thread go on."""

    def program(world):
        background, x, may_go_on = (
            CommunicationThread.for_group(world),
            torch.ones(3),
            threading.Event(),
        )
        if world.rank == 0:
            waker = threading.Thread(target=lambda: (time.sleep(2), may_go_on.set()))
            waker.start()
            may_go_on.wait()
            waker.join()
        total = world.all_reduce(x)
        return background.start(lambda group: group.all_reduce(total)).wait().sum().item()

    assert run(program, 2, timeout=600, stall=0.5).values == [12.0, 12.0]
