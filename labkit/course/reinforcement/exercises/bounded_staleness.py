"""Grade bounded_staleness: scripts of starts, ends and updates, against a list of what happened."""

import random
from typing import Any

from labkit.grade import grader as g

START, UPDATE = "start", "update"
Script = list[str | int]
"""START, UPDATE, or k: the k-th oldest of the running answers ends, modulo their number."""


def cases(draw: g.Draw) -> list[g.Case]:
    """In turns; overlapped; one long answer; scripts at random with fast and slow sides."""
    rng = draw.rng
    in_turns: Script = [*[START] * 3, 0, 0, UPDATE, START, *[START] * 2, 0, 0, UPDATE]
    overlapped: Script = [*[START] * 5, 0, 0, UPDATE, START, START, START, 0, 0, UPDATE]
    overlapped += [START, START, 0, 0, UPDATE, UPDATE]
    # The first answer runs until it is too old.
    long_answer: Script = [START, *[START] * 3]
    for _ in range(5):
        long_answer += [1, START, 1, START, UPDATE, START]
    long_answer += [0, UPDATE, START, 0, 0, UPDATE]
    # The first answer ends and is passed by none, but updates wait for a batch of two.
    listed = [
        g.Case("in turns, batch 2, bound 0", in_turns, 2, 0),
        g.Case("overlapped, batch 2, bound 1", overlapped, 2, 1),
        g.Case("one long answer, batch 2, bound 1", long_answer, 2, 1),
        g.Case("one long answer, batch 1, bound 2", long_answer, 1, 2),
        g.Case("an update without answers", [UPDATE, START, UPDATE, 0, UPDATE, UPDATE], 1, 0),
    ]
    for batch, bound in ((1, 0), (2, 0), (2, 1), (3, 1), (2, 3), (1, 4), (3, 2)):
        for weights in ((5, 3, 2), (3, 2, 3), (6, 5, 4)):
            script = drawn(rng, weights)
            listed.append(g.Case(f"60 events, batch {batch}, bound {bound}", script, batch, bound))
    return listed


def drawn(rng: random.Random, weights: tuple[int, int, int]) -> Script:
    """Starts, ends and updates at random; the oldest running answer seldom ends."""
    events: Script = []
    for kind in rng.choices((START, "end", UPDATE), weights, k=60):
        events.append(rng.choice((0, 1, 1, 2, 2, 3)) if kind == "end" else kind)
    return events


def played(code: Any, script: Script) -> list[Any]:
    """Return what the code says to each event; a running answer ends at the script's choice."""
    running: list[int] = []
    said: list[Any] = []
    for event in script:
        if event == START:
            number = code.start()
            said.append(number)
            if number is not None:
                running.append(number)
        elif event == UPDATE:
            used = code.update()
            said.append(used if used is None else list(used))
        elif running and isinstance(event, int):
            number = running.pop(event % len(running))
            code.finish(number)
            said.append(f"{number} ends")
        else:
            said.append("none runs")
    return said


class Log:
    """The same rules, from a list of all that happened."""

    def __init__(self, batch: int, bound: int) -> None:
        self.batch, self.bound = batch, bound
        self.started: list[int] = []  # the version of each answer
        self.ended: list[int] = []
        self.used: list[int] = []

    @property
    def version(self) -> int:
        """The number of updates."""
        return len(self.used) // self.batch

    def is_dropped(self, number: int) -> bool:
        """Return whether an answer that was not used is too old for the next update."""
        return number not in self.used and self.version - self.started[number] > self.bound

    def start(self) -> int | None:
        """Return the next number if the updates up to version + bound have room for it."""
        kept = [n for n in range(len(self.started)) if not self.is_dropped(n)]
        if len(kept) + 1 > self.batch * (self.version + self.bound + 1):
            return None
        self.started.append(self.version)
        return len(self.started) - 1

    def finish(self, number: int) -> None:
        """Write it down, dropped or not."""
        self.ended.append(number)

    def update(self) -> list[int] | None:
        """Return the first that ended, of those that are left."""
        left = [n for n in self.ended if n not in self.used and not self.is_dropped(n)]
        if len(left) < self.batch:
            return None
        self.used += left[: self.batch]
        return left[: self.batch]


def call(watch: Any, args: tuple[Any, ...]) -> list[Any]:
    """Play the script with the learner's class."""
    script, batch, bound = args
    return played(watch.function(batch, bound), script)


ROOM = "(self.version + self.bound + 1) * self.batch"
COUNT = "self.num_started - self.num_dropped >= room"
TOO_OLD = "self.version - its > self.bound"
MISTAKES = [
    g.Mistake(
        "has the bound off by one",
        "An answer of the policy's own version has staleness 0 in the next update. With bound 0 "
        "a whole batch may start at each version, and staleness up to `bound`, included, is used.",
        [
            *g.patches(
                ROOM,
                "(self.version + self.bound) * self.batch + 1",
                "(self.version + self.bound + 2) * self.batch",
                "max(1, self.version + self.bound) * self.batch",
            ),
            g.patch(TOO_OLD, f"{TOO_OLD} + 1"),
            g.patch(TOO_OLD, "self.version - its >= max(1, self.bound)"),
        ],
        hint=2,
    ),
    g.Mistake(
        "takes an answer's version at its end",
        "Its first tokens come from the policy at the start. A long answer that ends now is as old "
        "as its start.",
        g.patch("self.running.pop(number)", "self.running.pop(number) * 0 + self.version"),
    ),
    g.Mistake(
        "lets the generator start whatever it likes",
        "Without a gate answers pile up, and most are too old when their turn comes: generated for "
        "nothing. Count at the start.",
        g.patch(COUNT, "False"),
    ),
    g.Mistake(
        "counts only answers that are running",
        "Answers that wait for the trainer take places in the next updates, too, and so do the "
        "used ones, because the room grows by a batch with each update.",
        [
            g.patch(COUNT, "len(self.running) >= room"),
            g.patch(COUNT, "len(self.running) >= (self.bound + 1) * self.batch"),
            g.patch(COUNT, "len(self.running) + len(self.waiting) >= room"),
        ],
        hint=2,
    ),
    g.Mistake(
        "forgets that an update makes room",
        "Each update has used a batch, and the next version may start as many. With a room that "
        "stays as it is, the generator stops after the first bound + 1 batches.",
        [
            g.patch(ROOM, "(self.bound + 1) * self.batch"),
            g.patch(ROOM, "(self.bound + 1) * self.batch", COUNT, "self.num_started >= room"),
        ],
        hint=2,
    ),
    g.Mistake(
        "uses answers that are too old",
        "The gate alone does not bound staleness: an answer may take longer than all others. Drop "
        "what is older than the bound before a batch is chosen.",
        g.patch("for answers in (self.running, self.waiting):", "for answers in ():"),
        hint=2,
    ),
    g.Mistake(
        "keeps the place of a dropped answer",
        "A dropped answer will never fill its place in an update. If it keeps it, the generator "
        "may start one less for ever, and with a batch of one it soon stands idle.",
        g.patch("                self.num_dropped += 1\n", ""),
        hint=3,
    ),
    g.Mistake(
        "drops only answers that have ended",
        "A running answer that is too old already will not be used, however it ends. Its place is "
        "free at once.",
        g.patch("for answers in (self.running, self.waiting):", "for answers in (self.waiting,):"),
        hint=3,
    ),
    g.Mistake(
        "ends an answer that was dropped",
        "A running answer may be dropped before it ends. `finish` is then called all the same, and "
        "changes nothing.",
        g.patch("        if number in self.running:\n    ", ""),
        crashed=lambda s: "KeyError" in s.error,
        hint=3,
    ),
    g.Mistake(
        "takes other answers than those that ended first",
        "The order of the ends decides. The newest first lets the others grow old, and the order "
        "of starts makes the trainer wait for a long answer.",
        [
            g.patch("list(self.waiting)[: self.batch]", "list(self.waiting)[-self.batch :]"),
            g.patch("list(self.waiting)[: self.batch]", "sorted(self.waiting)[: self.batch]"),
        ],
        hint=3,
    ),
    g.Mistake(
        "makes an update of another size",
        "An update has exactly `batch` answers. With fewer the trainer waits: None, the version "
        "stays, and the answers go on waiting. With more, those beyond a batch wait for the next.",
        [
            g.patch("list(self.waiting)[: self.batch]", "list(self.waiting)"),
            g.patch("len(self.waiting) < self.batch", "not self.waiting"),
            g.patch(
                "            return None\n        used",
                "            self.version += 1\n            return None\n        used",
            ),
        ],
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=("BoundedStaleness",),
    cases=cases,
    right=lambda script, batch, bound: played(Log(batch, bound), script),
    call=call,
    mistakes=MISTAKES,
    closed=("labkit.rl",),
    shown="no answer is older than the bound in its update, none starts that has no place in time, "
    "and a dropped one gives its place back",
)
