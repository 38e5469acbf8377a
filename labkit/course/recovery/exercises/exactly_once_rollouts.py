"""Grade exactly_once_rollouts: jobs that are killed at each operation, and soon again."""

import json
import random
from collections import Counter
from contextlib import suppress
from itertools import accumulate
from typing import Any

from labkit.grade import grader as g

POWER, PROCESS = "the power is cut", "the process is killed"
ACTIONS = (3, -2, 2, -2, 1, -6, -1, 4, 1, -3, 2, -3)
"""Rollouts appended, or taken if negative."""
EMPTY, OTHER = "a rollout of no bytes", "bytes that nobody has appended"
UNSYNCED = "a power cut would take rollouts that {} has returned"


class Killed(BaseException):
    """The end of the process: not an error that the code under test would handle."""


class Disk:
    """Files and checkpoints that outlive the process, which is killed before some operations."""

    def __init__(self, kills: list[tuple[int, str]], rng: random.Random) -> None:
        self.kills, self.rng = dict(kills), rng
        self.states: dict[str, list[bytes]] = {}
        """By file: its synced content, then its content after each operation."""
        self.checkpoint = "[[], null]"
        self.num_operations = self.num_appends = 0
        self.is_dead = self.is_torn = False

    @property
    def is_durable(self) -> bool:
        """Return whether a power cut would lose nothing that was appended."""
        return all(len(states[-1]) <= len(states[0]) for states in self.states.values())

    def read(self, name: str) -> bytes:
        """Return all bytes of a file."""
        return self.states.setdefault(name, [b""])[-1]

    def append(self, name: str, data: bytes) -> None:
        """Write behind the end of a file; a kill may leave the first part."""
        file, size = self.read(name), self.rng.randint(0, len(data))
        if self.num_operations + 1 in self.kills:
            self.states[name].append(file + data[:size])
            self.is_torn |= size < len(data)
        self._begin()
        self.states[name].append(file + data)
        self.num_appends += 1

    def truncate(self, name: str, size: int) -> None:
        """Leave the first bytes of a file."""
        self._begin()
        self.states[name].append(self.read(name)[:size])
        self.is_torn = False

    def sync(self, name: str) -> None:
        """Make durable what was done to a file."""
        self._begin()
        self.states[name] = [self.read(name)]

    def save(self, checkpoint: Any) -> None:
        """A checkpoint is there, or it is not."""
        self._begin()
        self.checkpoint = json.dumps(checkpoint)

    def _begin(self) -> None:
        """Count an operation. The process may be killed before it."""
        self.num_operations += 1
        how = self.kills.pop(self.num_operations, "")
        if how == POWER:
            self.states = {name: [self._left(its)] for name, its in self.states.items()}
        self.is_dead |= bool(how)
        if self.is_dead:
            raise Killed

    def _left(self, states: list[bytes]) -> bytes:
        """Return a file after a power cut: the first operations, and a part of the next."""
        if len(states) == 1:
            return states[0]
        last = self.rng.randrange(len(states) - 1)
        old = states[last]
        added = states[last + 1][len(old) :]
        self.is_torn |= bool(added)
        end = self.rng.randint(0, len(added))
        if self.rng.random() < 0.6:
            return old + added[:end]
        begin = self.rng.choice((0, self.rng.randint(0, end)))  # the head can be zeros, too
        return old + added[:begin] + bytes(end - begin) + added[end:]


def cases(draw: g.Draw) -> list[g.Case]:
    """Not killed, and killed three times: at each operation, and some operations later."""
    rng, asked = draw.rng, [g.Case("not killed", [], 0)]
    for first in [*range(1, 25)] * 6:
        operations = accumulate((first, rng.randint(1, 8), rng.randint(1, 8)))
        kills = [*zip(operations, rng.choices((PROCESS, POWER), k=3))]
        label = ", then ".join(f"{how} at operation {at}" for at, how in kills)
        asked.append(g.Case(label, kills, rng.randrange(10**6)))
    return asked


class Job:
    """A training that appends and learns, on a disk that kills it."""

    def __init__(self, watch: Any, kills: list[tuple[int, str]], seed: int) -> None:
        self.watch, self.rng = watch, random.Random(seed)
        self.disk, self.actions = Disk(kills, self.rng), [*ACTIONS]
        self.rollouts: list[bytes] = []
        self.learned: list[int] = []
        """The numbers of the rollouts that the parameters have learned from."""
        self.sure: set[int] = set()
        """The numbers of the rollouts whose append has returned."""
        self.faults: list[str] = []

    def run(self) -> None:
        """From the newest checkpoint to the end, or to a kill."""
        self.disk.is_dead = False
        log = self.watch.function(self.disk)
        if self.disk.is_torn:
            self.watch.note("torn")
        self.learned, state = json.loads(self.disk.checkpoint)
        if state is not None:
            log.load_state_dict(state)
        while self.actions:
            action = self.actions.pop(0)
            self.append(log, action) if action > 0 else self.step(log, -action)
        for _ in range(4):  # whatever is left
            self.step(log, 4)

    def append(self, log: Any, count: int) -> None:
        """Make rollouts, and have them appended."""
        numbers = range(len(self.rollouts), len(self.rollouts) + count)
        self.rollouts += [bytes([i]) + self.rng.randbytes(self.rng.randint(0, 30)) for i in numbers]
        with self.watch.calling(f"append of {count} rollouts"):
            log.append(self.rollouts[-count:])
        if not self.disk.is_durable:
            self.faults.append(UNSYNCED.format("append"))
        self.sure.update(numbers)

    def step(self, log: Any, count: int) -> None:
        """Learn from the next rollouts, and save."""
        num_appends = self.disk.num_appends
        with self.watch.calling(f"take({count})"):
            taken = log.take(count)
        for each in map(bytes, taken):
            if each in self.rollouts:
                self.learned.append(self.rollouts.index(each))
            else:
                self.faults.append(f"take has returned {OTHER if each else EMPTY}")
        if not self.disk.is_durable:
            self.faults.append(UNSYNCED.format("take"))
        state = log.state_dict()
        if self.disk.num_appends > num_appends:
            self.watch.note("marks")
        self.disk.save((self.learned, state))


def call(watch: Any, args: tuple[Any, ...]) -> str:
    """Run the job, again after each kill, and after its end: what is wrong first, in words."""
    job = Job(watch, *args)
    for _ in range(len(args[0]) + 2):
        with suppress(Killed):
            job.run()
    for number, count in Counter(job.learned).items():
        if count > 1:
            job.faults.append(f"the parameters have learned from rollout {number} {count} times")
    for number in sorted(job.sure.difference(job.learned)):
        job.faults.append(f"the parameters have never learned from rollout {number}")
    if job.learned != sorted(job.learned):
        job.faults.append(f"the rollouts were taken in the order {job.learned}")
    return [*job.faults, ""][0]


def noted(s: g.Observed, what: str) -> bool:
    """Return whether there is a note of this kind."""
    return any(note.what == what for note in s.ranks[0].notes)


MARK = (
    "        self.disk.append('marker', bytes(len(rollouts)))\n        self.disk.sync('marker')\n"
)
MISTAKES = [
    g.Mistake(
        "keeps the marker outside of the checkpoint",
        "A job that is killed between marker and checkpoint leaves rollouts out, or takes some "
        "again that the saved parameters have learned from. The marker belongs into the "
        "checkpoint: state_dict returns it.",
        g.patch(
            *("taken, end = disk, 0, 0", "taken, end = disk, len(disk.read('marker')), 0"),
            *('self.taken = state["taken"]', "pass"),
            *("        return rollouts\n", f"{MARK}        return rollouts\n"),
        ),
        wrong=lambda s: noted(s, "marks"),
    ),
    g.Mistake(
        "has no checksum",
        "After a power cut a record can be shorter than its length says, or have zeros for bytes. "
        "Only a checksum of the bytes shows that they are those that were written.",
        g.patch("if zlib.crc32(rollout) != checksum:", "if False:"),
        wrong=lambda s: s.y.endswith(OTHER),
    ),
    g.Mistake(
        "takes zeros for a record of no bytes",
        "The checksum of no bytes is 0, so eight zeros look like a whole record. A rollout has 1 "
        "byte or more: refuse a length of 0.",
        g.patch("if length == 0 or len(rollout) < length:", "if len(rollout) < length:"),
        wrong=lambda s: s.y.endswith(EMPTY),
        hint=2,
    ),
    g.Mistake(
        "leaves a torn record in the log",
        "The next append writes behind it, and a reader stops at the torn record. Cut the "
        "log after the last whole record before anything is appended.",
        g.patch("if end < len(data):", "if False:"),
        wrong=lambda s: noted(s, "torn") and "never" in s.y,
        hint=2,
    ),
    g.Mistake(
        "does not sync before append returns",
        "The bytes are in the page cache: a power cut loses them, and the job believes them to be "
        "durable. Sync the file before append returns.",
        g.patch('        self.disk.sync("log")\n        self.rollouts', "        self.rollouts"),
        wrong=lambda s: s.y == UNSYNCED.format("append"),
        hint=2,
    ),
    g.Mistake(
        "takes records that a killed process has not synced",
        "A killed process leaves a whole record in the page cache. If it is used, a checkpoint "
        "counts it, and then the power is cut, the marker is beyond the end of the log. Sync when "
        "the log is opened.",
        g.patch('        disk.sync("log")  #', "        #"),
        wrong=lambda s: s.y == UNSYNCED.format("take"),
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=("RolloutLog",),
    cases=cases,
    right=lambda kills, seed: "",
    call=call,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    describe=lambda s: s.y,
    unexplained=(
        "a rollout is not used exactly once",
        "Each that is appended is used once. Ask of each operation what file and checkpoint say "
        "if the job is killed there.",
    ),
    shown="each rollout is learned from exactly once, with a kill or a power cut at every "
    "operation and another one soon after",
)
