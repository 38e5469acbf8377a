"""Heartbeats: find out which rank is slow, frozen or dead, without asking it.

    rank       HeartbeatSender: a thread of its own  --- (rank, step) every interval_s, TCP --->
    monitor    HeartbeatMonitor: one thread reads all connections, then judges each rank

    alive     beats come, and the step changes
    slow      beats come, and the step has not changed for slow_s: it waits, or computes for long
    frozen    no beat for timeout_s, and the connection is open: SIGSTOP, the GIL held, no network
    dead      the kernel closed the connection, as it does when a process ends; or no beat for
              give_up_s: the host is gone, and nobody closes anything

A process that ends is detected in milliseconds, because its kernel says so. (A forked child that
lives on, such as a DataLoader's worker, keeps the connection open.) Silence proves nothing:
a host without power and a rank that holds the GIL for long look the same. So a timeout is a choice
between two mistakes: a short one calls ranks frozen that go on a moment later, a long one finds a
silent host late. `false_alarms` counts the first kind. Phi accrual (Hayashibara et al., SRDS 2004)
replaces the timeout by how unusual a silence is among the rank's own earlier gaps.

Wire: 12 bytes per beat, the rank and its step as big-endian integers of 4 and 8 bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import selectors
import signal
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import torch

from labkit.comm import Group
from labkit.launch import launch

State = Literal["alive", "slow", "frozen", "dead"]
Address = tuple[str, int]
_BEAT = struct.Struct("!iq")


class HeartbeatSender:
    """Sends a rank's beats from a thread, the first one at once. `close()` or a process's end stops
    them.
    """

    def __init__(self, address: Address, rank: int, interval_s: float = 0.1) -> None:
        """address: the monitor's. OSError where nobody listens there."""
        self._connection = socket.create_connection(address)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rank, self._step = rank, 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(interval_s,), daemon=True)
        self._thread.start()

    def beat(self, step: int) -> None:
        """Report progress: the next beat carries this step."""
        self._step = step

    def close(self) -> None:
        """Stop, and close the connection. The monitor sees the same as when the process ends."""
        self._stopped.set()
        self._thread.join()
        self._connection.close()

    def _run(self, interval_s: float) -> None:
        with contextlib.suppress(OSError):  # the monitor is gone: nobody is left to hear it
            while True:
                self._connection.sendall(_BEAT.pack(self._rank, self._step))
                if self._stopped.wait(interval_s):
                    return


@dataclass(frozen=True)
class StateChange:
    """A rank's state changed. `at_s`: when the monitor saw it, on the clock of time.monotonic()."""

    rank: int
    state: State
    at_s: float


@dataclass
class _Pulse:
    """The monitor's knowledge of one rank. A rank that never came is silent since the beginning."""

    heard_s: float
    moved_s: float
    step: int = -1
    state: State = "alive"
    connection: socket.socket | None = None
    is_closed: bool = False
    gaps_s: list[float] = field(default_factory=list)


class HeartbeatMonitor:
    """Receives the beats of `num_ranks` ranks and judges them. Use it in a `with`, or close() it.

    `address`: what a HeartbeatSender connects to. `changes`: every change of a state so far, in
    order. `changed`: a condition that is notified at each of them; its lock guards all of this.
    """

    def __init__(
        self,
        num_ranks: int,
        interval_s: float = 0.1,
        timeout_s: float = 1.0,
        slow_s: float = math.inf,
        give_up_s: float = math.inf,
        host: str = "127.0.0.1",
    ) -> None:
        """interval_s: how often ranks beat, and how often the monitor looks without a beat.

        timeout_s, give_up_s: silence that makes a rank frozen, and dead.
        slow_s: time without another step that makes a rank slow.
        """
        self._interval_s = interval_s
        self._timeout_s, self._slow_s, self._give_up_s = timeout_s, slow_s, give_up_s
        now_s = time.monotonic()
        self._pulses = [_Pulse(now_s, now_s) for _ in range(num_ranks)]
        self.changes: list[StateChange] = []
        self.changed = threading.Condition()
        self._listener = socket.create_server((host, 0), backlog=num_ranks)
        self.address: Address = self._listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def states(self) -> list[State]:
        """The state of each rank, by rank."""
        with self.changed:
            return [pulse.state for pulse in self._pulses]

    def gaps_s(self, rank: int) -> list[float]:
        """Seconds between the beats of a rank, in order, as they arrived."""
        with self.changed:
            return list(self._pulses[rank].gaps_s)

    def close(self) -> None:
        """Stop hearing. Hearts that still beat end quietly."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            socket.create_connection(self.address).close()  # wakes the thread
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self) -> None:
        """Read everything that has arrived, then judge.

        In this order: where the monitor itself was late, the beats that prove a rank alive wait in
        its sockets.
        """
        while not self._is_closed:
            ready = self._selector.select(self._interval_s / 2)
            now_s = time.monotonic()
            with self.changed:
                for key, _ in ready:
                    if key.fileobj is self._listener:
                        connection, _ = self._listener.accept()
                        connection.setblocking(False)
                        self._selector.register(connection, selectors.EVENT_READ, bytearray())
                    else:
                        self._hear(key.fileobj, key.data, now_s)
                self._judge(now_s)
        for key in list(self._selector.get_map().values()):
            self._forget(key.fileobj)
        self._selector.close()

    def _hear(self, connection: Any, unread: bytearray, now_s: float) -> None:
        """Take in the beats of one connection, or its end."""
        try:
            received = connection.recv(65536)
        except OSError:
            received = b""  # it was reset
        if not received:
            self._forget(connection)
            for pulse in self._pulses:
                if pulse.connection is connection:  # else a restarted rank has a newer one
                    pulse.is_closed = True
            return
        unread += received
        num_whole = len(unread) // _BEAT.size * _BEAT.size
        for rank, step in _BEAT.iter_unpack(unread[:num_whole]):
            if 0 <= rank < len(self._pulses):
                self._take_beat(self._pulses[rank], connection, step, now_s)
        del unread[:num_whole]

    def _take_beat(self, pulse: _Pulse, connection: Any, step: int, now_s: float) -> None:
        if pulse.connection is connection:
            pulse.gaps_s.append(now_s - pulse.heard_s)
        else:
            pulse.connection, pulse.is_closed, pulse.step = connection, False, -1
        if step != pulse.step:
            pulse.step, pulse.moved_s = step, now_s
        pulse.heard_s = now_s

    def _judge(self, now_s: float) -> None:
        for rank, pulse in enumerate(self._pulses):
            silent_s = now_s - pulse.heard_s
            state: State = "alive"
            if pulse.is_closed or silent_s > self._give_up_s:
                state = "dead"
            elif silent_s > self._timeout_s:
                state = "frozen"
            elif now_s - pulse.moved_s > self._slow_s:
                state = "slow"
            if state != pulse.state:
                pulse.state = state
                self.changes.append(StateChange(rank, state, now_s))
                self.changed.notify_all()

    def _forget(self, connection: Any) -> None:
        self._selector.unregister(connection)
        connection.close()


SITUATIONS = ("idle", "computes", "holds the GIL for 0.5 s", "stopped for 0.3 s")


def false_alarms(timeouts_s: Sequence[float], interval_s: float = 0.02) -> dict[str, list[int]]:
    """Count how often each timeout calls a rank frozen that goes on, in two seconds of four ranks.

    By what the rank does (SITUATIONS), for each timeout: the silences that were longer. None of the
    ranks fails, so every one of them is a false alarm. On a busy machine idle ranks have some, too.
    """
    with HeartbeatMonitor(len(SITUATIONS), interval_s) as monitor:
        launch(_beat_in_a_situation, len(SITUATIONS), [(monitor.address, interval_s)], device="cpu")
        gaps_s = {what: monitor.gaps_s(rank) for rank, what in enumerate(SITUATIONS)}
    return {
        what: [sum(gap > timeout for gap in gaps) for timeout in timeouts_s]
        for what, gaps in gaps_s.items()
    }


def _beat_in_a_situation(world: Group, address: Address, interval_s: float) -> None:
    HeartbeatSender(address, world.rank, interval_s)
    pids = world.all_gather(torch.tensor([os.getpid()])).tolist()
    end_s = time.monotonic() + 2
    situation = SITUATIONS[world.rank]
    if situation == "computes":
        x = torch.rand(256, 256)
        while time.monotonic() < end_s:
            x = torch.softmax(x @ x, -1)
    elif situation == "holds the GIL for 0.5 s":
        time.sleep(0.5)
        ctypes.PyDLL(None).usleep(500_000)  # PyDLL keeps the GIL, as some C extensions do
    elif situation == "idle":  # it has the time to stop the one below
        time.sleep(1)
        os.kill(pids[SITUATIONS.index("stopped for 0.3 s")], signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(pids[SITUATIONS.index("stopped for 0.3 s")], signal.SIGCONT)
    time.sleep(max(0, end_s - time.monotonic()))
