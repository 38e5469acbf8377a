"""Grade exactly_once_rollouts: jobs that are killed at each operation, and soon again."""

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, patch
from labkit.grade.outcome import Finding

POWER, PROCESS = "the power is cut", "the process is killed"
HOW_KILLED = (
    (PROCESS, POWER, PROCESS),
    (POWER, POWER, PROCESS),
    (POWER, PROCESS, POWER),
)
ACTIONS = (3, -2, 2, -2, 1, -6, -1, 4, 1, -3, 2, -3)
"""Rollouts appended, or taken if negative."""
LAST = 24
Kill = tuple[int, str]
EMPTY = "a rollout of no bytes"
LOST_STEP, SHORT, TORN, RESTART = "a lost step", "a short take", "a torn record", "a restart"


class Killed(BaseException):
    """The end of the process: not an error that the code under test would handle."""


class Disk:
    """Files and checkpoints that outlive the process."""

    def __init__(self, kills: Sequence[Kill], rng: random.Random) -> None:
        self.kills, self.rng = dict(kills), rng
        self.states: dict[str, list[bytes]] = {}
        """Of each file: what is synced, and then what it was after each operation."""
        self.checkpoint = ""
        self.whole = {b""}
        """What a file can be if no append is torn."""
        self.num_operations = self.num_truncates = 0
        self.is_dead = self.is_rewritten = False

    @property
    def is_durable(self) -> bool:
        """Whether a power cut would take nothing that was appended."""
        pairs = [pair for states in self.states.values() for pair in itertools.pairwise(states)]
        return all(len(new) <= len(old) for old, new in pairs)

    @property
    def is_torn(self) -> bool:
        """Whether a part of an append is there."""
        return any(states[-1] not in self.whole for states in self.states.values())

    def read(self, name: str) -> bytes:
        """All bytes of a file."""
        return self._file(name)[-1]

    def append(self, name: str, data: bytes) -> None:
        """Write behind the end of a file."""
        old, cut = self.read(name), self.rng.randint(0, len(data))
        self.whole |= {old, old + data}
        self._do(lambda part: self._file(name).append(old + (data[:cut] if part else data)))

    def truncate(self, name: str, size: int) -> None:
        """Leave the first bytes of a file."""
        self.num_truncates += 1
        file = self.read(name)
        self.is_rewritten |= size < max(len(each) for each in self.whole if file.startswith(each))
        self._do(lambda part: part or self._file(name).append(self.read(name)[:size]))

    def sync(self, name: str) -> None:
        """Make durable what was done to a file."""
        self._do(lambda part: part or self.states.update({name: [self.read(name)]}))

    def save(self, checkpoint: Any) -> None:
        """A checkpoint is there, or it is not."""
        text = json.dumps(checkpoint)
        self._do(lambda part: part or setattr(self, "checkpoint", text))

    def _file(self, name: str) -> list[bytes]:
        return self.states.setdefault(name, [b""])

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


def cases(draw: Draw) -> list[Case]:
    """Not killed, and killed three times: at each operation, and some operations later."""
    rng, asked = draw.rng, [Case("not killed", [], 0)]
    for first in range(1, LAST):
        for hows in 2 * HOW_KILLED:
            second = first + rng.randint(1, 8)
            kills = [*zip((first, second, second + rng.randint(1, 8)), hows, strict=True)]
            label = ", then ".join(f"{how} at operation {at}" for at, how in kills)
            asked.append(Case(label, kills, rng.randrange(10**6)))
    return asked


class Job:
    """A training that appends and learns, on a disk that kills it."""

    def __init__(self, watch: Any, disk: Disk, rng: random.Random) -> None:
        self.watch, self.disk, self.rng = watch, disk, rng
        self.actions = [*ACTIONS]
        self.numbers: dict[bytes, int] = {}
        """Of all rollouts that were generated."""
        self.sure: list[int] = []
        """Those whose append has returned."""

    def run(self) -> list[int | str]:
        """From the newest checkpoint to the end, or to a kill: what the parameters learned."""
        disk, watch, numbers = self.disk, self.watch, self.numbers
        disk.is_dead, is_torn = False, disk.is_torn
        log = watch.function(disk)
        learned, state = json.loads(disk.checkpoint or "[[], null]")
        watch.note("open", (is_torn and not disk.num_truncates, len(learned)))
        if state is not None:
            log.load_state_dict(state)
        while self.actions:
            if (action := self.actions.pop(0)) < 0:
                self.step(log, -action, learned)
                continue
            rollouts = self.generate(action)
            log.append([*rollouts])
            watch.note("append", (disk.is_durable,))
            self.sure.extend(numbers[each] for each in rollouts)
        while len(learned) < 3 * len(numbers) and self.step(log, 4, learned):
            pass
        return learned

    def generate(self, count: int) -> list[bytes]:
        """Rollouts that the job has not seen."""
        first, rng = len(self.numbers), self.rng
        made = [bytes([first + i]) + rng.randbytes(rng.randint(0, 30)) for i in range(count)]
        self.numbers.update((each, first + i) for i, each in enumerate(made))
        return made

    def step(self, log: Any, count: int, learned: list[int | str]) -> list[int | str]:
        """Learn from the next rollouts, and save."""
        disk, watch = self.disk, self.watch
        watch.note("begin step", len(learned))
        before = disk.num_operations
        waiting = [number for number in self.sure if number not in learned]
        taken = [self.name(bytes(each)) for each in log.take(count)]
        watch.note("take", (count, waiting, taken, disk.is_durable))
        learned += taken
        state = log.state_dict()
        if disk.num_operations > before:
            watch.note("marks")
        disk.save((learned, state))
        return taken

    def name(self, rollout: bytes) -> int | str:
        """The number of a rollout, or what it is instead."""
        if rollout in self.numbers:
            return self.numbers[rollout]
        if not rollout:
            return EMPTY
        whole = (self.numbers[each] for each in self.numbers if each.startswith(rollout))
        return next((f"a part of rollout {number}" for number in whole), "other bytes")


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Run the job, again after each kill: what was learned, and what should have been."""
    kills, seed = args
    rng = random.Random(seed)
    disk = Disk(kills, rng)
    job = Job(watch, disk, rng)
    learned, num_ends = [], 0
    while num_ends < 2:  # the second time there is nothing left to do
        try:
            learned = job.run()
            num_ends += 1
        except Killed:
            watch.note("killed")
    if disk.is_rewritten:
        watch.note("rewrites")
    notes = [note.value[-1] for note in watch.events if note.what in ("append", "take")]
    return {"learned": learned, "sure": job.sure, "durable": all(notes)}


def right(kills: Sequence[Kill], seed: int) -> str:
    """No fault."""
    return ""


def problem(got: Any) -> str:
    """What is wrong first, in words; empty for a right result."""
    learned = got["learned"]
    for each, count in Counter(learned).items():
        if isinstance(each, str):
            return f"the parameters have learned from {each}"
        if count > 1:
            return f"the parameters have learned from rollout {each} {count} times"
    missing = sorted({*got["sure"]} - {*learned})
    if missing:
        return f"the parameters have never learned from rollout {missing[0]}, which was appended"
    if not got["durable"]:
        return "a power cut would take rollouts that were already used or reported as durable"
    return "" if learned == sorted(learned) else f"the rollouts were taken in the order {learned}"


def fault(s: Observed) -> Finding | None:
    """Not exactly once, and no usual reason for it."""
    if not s.wrong_ranks:
        return None
    name, why = (
        "a rollout is not used exactly once",
        "Each rollout whose append has returned is used once.",
    )
    return Finding(Outcome.WRONG, name, why, f"{s.label}: {problem(s.y)}", 2)


def values(s: Observed, what: str) -> list[Any]:
    """The values of all notes of this kind, in order."""
    return [note.value for note in s.ranks[0].notes if note.what == what]


def is_durable(s: Observed) -> bool:
    """Whether all was durable whenever append returned."""
    return all(durable for (durable,) in values(s, "append"))


def gap_behind(s: Observed) -> str:
    """Behind what a take first leaves out rollouts that wait."""
    is_short = is_torn = step_is_lost = is_new = False
    begun = -1
    for note in s.ranks[0].notes:
        if note.what == "take":
            count, waiting, taken, _ = note.value
            if waiting and (not taken or taken[0] > waiting[0]):
                reasons = [(TORN, is_torn), (SHORT, is_short and not is_new)]
                reasons += [(LOST_STEP, step_is_lost), (SHORT, is_short), (RESTART, True)]
                return next(reason for reason, holds in reasons if holds)
            is_short, step_is_lost, is_new = len(taken) < count, False, False
        elif note.what == "begin step":
            begun = note.value
        elif note.what == "open":
            is_torn = is_torn or note.value[0]
            step_is_lost = step_is_lost or begun == note.value[1]
            begun, is_new = -1, True
    return ""


TAKEN = """return {"taken": self.taken}"""
LOADS = """self.taken = state["taken"]"""
OPENS = "self.disk, self.taken, end = disk, 0, 0"
MARKED = "self.disk, self.taken, end = disk, len(disk.read('marker')), 0"
MARKS = "self.disk.append('marker', bytes({}))\n        self.disk.sync('marker')\n"
LENGTH = "if length == 0 or len(rollout) < length:"
MISTAKES = [
    Mistake(
        "moves the marker before the step is saved",
        "A job that is killed between the two goes on behind rollouts that no saved parameters "
        "have learned from. The marker belongs into the checkpoint: state_dict returns it.",
        seen=lambda s: values(s, "marks") and is_durable(s) and gap_behind(s) == LOST_STEP,
        made_by=patch(
            *(OPENS, MARKED, LOADS, "pass"),
            *(
                "        return rollouts\n",
                f"        {MARKS.format('len(rollouts)')}        return rollouts\n",
            ),
        ),
    ),
    Mistake(
        "moves the marker after the step is saved",
        "A job that is killed between the two takes rollouts again that the saved parameters have "
        "learned from. The marker belongs into the checkpoint: state_dict returns it.",
        seen=lambda s: max(Counter(x for x in s.y["learned"] if x != EMPTY).values()) > 1,
        made_by=patch(
            *(OPENS, MARKED, LOADS, "pass"),
            "rollouts = self.rollouts[self.taken : self.taken + count]",
            "before = self.taken - len(self.disk.read('marker'))\n"
            f"        {MARKS.format('before')}"
            "        rollouts = self.rollouts[self.taken : self.taken + count]",
        ),
    ),
    Mistake(
        "has no checksum",
        "After a power cut a record can have its length and zeros for bytes. Only a checksum of "
        "the bytes shows that they are those that were written.",
        seen=lambda s: "other bytes" in s.y["learned"],
        made_by=patch("if zlib.crc32(rollout) != checksum:", "if False:"),
    ),
    Mistake(
        "takes a torn record for a whole one",
        "The last record may end before its length says. It was never durable, so it is cut off.",
        hint=2,
        seen=lambda s: any("part" in each for each in s.y["learned"] if isinstance(each, str)),
        made_by=patch(
            LENGTH, "if length == 0:", "if zlib.crc32(rollout) != checksum:", "if False:"
        ),
    ),
    Mistake(
        "takes zeros for a record of no bytes",
        "The checksum of no bytes is 0, so eight zeros look like a whole record. A rollout has 1 "
        "byte or more: refuse a length of 0.",
        hint=2,
        seen=lambda s: EMPTY in s.y["learned"],
        made_by=patch(LENGTH, "if len(rollout) < length:"),
    ),
    Mistake(
        "leaves a torn record in the log",
        "The next append writes behind it, and a reader stops at the torn record. Cut the "
        "log after the last whole record before anything is appended.",
        hint=2,
        seen=lambda s: gap_behind(s) == TORN,
        made_by=patch("if end < len(data):", "if False:"),
    ),
    Mistake(
        "writes the log anew when it opens it",
        "A job that is killed between the two operations has lost whole records. Leave what is "
        "whole where it is, and cut off the rest.",
        hint=2,
        seen=lambda s: values(s, "rewrites") and not values(s, "marks"),
        made_by=patch(
            'disk.truncate("log", end)',
            'disk.truncate("log", 0)\n            disk.append("log", data[:end])',
        ),
    ),
    Mistake(
        "does not sync before append returns",
        "What was written is in the page cache: a power cut takes it, and the job believes it to "
        "be durable. Sync the file before append returns.",
        hint=2,
        seen=lambda s: not is_durable(s),
        made_by=patch(
            '        self.disk.sync("log")\n        self.rollouts +=', "        self.rollouts +="
        ),
    ),
    Mistake(
        "takes records that a killed process has not synced",
        "A killed process leaves a whole record in the page cache. If it is used, a checkpoint "
        "counts it, and then the power is cut, the marker is beyond the end of the log. Sync when "
        "the log is opened.",
        hint=3,
        seen=lambda s: is_durable(s) and not s.y["durable"],
        made_by=patch('        disk.sync("log")  #', "        #"),
    ),
    Mistake(
        "moves the marker by what was asked for",
        "take may return fewer rollouts than `count`. The marker counts those that it returned.",
        hint=3,
        seen=lambda s: gap_behind(s) == SHORT,
        made_by=patch("self.taken += len(rollouts)", "self.taken += count"),
    ),
    Mistake(
        "takes the end of the log for the marker",
        "Rollouts that were appended and not yet taken wait in the log. The marker says how many "
        "were taken.",
        hint=2,
        seen=lambda s: is_durable(s) and gap_behind(s) == RESTART,
        made_by=patch(TAKEN, 'return {"taken": len(self.rollouts)}'),
    ),
    Mistake(
        "cannot open a log with a torn record",
        "A killed job leaves a record of any length, of its head too. Look at how many bytes there "
        "are before you unpack them.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: s.ranks[0].notes[-1].what == "killed",
        made_by=patch("if begin + 8 > len(data):", "if begin == len(data):"),
    ),
]

GRADER = Questions(
    name="exactly_once_rollouts",
    functions=("RolloutLog",),
    cases=cases,
    right=right,
    same=lambda got, right, case: not problem(got),
    call=call,
    num_arguments=1,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    describe=lambda s: problem(s.y),
    fault=fault,
    shown="each rollout is learned from exactly once, with a kill or a power cut at every "
    "operation and another one soon after",
)
