"""The monitor reports ranks that are slow, stopped, killed or silent.

When it says so is asserted on a clock that the test moves, and what real ranks do by order alone.
"""

import itertools
import os
import signal
import socket
import struct
import threading
import time
from types import SimpleNamespace

import pytest

from labkit.elastic import HeartbeatMonitor, HeartbeatSender, false_alarms, heartbeat
from labkit.launch import RankError, launch

INTERVAL_S, TIMEOUT_S, SLOW_S, GIVE_UP_S = 0.02, 0.4, 0.6, 0.8
PATIENCE_S = 60


def until(monitor, rank, state):
    """Wait until the rank has this state; since when, on the monitor's clock, if it changed."""
    with monitor.changed:
        is_so = monitor.changed.wait_for(lambda: monitor.states()[rank] == state, PATIENCE_S)
        assert is_so, f"rank {rank} is {monitor.states()[rank]}, not {state}: {monitor.changes}"
        return max((each.at_s for each in monitor.changes if each.rank == rank), default=None)


def beat_for_ever(world, address):
    heart = HeartbeatSender(address, world.rank, INTERVAL_S)
    for step in itertools.count():
        heart.beat(0 if world.rank == 1 else step)
        time.sleep(INTERVAL_S)


def test_ranks_that_are_slow_stopped_and_killed():
    pids, failures = [], []

    def run():
        try:
            launch(beat_for_ever, 3, [(monitor.address,)], echo=False, on_start=pids.extend)
        except RankError as error:
            failures.append(error.rank)

    with HeartbeatMonitor(3, INTERVAL_S, TIMEOUT_S, SLOW_S) as monitor:
        thread = threading.Thread(target=run)
        thread.start()
        until(monitor, 1, "slow")
        until(monitor, 2, "alive")
        os.kill(pids[2], signal.SIGSTOP)
        until(monitor, 2, "frozen")
        os.kill(pids[2], signal.SIGCONT)
        until(monitor, 2, "alive")
        os.kill(pids[2], signal.SIGKILL)
        until(monitor, 2, "dead")
        thread.join()
    assert failures == [2]


@pytest.fixture
def clock(monkeypatch):
    """A clock for the monitor. Only a test moves it."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


class Beats:
    """The connection of a rank whose beats a test sends, one by one."""

    def __init__(self, monitor, rank):
        self._monitor, self._rank = monitor, rank
        self._connection = socket.create_connection(monitor.address)

    def send(self, step):
        self._connection.sendall(struct.pack("!iq", self._rank, step))

    def beat(self, step):
        """Send two beats, and return when the monitor has judged all ranks after the second."""
        before = len(self._monitor.gaps_s(self._rank))
        self.send(step)
        self.send(step)
        deadline_s = time.monotonic() + PATIENCE_S
        # The first beat of a connection has none before it.
        while len(self._monitor.gaps_s(self._rank)) <= before:
            assert time.monotonic() < deadline_s, "the monitor hears no beat"
            time.sleep(0.001)

    def close(self):
        self._connection.close()


def test_a_silent_host_is_frozen_at_the_timeout_and_dead_when_it_is_given_up(clock):
    with HeartbeatMonitor(3, INTERVAL_S, TIMEOUT_S, give_up_s=GIVE_UP_S) as monitor:
        silent, other = Beats(monitor, 0), Beats(monitor, 2)
        clock.now_s = 10.0  # rank 1 never comes
        silent.beat(1)

        def states_at(now_s):
            clock.now_s = now_s
            other.beat(1)
            return monitor.states()

        assert states_at(10 + TIMEOUT_S - 0.001) == ["alive", "dead", "alive"]
        assert states_at(10 + TIMEOUT_S + 0.001) == ["frozen", "dead", "alive"]
        assert states_at(10 + GIVE_UP_S - 0.001) == ["frozen", "dead", "alive"]
        assert states_at(10 + GIVE_UP_S + 0.001) == ["dead", "dead", "alive"]
        silent.send(2)  # the network is back
        assert until(monitor, 0, "alive") == clock.now_s
        silent.close()
        assert until(monitor, 0, "dead") == clock.now_s
        of_silent = [(each.state, each.at_s) for each in monitor.changes if each.rank == 0]
        assert of_silent[-4:-2] == [
            ("frozen", 10 + TIMEOUT_S + 0.001),
            ("dead", 10 + GIVE_UP_S + 0.001),
        ]
        other.close()


def test_a_rank_is_slow_once_its_step_has_not_changed_for_long(clock):
    with HeartbeatMonitor(1, INTERVAL_S, TIMEOUT_S, SLOW_S) as monitor:
        rank, found = Beats(monitor, 0), []
        for now_s, step in [(0, 1), (0.3, 1), (SLOW_S, 1), (0.601, 1), (0.9, 2), (1.501, 2)]:
            clock.now_s = now_s
            rank.beat(step)
            found += monitor.states()
        assert found == ["alive", "alive", "alive", "slow", "alive", "slow"]
        rank.close()


def test_a_restarted_rank_has_a_new_connection(clock):
    with HeartbeatMonitor(1, INTERVAL_S, TIMEOUT_S) as monitor:
        first, second = Beats(monitor, 0), Beats(monitor, 0)
        first.beat(1)
        second.beat(1)
        first.close()
        second.beat(2)
        assert monitor.states() == ["alive"]
        second.close()
        until(monitor, 0, "dead")


GAPS_S = {  # as on an idle machine; notebook 22 measures them again
    "idle": [0.020, 0.021, 0.020, 0.024],
    "computes": [0.020, 0.035, 0.061, 0.020],
    "holds the GIL for 0.5 s": [0.020, 0.021, 0.513, 0.008],
    "stopped for 0.3 s": [0.021, 0.020, 0.304, 0.020],
}


def test_short_timeouts_raise_false_alarms(monkeypatch):
    """Which timeouts are too short is a matter of the gaps. How long these are, of the machine."""
    monkeypatch.setattr(heartbeat, "launch", lambda *_, **__: None)
    monkeypatch.setattr(HeartbeatMonitor, "gaps_s", lambda _, rank: list(GAPS_S.values())[rank])
    assert false_alarms([0.01, 0.15, 0.4, 1.0]) == {
        "idle": [4, 0, 0, 0],
        "computes": [4, 0, 0, 0],
        "holds the GIL for 0.5 s": [3, 1, 1, 0],
        "stopped for 0.3 s": [4, 1, 0, 0],
    }


def test_the_beats_of_real_ranks_in_each_situation_are_counted():
    found = false_alarms([0.0, PATIENCE_S])
    assert list(found) == list(GAPS_S)
    assert all(num_gaps > 0 and num_long == 0 for num_gaps, num_long in found.values())
