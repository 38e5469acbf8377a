"""A rank that waits for a slow link is slow: no deadlock, and the timeout reaches it."""

import time

import pytest
import torch

from labkit import Deadlock, Link, RankError, RunTimeout, Session, Topology, run
from labkit.launch.session import ranks

# A message of 4 bytes takes three quarters of a second.
TOPOLOGY = Topology(hosts=3, ranks_per_host=1, slow=Link(8, 0.25))
# There it takes more than an hour, longer than any timeout here.
NEVER = Topology(hosts=2, ranks_per_host=1, slow=Link(1e-3))


def along_a_line(world):
    """Rank 2 waits for rank 1, which waits for a slow message of a rank that is long gone."""
    x = torch.ones(1)
    if world.rank == 0:
        world.isend(x, 1).wait()
    if world.rank == 1:
        world.recv(x, 0)
        world.send(2 * x, 2)
    return world.recv(x, 1).item() if world.rank == 2 else None


def test_the_doctor_has_nothing_to_say_of_a_slow_link(capsys):
    assert run(along_a_line, 3, topology=TOPOLOGY, stall=0.3).values[2] == 2
    assert capsys.readouterr().out == ""


def test_a_deadlock_on_slow_links_is_found_while_others_wait_for_theirs():
    def crossed(world):
        x = torch.ones(1)
        if world.rank == 2:
            world.recv(x, 1)
            return
        if world.rank == 1:
            world.isend(x, 2)
        world.recv(x, 1 - world.rank)

    slow = Topology(hosts=3, ranks_per_host=1, slow=NEVER.slow)
    with pytest.raises(Deadlock, match="ranks 0 and 1 wait for each other"):
        run(crossed, 3, topology=slow, timeout=600)


def test_a_rank_that_dies_after_it_has_sent_ends_the_run_before_its_message_is_there():
    def dies(world):
        pending = world.isend(torch.ones(1), 1) if world.rank == 0 else None
        if pending is None:
            world.recv(torch.ones(1), 0)
        time.sleep(0.3)
        raise ZeroDivisionError

    with pytest.raises(RankError, match="rank 0 raised ZeroDivisionError"):
        run(dies, 2, topology=NEVER, timeout=600)


def one_message(world):
    if world.rank == 0:
        world.send(torch.ones(1), 1)
    else:
        world.recv(torch.ones(1), 0)


def test_the_timeout_ends_a_run_and_calls_the_data_under_way(timeout_when_still):
    with timeout_when_still(), pytest.raises(RunTimeout, match="its data is under way"):
        run(one_message, 2, topology=NEVER, timeout=600, stall=0.3)


def test_a_session_calls_back_ranks_from_a_throttled_wait(timeout_when_still, monkeypatch):
    monkeypatch.setattr(ranks, "_INTERRUPT_WAITS_S", (60,))
    with Session(2, topology=NEVER) as session:
        cell = "world.send(torch.ones(1), 1) if rank == 0 else world.recv(torch.ones(1), 0)"
        with (
            timeout_when_still(),
            pytest.raises(
                RunTimeout, match="The ranks are out of step: send #1 to rank 1 was cut short"
            ),
        ):
            session.execute(cell, timeout=600)
        assert session.execute("rank").values == [0, 1]
