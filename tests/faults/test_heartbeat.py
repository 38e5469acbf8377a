"""Hearts of real ranks: what the monitor says of one that is slow, stopped, killed or silent."""

import os
import signal
import socket
import struct
import threading
import time

import pytest

from labkit.elastic import Heart, HeartMonitor, false_alarms
from labkit.launch import RankError, launch

INTERVAL_S, TIMEOUT_S, SLOW_S, GIVE_UP_S = 0.02, 0.4, 0.6, 0.8
pytestmark = [pytest.mark.alone, pytest.mark.clock]


def until(monitor, rank, state):
    """Wait until the rank has this state; since when, on the clock of time.monotonic()."""
    with monitor.changed:
        assert monitor.changed.wait_for(lambda: monitor.states()[rank] == state, 20), state
        return [change for change in monitor.changes if change.rank == rank][-1].at_s


def beat_for_long(world, address):
    heart = Heart(address, world.rank, INTERVAL_S)
    for step in range(1000):
        heart.beat(0 if world.rank == 1 else step)
        time.sleep(INTERVAL_S)


def test_slow_frozen_and_dead_ranks():
    pids, failures = [], []

    def run():
        try:
            launch(beat_for_long, 3, [(monitor.address,)], echo=False, on_start=pids.extend)
        except RankError as error:
            failures.append(error.rank)

    # A rank that has not come yet is silent: the fork server may take as long as it likes.
    with HeartMonitor(3, INTERVAL_S, TIMEOUT_S, SLOW_S) as monitor:
        thread = threading.Thread(target=run)
        thread.start()
        until(monitor, 1, "slow")
        assert monitor.states() == ["alive", "slow", "alive"]

        stopped_s = time.monotonic()
        os.kill(pids[2], signal.SIGSTOP)
        assert TIMEOUT_S - INTERVAL_S < until(monitor, 2, "frozen") - stopped_s < TIMEOUT_S + 0.3
        os.kill(pids[2], signal.SIGCONT)
        until(monitor, 2, "alive")

        killed_s = time.monotonic()
        os.kill(pids[2], signal.SIGKILL)
        assert until(monitor, 2, "dead") - killed_s < 0.1
        thread.join()
    assert failures == [2]


def beat(connection, rank, step):
    connection.sendall(struct.pack("!iq", rank, step))


def test_a_silent_host_is_dead_only_when_it_is_given_up():
    with HeartMonitor(2, INTERVAL_S, TIMEOUT_S, give_up_s=GIVE_UP_S) as monitor:
        with socket.create_connection(monitor.address) as silent:
            beat(silent, 0, 1)
            last_s = time.monotonic()
            assert TIMEOUT_S - 0.1 < until(monitor, 0, "frozen") - last_s < TIMEOUT_S + 0.2
            assert GIVE_UP_S - 0.1 < until(monitor, 0, "dead") - last_s < GIVE_UP_S + 0.2
            assert monitor.states()[1] == "dead"  # it never came
            beat(silent, 0, 2)  # the network is back
            until(monitor, 0, "alive")
        until(monitor, 0, "dead")


def test_a_restarted_rank_has_a_new_connection():
    with HeartMonitor(1, INTERVAL_S, TIMEOUT_S) as monitor:
        first = Heart(monitor.address, 0, 0.2)
        time.sleep(0.05)
        second = Heart(monitor.address, 0, INTERVAL_S)
        time.sleep(0.05)
        first.close()
        time.sleep(0.1)
        assert monitor.states() == ["alive"]
        second.close()
        until(monitor, 0, "dead")


def test_short_timeouts_raise_false_alarms():
    found = false_alarms([0.15, 0.4, 1.0])
    assert [found["stopped for 0.3 s"][0], found["holds the GIL for 0.5 s"][1]] == [1, 1]
    assert all(
        alarms[1] == 0 for what, alarms in found.items() if what != "holds the GIL for 0.5 s"
    )
    assert all(alarms[2] == 0 for alarms in found.values())
