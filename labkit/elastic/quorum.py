"""The coordinator: decide before each step who takes part, and after it whether it counts.

    replica 0        replica 1        replica 2          coordinator, in the driver
    ask(step 7)      ask(step 7)      ask(step 7)   -->
       <------------------------------------------       quorum 1: members 0 1 2, newest step 7
    all-reduce with each other        killed
    vote(no)         vote(no)         (closed)      -->
       <------------------------------------------       False: step 7 is void, nobody takes it
    ask(step 7)      ask(step 7)                    -->
       <------------------------------------------       quorum 2: members 0 1, newest step 7
    all-reduce in a new group         restarts
    vote(yes)        vote(yes)        ask(step 0)   -->
       <------------------------------------------       True: step 7 is committed
    ask(step 8)      ask(step 8)                    -->
       <------------------------------------------       quorum 3: members 0 1 2, newest step 8:
                                                          0 sends its state to 2, then step 8 begins

- A quorum is formed when every living replica has asked. The first one waits for all replicas.
- Living: it has asked before, and its heart (heartbeat.py) is neither frozen nor dead. So nobody
  waits for a replica that restarts until it asks. One that hangs while its heart beats holds
  all others, to the timeout of the job.
- A step is committed when every member of its quorum votes yes. A member that dies or freezes
  before its vote makes the step void for all. So all living members decide the same.
- A quorum has a new number when its members differ from those before, or a step was void. Then the
  members make a new process group, since no connection of a group can be mended.
- A frozen member that goes on later learns that its step is void. It is in the next quorum again.
- The newest state lives in the replicas only. When the last one that has it is dead, the job ends.

A single coordinator can fail, too. Here it ends with the driver, and so does the job. torchft has
the same roles: its lighthouse forms quorums, and a manager in each replica group asks for them.
Its vote is among the ranks of one replica group: a group whose all-reduce failed while others
committed is behind, and heals.

Wire: pickles over TCP with a secret key (multiprocessing.connection): one question and one answer
for each replica before a step, and again after it.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from typing import Any

from labkit.elastic.heartbeat import Address, HeartbeatMonitor

BEAT_S = 0.05
"""Seconds between the heartbeats of a replica."""
_LOOK_S = 0.05
"""How often a waiting thread looks for what no one notifies it of."""


class NoReplicaLeft(RuntimeError):
    """No living replica has the newest state. Restart from a checkpoint."""


@dataclass(frozen=True)
class Quorum:
    """The replicas that take part from a step on.

    `number`: of the process group. `members`: replicas, in the order of their ranks in the group.
    `steps`: how many steps each of them has committed. `step`: the newest of these.
    """

    number: int
    members: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def step(self) -> int:
        """The step that is to be done: so many are committed."""
        return max(self.steps)


@dataclass(frozen=True)
class Commit:
    """A step that counts: its number, the number of its quorum, and when the last vote came."""

    step: int
    quorum: int
    at_s: float


@dataclass(frozen=True)
class Healing:
    """A replica that was behind has received the state before `step` from the replica `source`."""

    replica: int
    source: int
    step: int
    num_bytes: int


@dataclass(eq=False)
class _Start:
    """A process of a replica, and what it wants. step: so many it has committed; None: no word."""

    replica: int
    step: int | None = None
    is_asking: bool = False
    round: _Round | None = None
    """The newest one that it was a member of."""


@dataclass
class _Round:
    """One step of a quorum, and its vote, by replica."""

    quorum: Quorum
    members: list[_Start]
    votes: dict[int, bool] = field(default_factory=dict)
    is_committed: bool | None = None


class Coordinator:
    """Forms quorums and counts votes, in threads of the driver. `close()` ends it.

    `quorums`: one of each number, the first; `commits`, `healings`: all of them, in order.
    `is_over`: no replica can go on any more.
    """

    def __init__(self, num_replicas: int, patience_s: float) -> None:
        """patience_s: silence of a replica after which the others go on without it."""
        self.began_s = time.monotonic()
        self.quorums: list[Quorum] = []
        self.commits: list[Commit] = []
        self.healings: list[Healing] = []
        self.key = secrets.token_bytes(32)
        self.monitor = HeartbeatMonitor(num_replicas, BEAT_S, patience_s)
        self._changed = self.monitor.changed  # its lock guards everything here
        self._absent = set(range(num_replicas))  # has not asked yet, and may still do so
        self._starts: dict[int, _Start] = {}  # the newest by replica; the others are dead
        self._newest: _Round | None = None
        self._num_committed = 0
        self.is_over = self._is_closed = False
        self._listener = Listener(("127.0.0.1", 0), backlog=num_replicas)
        self.address: Address = self._listener.address
        threading.Thread(target=self._accept, daemon=True).start()

    def give_up(self, replica: int) -> None:
        """The replica will not be started again: no quorum waits for it."""
        with self._changed:
            self._absent.discard(replica)
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads. Replicas that wait get NoReplicaLeft."""
        with self._changed:
            self.is_over = self._is_closed = True
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            Client(self.address).close()  # wakes the thread that accepts
        self.monitor.close()

    def _accept(self) -> None:
        with self._listener:
            while not self._is_closed:
                with contextlib.suppress(OSError):
                    connection = self._listener.accept()
                    threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        """Answer one start of a replica until its end: (method, *arguments) -> the result."""
        methods: dict[str, Callable[..., Any]] = {
            "ask": self._ask,
            "vote": self._vote,
            "healed": self._healed,
        }
        with connection, contextlib.suppress(OSError, EOFError, AuthenticationError):
            # Not in `accept`: a client that is silent would hold up all others.
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            start = _Start(connection.recv())
            with self._changed:
                self._starts[start.replica] = start
            while True:
                method, *arguments = connection.recv()
                with self._changed:
                    if self._starts[start.replica] is not start:
                        return  # the last words of a process that was killed
                    answer = methods[method](start, *arguments)
                connection.send(answer)

    def _is_living(self, start: _Start) -> bool:
        is_newest = self._starts[start.replica] is start
        return is_newest and self.monitor.states()[start.replica] in ("alive", "slow")

    def _ask(self, start: _Start, step: int) -> Quorum | None:
        """Wait for the next quorum with this replica. None: there will be none."""
        if start.round is not None:  # to ask without a vote is a no
            start.round.votes.setdefault(start.replica, False)
        start.step, start.is_asking = step, True
        self._absent.discard(start.replica)
        self._changed.notify_all()
        while start.is_asking:
            if self.is_over or self._starts[start.replica] is not start:
                return None
            self._form()
            if start.is_asking:
                self._changed.wait(_LOOK_S)
        assert start.round is not None
        return start.round.quorum

    def _form(self) -> None:
        """Form a quorum if every living replica has asked, and one of them has the newest state."""
        known = [start for _, start in sorted(self._starts.items()) if start.step is not None]
        living = [start for start in known if self._is_living(start)]
        if self._absent or not living or not all(start.is_asking for start in living):
            return
        steps = tuple(start.step for start in living if start.step is not None)
        if max(steps) < self._num_committed:
            # One that is frozen may have the newest state, and go on.
            states = self.monitor.states()
            self.is_over = not any(states[start.replica] == "frozen" for start in known)
            return
        last, number = self._newest, len(self.quorums)
        is_same = last is not None and last.is_committed and last.members == living
        members = tuple(start.replica for start in living)
        quorum = Quorum(number + (not is_same), members, steps)
        if not is_same:
            self.quorums.append(quorum)
        self._newest = _Round(quorum, living)
        for start in living:
            start.round, start.is_asking = self._newest, False
        self._changed.notify_all()

    def _vote(self, start: _Start, is_good: bool) -> bool:
        """Wait until the step is decided: True where it is committed."""
        voted = start.round
        assert voted is not None
        voted.votes[start.replica] = is_good
        self._changed.notify_all()
        while voted.is_committed is None and not self.is_over:
            missing = [member for member in voted.members if member.replica not in voted.votes]
            if not all(voted.votes.values()) or not all(map(self._is_living, missing)):
                voted.is_committed = False
            elif missing:
                self._changed.wait(_LOOK_S)
            else:
                voted.is_committed = True
                self._num_committed = voted.quorum.step + 1
                self.commits.append(Commit(voted.quorum.step, voted.quorum.number, self._now_s()))
        self._changed.notify_all()
        return bool(voted.is_committed)

    def _healed(self, start: _Start, *what: Any) -> None:
        self.healings.append(Healing(start.replica, *what))

    def _now_s(self) -> float:
        return time.monotonic() - self.began_s
