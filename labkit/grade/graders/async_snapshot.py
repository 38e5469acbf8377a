"""Grade async_snapshot: a training loop that saves, with a thread that the grader runs by hand.

A job runs when it is waited for, after the loop has changed everything: the latest moment that a
thread could choose. What `write` is given then, and which calls raise, is the result.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from labkit.grade import grader as g

SCRIPTS = {
    "one save": "step save step wait",
    "a save before the first step": "save step wait",
    "three saves": "step save step save step save step wait wait",
    "shapes change": "step save step grow save step save step wait",
    "a wait after each save": "save wait step save step wait step wait",
    "a full disk": "save step full save step save step save step wait",
    "a full disk at the end": "step full save step wait step save wait",
}


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Every script, with tensors of two sizes."""
    for rows, columns in ((3, 4), (20, 7)):
        for name, script in SCRIPTS.items():
            yield g.Case(f"{name}, {rows} x {columns}", script.split(), draw.same(rows, columns))


class Training:
    """A state, and what happens to it."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.whole = torch.stack([weight, -weight, weight + 1])  # the state has views of it
        model = {"weight": self.whole[0], "turned": self.whole[1].T, "column": self.whole[2][:, 1]}
        model["tied"] = model["weight"]
        optimizer = {"name": "adamw", "step": 0, "of": {"weight": {"step": torch.tensor(0.0)}}}
        self.state: dict[str, Any] = {"model": model, "optimizer": optimizer, "tokens": 0}
        self.state["schedule"] = {"lr": 1.0}

    def step(self) -> None:
        """As an optimizer: in place, with states that it makes at the first step."""
        self.whole += 1
        moments = self.state["optimizer"]["of"]["weight"]
        moments["step"] += 1
        moments.setdefault("moment", torch.zeros_like(self.whole[0])).add_(self.whole[0])
        self.state["optimizer"]["step"] += 1
        self.state["tokens"] += 100
        self.state["schedule"]["lr"] *= 0.5

    def grow(self) -> None:
        """Another shape, and another dtype."""
        model = self.state["model"]
        model["column"], model["turned"] = torch.arange(9.0), model["turned"].double()


def leaves(state: Any, name: str = "state") -> dict[str, Any]:
    """Tensors, numbers and texts by their paths."""
    if not isinstance(state, dict):
        return {name: state}
    found = [leaves(each, f"{name}/{key}") for key, each in state.items()]
    return {path: each for part in found for path, each in part.items()}


class Thread:
    """Runs jobs when they are waited for, and notes what happens."""

    def __init__(self, note: Callable[..., None], training: Training) -> None:
        self.note, self.training = note, training
        self.under_way: list[Callable[[], None]] = []  # what waits for a job
        self.written: list[dict[str, Any]] = []
        self.places: dict[Any, int] = {}  # of the tensors of the last copy
        self.most, self.number = 1, 0
        self.is_full = self.is_running = self.stalls = False

    def start(self, job: Callable[[], None]) -> SimpleNamespace:
        """As the learner calls it."""
        begun, errors = self.number, []

        def wait() -> None:
            if wait in self.under_way:
                self.stalls |= self.number == begun
                self.is_running = True
                try:
                    job()
                except OSError as error:
                    errors.append(error)
                self.under_way.remove(wait)
                self.is_running = False
            if errors:
                raise errors[0]

        self.under_way.append(wait)
        self.most = max(self.most, len(self.under_way))
        return SimpleNamespace(wait=wait)

    def write(self, state: dict[str, Any]) -> None:
        """As the learner calls it."""
        mine, live = (
            {path: x for path, x in leaves(its).items() if isinstance(x, torch.Tensor)}
            for its in (state, self.training.state)
        )
        places = {(path, x.shape, str(x.dtype)): x.data_ptr() for path, x in mine.items()}
        if any(self.places.get(key, at) != at for key, at in places.items()):
            self.note("moves")
        self.places = places
        if any(x.data_ptr() in places.values() for x in live.values()):
            self.note("live")
        sizes = [(x.untyped_storage().nbytes(), x.nbytes) for x in mine.values()]
        if any(x > y for x, y in sizes) or not all(x.is_contiguous() for x in mine.values()):
            self.note("loose")
        self.stalls |= not self.is_running
        if self.is_full:
            self.is_full = False
            raise OSError("no space left on device")
        self.written.append(copy.deepcopy(leaves(state)))


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Perform a script."""
    script, weight = args
    training, raised = Training(weight), []
    thread = Thread(watch.note, training)
    saver = watch.function(thread.start, thread.write)
    perform: dict[str, Callable[[], None]] = {
        "step": training.step,
        "grow": training.grow,
        "full": lambda: setattr(thread, "is_full", True),
        "save": lambda: saver.save(training.state),
        "wait": lambda: saver.wait(),
    }
    for thread.number, what in enumerate(script):
        try:
            perform[what]()
        except OSError:
            raised.append(f"{what}, call {thread.number}")
    thread.number = len(script)
    for each in list(thread.under_way):
        with contextlib.suppress(OSError):
            each()
    found = {"most writes under way": thread.most, "save returns after its write": thread.stalls}
    return {**found, "raised by": raised, "written": thread.written}


def right(script: list[str], weight: torch.Tensor) -> dict[str, Any]:
    """What is written, and which calls raise."""
    training, is_full = Training(weight), False
    saved, written, raised = [], [], []
    for number, what in enumerate(script):
        if what == "full":
            is_full = True
        elif what not in ("save", "wait"):
            getattr(training, what)()
        elif saved and is_full:
            raised.append(f"{what}, call {number}")
            is_full, saved = False, []
        else:
            written += saved
            saved = [copy.deepcopy(leaves(training.state))] if what == "save" else []
    found = {"most writes under way": 1, "save returns after its write": False}
    return {**found, "raised by": raised, "written": written}


def noted(s: g.Observed, what: str) -> bool:
    """Whether a write has noted this."""
    return any(note.what == what for note in s.ranks[0].notes)


WAITS = "        self.wait()  # before the memory of the copy is used again\n"
COPIES = "        copy = self.copy = self.copied(state, self.copy)\n"
MISTAKES = [
    g.Mistake(
        "starts a write while another is under way",
        "The second copy needs memory of its own, or it overwrites what is being written; and a "
        "slow disk fills the host's memory with copies. Wait for the write before.",
        g.patch(WAITS, ""),
        seen=lambda s: s.y["most writes under way"] > 1,
    ),
    g.Mistake(
        "hands over the tensors themselves",
        "A dict has references, and so have its inner dicts: training changes the tensors while "
        "they are written. Copy the values of all tensors before save returns.",
        g.patch("        fits = isinstance(b", "        return value\n        fits = isinstance(b"),
        seen=lambda s: noted(s, "live"),
    ),
    g.Mistake(
        "copies when the thread runs",
        "Between the call of save and the copy the loop has made another step. The copy belongs "
        "into save itself; only the write goes to the thread.",
        g.patch(COPIES, "", "self.write(copy)", "self.write(self.copied(state, {}))"),
    ),
    g.Mistake(
        "copies while the last write still runs",
        "The memory of the copy is still being written. Wait first, then copy.",
        g.patch(WAITS, "", COPIES, f"{COPIES}        self.wait()\n"),
        hint=2,
    ),
    g.Mistake(
        "keeps inner dicts as they are",
        "dict(state) has the same inner dicts, and their numbers go on to change in the copy. Copy "
        "dicts at every depth.",
        g.patch("isinstance(value, dict):\n", "isinstance(value, dict) and 'lr' not in value:\n"),
        hint=2,
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
        seen=lambda s: len(s.y["raised by"]) < len(s.right[0]["raised by"]),
        hint=2,
    ),
    g.Mistake(
        "raises an error again",
        "The pending job is forgotten only where its wait returns, so a failed one is waited for "
        "again and again, and nothing is saved any more. Forget it before you wait.",
        g.patch("pending, self.pending = self.pending, None", "pending = self.pending"),
        seen=lambda s: len(s.y["raised by"]) > len(s.right[0]["raised by"]),
        hint=2,
    ),
    g.Mistake(
        "waits for its own write",
        "The stall is then the whole write. Start it, return, and wait at the next call.",
        g.patch("self.write(copy))\n", "self.write(copy))\n        self.wait()\n"),
        seen=lambda s: s.y["save returns after its write"],
    ),
    g.Mistake(
        "takes a view's storage or strides into the copy",
        "deepcopy and pickle take a view's whole storage along; empty_like and clone keep the "
        "order of a transposed view's elements. The copy is contiguous, and as large as its "
        "elements: torch.empty, or clone with memory_format=torch.contiguous_format.",
        [
            g.patch("return before.copy_(value)", "return __import__('copy').deepcopy(value)"),
            g.patch("torch.empty(value.shape, dtype=value.dtype)", "torch.empty_like(value)"),
        ],
        over_budget=lambda s: noted(s, "loose"),
        hint=3,
    ),
    g.Mistake(
        "takes new memory for every copy",
        "Memory that is touched for the first time is slow: the stall doubles or more. Keep the "
        "copy, and copy into it.",
        g.patch("copied(state, self.copy)", "copied(state, {})"),
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
