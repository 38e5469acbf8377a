"""Grade async_snapshot: a training loop that saves, with a thread that the grader runs by hand.

A job runs when it is waited for, after the loop has changed everything: the latest moment that a
thread could choose. What is written then, in which calls, and which calls raise, is the result.
"""

from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g
from labkit.grade.observed import plain, tensors_in

SCRIPTS = (
    "step save step wait",
    "save step wait",
    "step save step save step save step wait wait",
    "step save step grow save step save step wait",
    "save wait step save wait step save step wait",
    "step save step full save step save step save step wait",
    "step full save step wait step save wait",
)
"""`grow` changes shapes, and `full` makes the next write fail."""


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Yield every script."""
    for script in SCRIPTS:
        yield g.Case(script, script.split(), draw.same(5, 3))


class Training:
    """A state, what happens to it, and the disk."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.whole = torch.stack([weight, -weight, weight + 1])  # the state has views of it
        model = {"weight": self.whole[0], "turned": self.whole[1].T, "column": self.whole[2][:, 1]}
        model["tied"] = model["weight"]
        self.moments = {"step": torch.tensor(0.0)}
        optimizer = {"name": "adamw", "step": 0, "of": {"weight": self.moments}}
        schedule = {"lr": 1.0, "best": None}
        self.state: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
        self.is_full = False

    def step(self) -> None:
        """Update in place like an optimizer, which makes its states at the first step."""
        self.whole += 1
        self.moments["step"] += 1
        self.moments.setdefault("moment", torch.zeros_like(self.whole[0])).add_(self.whole[0])
        self.state["optimizer"]["step"] += 1
        self.state["schedule"]["lr"] *= 0.5

    def grow(self) -> None:
        """Another shape, and another dtype."""
        model = self.state["model"]
        model["column"], model["turned"] = torch.arange(9.0), model["turned"].double()

    def full(self) -> None:
        """The next write fails."""
        self.is_full = True


def attempt(action: Callable[[], Any]) -> OSError | None:
    """Return the OSError that an action raises, if any."""
    try:
        action()
    except OSError as error:
        return error
    return None


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Perform a script."""
    script, weight = args
    training, now = Training(weight), ""
    found: dict[str, list[Any]] = {"raised by": [], "written during": [], "written": []}
    waits: list[Callable[[], None]] = []
    copies: list[Tensor] = []

    def start(job: Callable[[], None]) -> SimpleNamespace:
        run_once = cache(lambda: attempt(job))

        def wait() -> None:
            if error := run_once():
                raise error

        waits.append(wait)
        return SimpleNamespace(wait=wait)

    def write(state: dict[str, Any]) -> None:
        tensors = [*tensors_in(state)]
        live = {tensor.data_ptr() for tensor in tensors_in(training.state)}
        for copy in tensors:
            if copy.data_ptr() in live:
                watch.note("live")
            if not copy.is_contiguous() or copy.untyped_storage().nbytes() > copy.nbytes:
                watch.note("loose")
        for copy, old in zip(tensors, copies):
            is_alike = (copy.shape, copy.dtype) == (old.shape, old.dtype)
            if is_alike and copy.data_ptr() != old.data_ptr():
                watch.note("moves")
        copies[:] = tensors
        found["written during"].append(now)
        if training.is_full:
            training.is_full = False
            raise OSError("no space left on device")
        found["written"].append(plain(state))

    saver = watch.function(start, write)
    calls = {"save": lambda: saver.save(training.state), "wait": lambda: saver.wait()}
    for number, what in enumerate(script):
        now = f"{what}, call {number}"
        with watch.calling(f"saver.{now}"):
            if attempt(calls.get(what) or getattr(training, what)):
                found["raised by"].append(now)
    now = "the end"
    for wait in waits:
        attempt(wait)
    return found


def right(script: list[str], weight: torch.Tensor) -> dict[str, Any]:
    """In which calls a write runs, which calls raise, and what is written."""
    training, saved = Training(weight), list[Any]()
    found: dict[str, list[Any]] = {"raised by": [], "written during": [], "written": []}
    for number, what in enumerate(script):
        if what not in ("save", "wait"):
            getattr(training, what)()
            continue
        calls = [f"{what}, call {number}"] * len(saved)
        found["written during"] += calls
        fails = bool(saved) and training.is_full
        if fails:
            found["raised by"] += calls
            training.is_full = False
        else:
            found["written"] += saved
        saved = [plain(training.state)] if what == "save" and not fails else []
    return found


def noted(s: g.Observed, what: str) -> bool:
    """Return whether a write has noted this."""
    return any(note.what == what for note in s.ranks[0].notes)


WAITS = "        self.wait()  # before the memory of the copy is used again\n"
COPIES = "        copy = self.copy = self.copied(state, self.copy)\n"
FRESH = ("copied(state, self.copy)", "copied(state, {})")
MISTAKES = [
    g.Mistake(
        "does not wait before it copies",
        "The copy overwrites what is still being written. With memory of its own for each copy, a "
        "slow disk fills the host's memory. Wait for the write before, then copy, then start.",
        [
            g.patch(WAITS, ""),
            g.patch(WAITS, "", *FRESH),
            g.patch(WAITS, "", COPIES, f"{COPIES}        self.wait()\n"),
        ],
    ),
    g.Mistake(
        "hands over the tensors themselves",
        "A dict has references, and so have its inner dicts: training changes the tensors while "
        "they are written. Copy dicts at every depth, and the values of all tensors, before save "
        "returns.",
        g.patch("        fits = isinstance(b", "        return value\n        fits = isinstance(b"),
        wrong=lambda s: noted(s, "live"),
    ),
    g.Mistake(
        "copies when the thread runs",
        "Between the call of save and the copy the loop has made another step. The copy belongs "
        "into save itself; only the write goes to the thread.",
        g.patch(COPIES, "", "self.write(copy)", "self.write(self.copied(state, {}))"),
    ),
    g.Mistake(
        "waits for its own write",
        "The stall is then the whole write. Start it, return, and wait at the next call.",
        g.patch("self.write(copy))\n", "self.write(copy))\n        self.wait()\n"),
    ),
    g.Mistake(
        "loses the error",
        "A save whose write failed does not exist, and no call reports it. Keep the pending job, "
        "and let the next call raise what it raised.",
        g.patch(
            "            pending.wait()\n",
            "            with __import__('contextlib').suppress(OSError):\n"
            "                pending.wait()\n",
        ),
        wrong=lambda s: len(s.y["raised by"]) < len(s.right[0]["raised by"]),
        hint=2,
    ),
    g.Mistake(
        "raises an error again",
        "The pending job is forgotten only where its wait returns, so a failed one is waited for "
        "again and again, and nothing is saved any more. Forget it before you wait.",
        g.patch("pending, self.pending = self.pending, None", "pending = self.pending"),
        wrong=lambda s: len(s.y["raised by"]) > len(s.right[0]["raised by"]),
        hint=2,
    ),
    g.Mistake(
        "takes a view's storage or strides into the copy",
        "deepcopy and pickle take a view's whole storage along; empty_like and clone keep the "
        "order of a transposed view's elements. The copy is contiguous, and as large as its "
        "elements: torch.empty, or clone with memory_format=torch.contiguous_format.",
        g.patch("return before.copy_(value)", "return __import__('copy').deepcopy(value)"),
        over_budget=lambda s: noted(s, "loose"),
        hint=3,
    ),
    g.Mistake(
        "takes new memory for a later copy",
        "Memory that is touched for the first time is slow: the stall doubles or more. Keep the "
        "copy of each tensor, and copy into it.",
        g.patch(*FRESH),
        over_budget=lambda s: noted(s, "moves") and not noted(s, "loose"),
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=("AsyncSaver",),
    cases=cases,
    right=right,
    call=call,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    shown="what is written is the state at the moment of the save, training waits for a copy only, "
    "and no failed write stays unknown",
)
