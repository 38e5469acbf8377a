"""The coordinator: decide before each step who takes part, and after it whether it counts.

    replica 0        replica 1        replica 2          coordinator, in the driver
    ask(step 7)      ask(step 7)      ask(step 7)   -->
       <------------------------------------------       quorum 1: members 0 1 2, newest step 7
    all-reduce with each other        killed
    vote(no)         vote(no)         (closed)      -->
       <------------------------------------------       False: step 7 is void, nobody takes it
    ask(step 7)      ask(step 7)                    -->
       <------------------------------------------       quorum 2: members 0 1, newest step 7
    all-reduce in a new group         begins anew
    vote(yes)        vote(yes)        ask(step 0)   -->
       <------------------------------------------       True: step 7 is committed
    ask(step 8)      ask(step 8)                    -->
       <------------------------------------------       quorum 3: members 0 1 2, newest step 8:
                                                          0 sends its state to 2, then step 8 begins

- A quorum is formed when every living replica has asked. The first one waits for all replicas.
- Living: it has joined, and its heart (heartbeat.py) is neither frozen nor dead.
- A step is committed when every member of its quorum votes yes. A member that dies or freezes
  before its vote makes the step void for all. So all living members decide the same.
- A quorum has a new number when its members differ from those before, or a step was void. Then the
  members make a new process group, since no connection of a group can be mended.
- A frozen member that goes on later learns that its step is void. It is in the next quorum again.
- The newest state lives in the replicas only. When the last one that has it is dead, the job ends.

A single coordinator can fail, too: it keeps no state of the training, so a job starts anew from its
newest checkpoint. torchft has the same roles: its lighthouse forms quorums, and a manager in each
replica group asks for them.

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
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from labkit.elastic.heartbeat import Address, HeartMonitor

BEAT_S = 0.05
"""How often replicas' hearts beat."""
_LOOK_S = 0.05
"""How often a waiting thread looks for what no one notifies it of."""


class NoReplicaLeft(RuntimeError):
    """No living replica has the newest state. Begin anew from a checkpoint."""


@dataclass(frozen=True)
class Quorum:
    """Who takes part from a step on.

    `number`: of the process group. `members`: replicas, in the order of their ranks in the group.
    `steps`: how many steps each of them has committed. `step`: the newest of these.
    `at_s`: when it was formed, in seconds since the coordinator began.
    """

    number: int
    members: tuple[int, ...]
    steps: tuple[int, ...]
    at_s: float

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
    seconds: float


@dataclass
class _Round:
    """One step of a quorum, and its vote. starts: which start of each member takes part."""

    quorum: Quorum
    starts: dict[int, int]
    votes: dict[int, bool] = field(default_factory=dict)
    is_committed: bool | None = None


@dataclass
class _Question:
    """A replica waits for a quorum. step: so many steps it has committed."""

    step: int
    answer: _Round | None = None


class Coordinator:
    """Forms quorums and counts votes, in threads of the driver. `close()` ends it.

    `quorums`: one of each number, the first; `commits`, `healings`: all of them, in order.
    """

    def __init__(self, num_replicas: int, patience_s: float) -> None:
        """patience_s: silence of a replica after which the others go on without it."""
        self.began_s = time.monotonic()
        self.quorums: list[Quorum] = []
        self.commits: list[Commit] = []
        self.healings: list[Healing] = []
        self.key = secrets.token_bytes(32)
        self.monitor = HeartMonitor(num_replicas, BEAT_S, patience_s)
        self._changed = self.monitor.changed  # its lock guards everything here
        self._absent = set(range(num_replicas))  # has not joined yet, and may still do so
        self._starts: dict[int, int] = {}  # by replica that has joined: which start of it
        self._questions: dict[int, _Question] = {}  # by replica that waits for a quorum
        self._rounds: dict[int, _Round] = {}  # by replica: the newest that it was a member of
        self._newest: _Round | None = None
        self._num_committed = 0
        self._is_over = False
        self._listener = Listener(("127.0.0.1", 0), backlog=num_replicas, authkey=self.key)
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
            self._is_over = True
            self._changed.notify_all()
        with contextlib.suppress(OSError, EOFError):
            Client(self.address, authkey=self.key).close()  # wakes the thread that accepts
        self.monitor.close()

    def _accept(self) -> None:
        with self._listener:
            while not self._is_over:
                with contextlib.suppress(OSError, EOFError, AuthenticationError):
                    connection = self._listener.accept()
                    threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        """Answer one replica until its end: (method, *arguments) -> what the method returns."""
        methods: dict[str, Callable[..., Any]] = {
            "ask": self._ask,
            "vote": self._vote,
            "healed": self._healed,
        }
        with connection, contextlib.suppress(OSError, EOFError):
            replica, start = connection.recv()
            self._join(replica, start)
            while True:
                method, *arguments = connection.recv()
                with self._changed:
                    answer = methods[method](replica, *arguments)
                connection.send(answer)

    def _join(self, replica: int, start: int) -> None:
        with self._changed:
            while not self._is_living(replica) and not self._is_over:
                self._changed.wait(_LOOK_S)  # its first beat is on the way
            self._questions.pop(replica, None)  # of the start before, which is dead
            self._rounds.pop(replica, None)
            self._starts[replica] = start
            self._absent.discard(replica)
            self._changed.notify_all()

    def _is_living(self, replica: int) -> bool:
        return self.monitor.states()[replica] in ("alive", "slow")

    def _ask(self, replica: int, step: int) -> Quorum | None:
        """Wait for the next quorum of which this replica is a member. None: there will be none."""
        if replica in self._rounds:  # to ask without a vote is a no
            self._rounds[replica].votes.setdefault(replica, False)
        question = self._questions[replica] = _Question(step)
        self._changed.notify_all()
        while question.answer is None:
            if self._is_over or self._questions.get(replica) is not question:
                return None
            self._form()
            if question.answer is None:
                self._changed.wait(_LOOK_S)
        return question.answer.quorum

    def _form(self) -> None:
        """Form a quorum if every living replica has asked, and one of them has the newest state."""
        living = [replica for replica in sorted(self._starts) if self._is_living(replica)]
        if self._absent or not living or not self._questions.keys() >= set(living):
            return
        steps = tuple(self._questions[replica].step for replica in living)
        if max(steps) < self._num_committed:
            # One that is frozen may have the newest state, and go on.
            states = self.monitor.states()
            self._is_over = not any(states[replica] == "frozen" for replica in self._starts)
            return
        starts = {replica: self._starts[replica] for replica in living}
        number = len(self.quorums)
        last = self._newest
        is_same = last is not None and last.is_committed and last.starts == starts
        quorum = Quorum(number + (not is_same), tuple(living), steps, self._now_s())
        if not is_same:
            self.quorums.append(quorum)
        self._newest = _Round(quorum, starts)
        for replica in living:
            self._rounds[replica] = self._questions.pop(replica).answer = self._newest
        self._changed.notify_all()

    def _vote(self, replica: int, is_good: bool) -> bool:
        """Wait until the step is decided: True where it is committed."""
        voted = self._rounds[replica]
        voted.votes[replica] = is_good
        self._changed.notify_all()
        while voted.is_committed is None and not self._is_over:
            missing = voted.starts.keys() - voted.votes.keys()
            is_void = not all(voted.votes.values()) or not all(
                self._is_living(member) and self._starts[member] == voted.starts[member]
                for member in missing
            )
            if is_void:
                voted.is_committed = False
            elif missing:
                self._changed.wait(_LOOK_S)
            else:
                voted.is_committed = True
                self._num_committed = voted.quorum.step + 1
                self.commits.append(Commit(voted.quorum.step, voted.quorum.number, self._now_s()))
        self._changed.notify_all()
        return bool(voted.is_committed)

    def _healed(self, *what: Any) -> None:
        self.healings.append(Healing(*what))

    def _now_s(self) -> float:
        return time.monotonic() - self.began_s
