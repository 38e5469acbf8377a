"""Grade exactly_once_rollouts: jobs that are killed at each operation, and soon again."""

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from labkit.grade import grader as g

POWER, PROCESS = "the power is cut", "the process is killed"
ACTIONS = (3, -2, 2, -2, 1, -6, -1, 4, 1, -3, 2, -3)
"""Rollouts appended, or taken if negative."""
EMPTY, OTHER, PART = "a rollout of no bytes", "other bytes", "a part of rollout"
UNSYNCED = "a power cut would take rollouts that {} has returned"


class Killed(BaseException):
    """The end of the process: not an error that the code under test would handle."""


class Disk:
    """Files and checkpoints that outlive the process, which is killed at some operations."""

    def __init__(self, kills: Sequence[tuple[int, str]], rng: random.Random) -> None:
        self.kills, self.rng = dict(kills), rng
        self.states: dict[str, list[bytes]] = {}
        """Of each file: what is synced, and then what it was after each operation."""
        self.checkpoint = "[[], null]"
        self.whole = {b""}
        """What a file can be if no append is torn."""
        self.num_operations = 0
        self.is_dead = self.is_rewritten = False

    @property
    def is_durable(self) -> bool:
        """Whether a power cut would take nothing that was appended."""
        pairs = [pair for states in self.states.values() for pair in pairwise(states)]
        return all(len(new) <= len(old) for old, new in pairs)

    @property
    def files(self) -> dict[str, bytes]:
        """Their bytes by name."""
        return {name: states[-1] for name, states in self.states.items()}

    def read(self, name: str) -> bytes:
        """All bytes of a file."""
        return self.states.setdefault(name, [b""])[-1]

    def append(self, name: str, data: bytes) -> None:
        """Write behind the end of a file."""
        old, cut = self.read(name), self.rng.randint(0, len(data))
        self.whole |= {old, old + data}
        self._do(lambda part: self.states[name].append(old + (data[:cut] if part else data)))

    def truncate(self, name: str, size: int) -> None:
        """Leave the first bytes of a file."""
        file = self.read(name)
        self.is_rewritten |= size < max(len(each) for each in self.whole if file.startswith(each))
        self.whole.add(file[:size])
        self._do(lambda part: part or self.states[name].append(file[:size]))

    def sync(self, name: str) -> None:
        """Make durable what was done to a file."""
        self._do(lambda part: part or self.states.update({name: [self.read(name)]}))

    def save(self, checkpoint: Any) -> None:
        """A checkpoint is there, or it is not."""
        text = json.dumps(checkpoint)
        self._do(lambda part: part or setattr(self, "checkpoint", text))

    def _do(self, operation: Callable[[bool], object]) -> None:
        """Do it; where the process is to be killed, in the middle of it or behind it."""
        self.num_operations += 1
        how = self.kills.pop(self.num_operations, "")
        self.is_dead = self.is_dead or bool(how)
        if how or not self.is_dead:
            operation(bool(how) and self.rng.random() < 0.6)
        if how == POWER:
            self.states = {name: [self._left(its)] for name, its in self.states.items()}
        if self.is_dead:
            raise Killed

    def _left(self, states: list[bytes]) -> bytes:
        """What a power cut leaves of a file: the first operations, and a part of the next."""
        if len(states) == 1:
            return states[0]
        last = self.rng.randrange(len(states) - 1)
        old, new = states[last : last + 2]
        if not new.startswith(old):  # it was cut
            return old
        size = self.rng.randint(len(old), len(new))
        if self.rng.random() < 0.6:
            return new[:size]
        begin = self.rng.choice((len(old), size))  # the head of a record can be zeros, too
        end = self.rng.randint(size, len(new))
        return new[:begin] + bytes(end - begin) + new[end:]


def cases(draw: g.Draw) -> list[g.Case]:
    """Not killed, and killed three times: at each operation, and some operations later."""
    rng, asked = draw.rng, [g.Case("not killed", [], 0)]
    for first in range(1, 24):
        for hows in 2 * (
            (PROCESS, POWER, PROCESS),
            (POWER, POWER, PROCESS),
            (POWER, PROCESS, POWER),
        ):
            second = first + rng.randint(1, 8)
            kills = [*zip((first, second, second + rng.randint(1, 8)), hows)]
            label = ", then ".join(f"{how} at operation {at}" for at, how in kills)
            asked.append(g.Case(label, kills, rng.randrange(10**6)))
    return asked


class Job:
    """A training that appends and learns, on a disk that kills it."""

    def __init__(self, watch: Any, kills: Sequence[tuple[int, str]], seed: int) -> None:
        self.watch, self.rng = watch, random.Random(seed)
        self.disk = Disk(kills, self.rng)
        self.actions = [*ACTIONS]
        self.rollouts: list[bytes] = []
        self.sure: list[int] = []
        """The numbers of the rollouts whose append has returned."""
        self.unsynced: list[str] = []
        """The methods that returned what is not durable."""

    def run(self) -> list[int | str]:
        """From the newest checkpoint to the end, or to a kill: what the parameters learned."""
        disk = self.disk
        disk.is_dead = False
        log = self.watch.function(disk)
        self.watch.note("opened" if disk.whole.issuperset(disk.files.values()) else "torn")
        learned, state = json.loads(disk.checkpoint)
        if state is not None:
            log.load_state_dict(state)
        while self.actions:
            if (action := self.actions.pop(0)) < 0:
                self.step(log, -action, learned)
                continue
            numbers = range(len(self.rollouts), len(self.rollouts) + action)
            made = [bytes([i]) + self.rng.randbytes(self.rng.randint(0, 30)) for i in numbers]
            self.rollouts += made
            log.append(made)
            self.unsynced += [] if disk.is_durable else ["append"]
            self.sure += numbers
        while len(learned) < 3 * len(self.rollouts) and self.step(log, 4, learned):
            pass
        return learned

    def step(self, log: Any, count: int, learned: list[int | str]) -> list[int | str]:
        """Learn from the next rollouts, and save."""
        before = self.disk.files
        taken = [self.name(bytes(each)) for each in log.take(count)]
        self.unsynced += [] if self.disk.is_durable else ["take"]
        learned += taken
        state = log.state_dict()
        if self.disk.files != before:
            self.watch.note("marks")
        self.disk.save((learned, state))
        return taken

    def name(self, rollout: bytes) -> int | str:
        """The number of a rollout, or what it is instead."""
        if rollout in self.rollouts:
            return self.rollouts.index(rollout)
        whole = [number for number, each in enumerate(self.rollouts) if each.startswith(rollout)]
        return EMPTY if not rollout else f"{PART} {whole[0]}" if whole else OTHER


def call(watch: Any, args: tuple[Any, ...]) -> str:
    """Run the job, again after each kill: what is wrong first, in words."""
    job = Job(watch, *args)
    learned, num_ends = [], 0
    while num_ends < 2:  # the second time there is nothing left to do
        try:
            learned = job.run()
            num_ends += 1
        except Killed:
            watch.note("killed")
    if job.disk.is_rewritten:
        watch.note("rewrites")
    if job.unsynced:
        return UNSYNCED.format(min(job.unsynced))
    for each, count in Counter(learned).items():
        if isinstance(each, str):
            return f"the parameters have learned from {each}"
        if count > 1:
            return f"the parameters have learned from rollout {each} {count} times"
    if missing := sorted({*job.sure} - {*learned}):
        return f"the parameters have never learned from rollout {missing[0]}, which was appended"
    return "" if learned == sorted(learned) else f"the rollouts were taken in the order {learned}"


def noted(s: g.Observed, what: str) -> bool:
    """Whether there is a note of this kind."""
    return any(note.what == what for note in s.ranks[0].notes)


MARK = (
    "        self.disk.append('marker', bytes(len(rollouts)))\n        self.disk.sync('marker')\n"
)
LENGTH = "if length == 0 or len(rollout) < length:"
CHECK = "if zlib.crc32(rollout) != checksum:"
MISTAKES = [
    g.Mistake(
        "keeps the marker outside of the checkpoint",
        "A job that is killed between marker and checkpoint leaves rollouts out, or takes some "
        "again that the saved parameters have learned from. The marker belongs into the "
        "checkpoint: state_dict returns it.",
        [
            g.patch(
                *("taken, end = disk, 0, 0", "taken, end = disk, len(disk.read('marker')), 0"),
                *('self.taken = state["taken"]', "pass"),
                "        return rollouts\n",
                f"{MARK}        return rollouts\n",
            ),
            g.patch('self.taken = state["taken"]', "pass"),
        ],
        seen=lambda s: noted(s, "marks") or s.y.endswith("times"),
    ),
    g.Mistake(
        "has no checksum",
        "After a power cut a record can have its length and zeros for bytes. Only a checksum of "
        "the bytes shows that they are those that were written.",
        g.patch(CHECK, "if False:"),
        seen=lambda s: s.y.endswith(OTHER),
    ),
    g.Mistake(
        "takes a torn record for a whole one",
        "The last record may end before its length says. It was never durable, so it is cut off.",
        g.patch(LENGTH, "if length == 0:", CHECK, "if False:"),
        seen=lambda s: PART in s.y,
        hint=2,
    ),
    g.Mistake(
        "takes zeros for a record of no bytes",
        "The checksum of no bytes is 0, so eight zeros look like a whole record. A rollout has 1 "
        "byte or more: refuse a length of 0.",
        g.patch(LENGTH, "if len(rollout) < length:"),
        seen=lambda s: s.y.endswith(EMPTY),
        hint=2,
    ),
    g.Mistake(
        "leaves a torn record in the log",
        "The next append writes behind it, and a reader stops at the torn record. Cut the "
        "log after the last whole record before anything is appended.",
        g.patch("if end < len(data):", "if False:"),
        seen=lambda s: noted(s, "torn") and "never" in s.y,
        hint=2,
    ),
    g.Mistake(
        "writes the log anew when it opens it",
        "A job that is killed between the two operations has lost whole records. Leave what is "
        "whole where it is, and cut off the rest.",
        g.patch(
            'disk.truncate("log", end)',
            'disk.truncate("log", 0)\n            disk.append("log", data[:end])',
        ),
        seen=lambda s: noted(s, "rewrites") and not noted(s, "marks"),
        hint=2,
    ),
    g.Mistake(
        "does not sync before append returns",
        "What was written is in the page cache: a power cut takes it, and the job believes it to "
        "be durable. Sync the file before append returns.",
        g.patch('        self.disk.sync("log")\n        self.rollouts', "        self.rollouts"),
        seen=lambda s: s.y == UNSYNCED.format("append"),
        hint=2,
    ),
    g.Mistake(
        "takes records that a killed process has not synced",
        "A killed process leaves a whole record in the page cache. If it is used, a checkpoint "
        "counts it, and then the power is cut, the marker is beyond the end of the log. Sync when "
        "the log is opened.",
        g.patch('        disk.sync("log")  #', "        #"),
        seen=lambda s: s.y == UNSYNCED.format("take"),
        hint=3,
    ),
    g.Mistake(
        "moves the marker beyond what was taken",
        "The marker counts the rollouts that take has returned: not those that were asked for, "
        "where fewer are left, nor those that still wait in the log.",
        [
            g.patch("self.taken += len(rollouts)", "self.taken += count"),
            g.patch('"taken": self.taken}', '"taken": len(self.rollouts)}'),
        ],
        hint=3,
    ),
    g.Mistake(
        "cannot open a log with a torn record",
        "A killed job leaves a record of any length, of its head too. Look at how many bytes there "
        "are before you unpack them.",
        g.patch("if begin + 8 > len(data):", "if begin == len(data):"),
        crashed=lambda s: s.ranks[0].notes[-1].what == "killed" and "unpack" in s.error,
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
    fault=g.unexplained(
        "a rollout is not used exactly once", "Each that is appended is used once.", lambda s: s.y
    ),
    shown="each rollout is learned from exactly once, with a kill or a power cut at every "
    "operation and another one soon after",
)
