"""Grade async_snapshot: a training loop that saves, with a thread that the grader runs by hand.

A job runs when it is waited for, after the loop has changed everything: the latest moment that a
thread could choose. What `write` is given then, and which calls raise, is the result.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, close, patch

SCRIPTS = {
    "one save": "step save step wait",
    "a save before the first step": "save step wait",
    "three saves": "step save step save step step save step wait wait",
    "shapes change": "step save step grow save step save step wait",
    "a wait after each save": "save wait step save step wait step wait",
    "a full disk": "save step full save step save step save step wait",
    "a full disk at the end": "step full save step wait step save wait",
}


def cases(draw: Draw) -> Iterator[Case]:
    """Every script, with tensors of two sizes."""
    for rows, columns in ((3, 4), (20, 7)):
        for name, script in SCRIPTS.items():
            yield Case(f"{name}, {rows} x {columns}", script.split(), draw.same(rows, columns))


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


def copied(state: Any) -> dict[str, Any]:
    """The same, with copies of the tensors."""
    found = leaves(state).items()
    return {path: x.clone() if isinstance(x, torch.Tensor) else x for path, x in found}


def tensors(state: Any) -> dict[str, torch.Tensor]:
    """The tensors by their paths."""
    return {path: x for path, x in leaves(state).items() if isinstance(x, torch.Tensor)}


class Thread:
    """Runs jobs when they are waited for, and notes what happens."""

    def __init__(self, note: Callable[..., None], training: Training) -> None:
        self.note, self.training = note, training
        self.under_way: list[Pending] = []
        self.written: list[dict[str, Any]] = []
        self.most, self.number = 1, 0
        self.is_full = self.is_running = self.stalls = False

    def fill(self) -> None:
        """The next write finds no space."""
        self.is_full = True

    def start(self, job: Callable[[], None]) -> "Pending":
        """As the learner calls it."""
        self.under_way.append(Pending(self, job, self.number))
        self.most = max(self.most, len(self.under_way))
        return self.under_way[-1]

    def write(self, state: dict[str, Any]) -> None:
        """As the learner calls it."""
        mine, live = tensors(state), tensors(self.training.state).values()
        places = {(path, x.shape, str(x.dtype)): x.data_ptr() for path, x in mine.items()}
        self.note("places", places)
        self.note("strided", not all(x.is_contiguous() for x in mine.values()))
        self.note("live", any(x.data_ptr() in places.values() for x in live))
        self.note("excess", any(x.untyped_storage().nbytes() > x.nbytes for x in mine.values()))
        self.stalls |= not self.is_running
        if self.is_full:
            self.is_full = False
            raise OSError("no space left on device")
        self.written.append(copied(state))


class Pending:
    """A job that has started."""

    def __init__(self, thread: Thread, job: Callable[[], None], number: int) -> None:
        self.thread, self.job, self.number = thread, job, number
        self.error: Exception | None = None

    def wait(self) -> None:
        """As the learner calls it."""
        thread = self.thread
        if self in thread.under_way:
            thread.stalls |= thread.number == self.number
            thread.is_running = True
            try:
                self.job()
            except OSError as error:
                self.error = error
            thread.under_way.remove(self)
            thread.is_running = False
        if self.error:
            raise self.error


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Perform a script."""
    script, weight = args
    training, raised = Training(weight), []
    thread = Thread(watch.note, training)
    saver = watch.function(thread.start, thread.write)
    perform: dict[str, Callable[[], None]] = {"step": training.step, "grow": training.grow}
    perform |= {"full": thread.fill, "wait": saver.wait}
    perform["save"] = lambda: saver.save(training.state)
    for thread.number, what in enumerate(script):
        try:
            perform[what]()
        except OSError:
            raised.append(thread.number)
    thread.number = len(script)
    for each in list(thread.under_way):
        with contextlib.suppress(OSError):
            each.wait()
    found = {"written": thread.written, "raised": raised}
    return {**found, "most under way": thread.most, "stalls": thread.stalls}


def right(script: list[str], weight: torch.Tensor) -> dict[str, Any]:
    """What is written, and which calls raise."""
    training, is_full = Training(weight), False
    copy: dict[str, Any] | None = None
    written, raised = [], []
    for number, what in enumerate(script):
        if what == "full":
            is_full = True
        elif what not in ("save", "wait"):
            getattr(training, what)()
        elif copy is not None and is_full:
            raised.append(number)
            is_full, copy = False, None
        else:
            written += [] if copy is None else [copy]
            copy = copied(training.state) if what == "save" else None
    return {"written": written, "raised": raised, "most under way": 1, "stalls": False}


def described(s: Observed) -> str:
    """The first difference in words."""
    expected = s.right[0]
    if s.y["most under way"] > 1:
        return f"{s.y['most under way']} writes are under way at once"
    if s.y["stalls"]:
        return "a save returns after its write has ended"
    if s.y["raised"] != expected["raised"]:
        names = [f"{s.args[0][i]} (call {i})" for i in expected["raised"]]
        got = [f"{s.args[0][i]} (call {i})" for i in s.y["raised"]]
        return f"an error is raised by {got or 'no call'}, expected: {names or 'no call'}"
    for number, (got, wanted) in enumerate(zip(s.y["written"], expected["written"], strict=False)):
        wrong = [path for path in wanted if not close(got.get(path), wanted[path])]
        if wrong:
            values = [x.get(wrong[0]) for x in (got, wanted)]
            is_tensor = all(isinstance(x, torch.Tensor) and x.numel() for x in values)
            shown = [x.flatten()[0].item() if is_tensor else x for x in values]
            first = " begins with" if is_tensor else " is"
            return f"write {number}: {wrong[0]}{first} {shown[0]!r:.30}, expected {shown[1]!r:.30}"
    if not s.wrong_ranks:
        strided = any(noted(s, "strided"))
        return f"what is written is right{', and not contiguous' if strided else ''}"
    return f"{len(s.y['written'])} writes, expected {len(expected['written'])}"


def noted(s: Observed, what: str) -> list[Any]:
    """The values of these notes."""
    return [note.value for note in s.ranks[0].notes if note.what == what]


def is_wrong(s: Observed, number: int, kind: type = torch.Tensor) -> bool:
    """Whether a write has wrong values of a kind: tensors, or numbers. Nothing else is wrong."""
    if s.y["most under way"] > 1 or s.y["raised"] != s.right[0]["raised"]:
        return False
    got, wanted = s.y["written"][number], s.right[0]["written"][number]
    wrong = [x for path, x in wanted.items() if not close(got.get(path), x)]
    return any(isinstance(x, kind) for x in wrong)


def moves(s: Observed) -> bool:
    """Whether a tensor of the copy is elsewhere than in the copy before."""
    places = noted(s, "places")
    return any(
        one.get(key, place) != place
        for one, other in zip(places, places[1:], strict=False)
        for key, place in other.items()
    )


WAITS = "        self.wait()  # before the memory of the copy is used again\n"
COPIES = "        copy = self.copy = self.copied(state, self.copy)\n"
MISTAKES = [
    Mistake(
        "starts a write while another is under way",
        "The second copy needs memory of its own, or it overwrites what is being written; and a "
        "slow disk fills the host's memory with copies. Wait for the write before.",
        seen=lambda s: s.y["most under way"] > 1,
        made_by=patch(WAITS, ""),
    ),
    Mistake(
        "hands over the tensors themselves",
        "A dict has references, and so have its inner dicts: training changes the tensors while "
        "they are written. Copy the values of all tensors before save returns.",
        seen=lambda s: any(noted(s, "live")),
        made_by=patch(
            "        fits = isinstance(b", "        return value\n        fits = isinstance(b"
        ),
    ),
    Mistake(
        "copies when the thread runs",
        "Between the call of save and the copy the loop has made another step. The copy belongs "
        "into save itself; only the write goes to the thread.",
        seen=lambda s: not any(noted(s, "live")) and is_wrong(s, -1),
        made_by=patch(COPIES, "", "self.write(copy)", "self.write(self.copied(state, {}))"),
    ),
    Mistake(
        "copies before the write before has ended",
        "The memory of the copy is still being written. Wait first, then copy.",
        hint=2,
        seen=lambda s: is_wrong(s, 0) and not is_wrong(s, -1),
        made_by=patch(WAITS, "", COPIES, f"{COPIES}        self.wait()\n"),
    ),
    Mistake(
        "keeps inner dicts as they are",
        "dict(state) has the same inner dicts, and their numbers go on to change in the copy. Copy "
        "dicts at every depth.",
        hint=2,
        seen=lambda s: not any(noted(s, "live")) and is_wrong(s, -1, float) and not is_wrong(s, -1),
        made_by=patch(
            "        if isinstance(value, dict):\n",
            "        if isinstance(value, dict) and 'lr' not in value:\n",
        ),
    ),
    Mistake(
        "loses the error",
        "A save whose write failed does not exist, and nobody knows. Keep the pending job, and "
        "let the next call raise what it raised.",
        hint=2,
        seen=lambda s: len(s.y["raised"]) < len(s.right[0]["raised"]),
        made_by=patch(
            "            pending.wait()\n",
            "            try:\n                pending.wait()\n            except OSError:\n"
            "                pass\n",
        ),
    ),
    Mistake(
        "raises an error again",
        "The pending job is forgotten only where its wait returns, so a failed one is waited for "
        "again and again, and nothing is saved any more. Forget it before you wait.",
        hint=2,
        seen=lambda s: len(s.y["raised"]) > len(s.right[0]["raised"]),
        made_by=patch(
            "pending, self.pending = self.pending, None",
            "pending = self.pending",
            "pending.wait()\n",
            "pending.wait()\n            self.pending = None\n",
        ),
    ),
    Mistake(
        "waits for its own write",
        "The stall is then the whole write. Start it, return, and wait at the next call.",
        seen=lambda s: s.y["stalls"],
        made_by=patch("self.write(copy))\n", "self.write(copy))\n        self.wait()\n"),
    ),
    Mistake(
        "copies the whole tensor of which it has a view",
        "deepcopy and pickle take a view's whole storage along. Copy the values of the view.",
        hint=3,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: any(noted(s, "excess")),
        made_by=patch("return before.copy_(value)", "return __import__('copy').deepcopy(value)"),
    ),
    Mistake(
        "keeps the strides of a view",
        "empty_like and clone keep the order of a transposed view's elements in memory. The copy "
        "is contiguous: make it with torch.empty, or with memory_format=torch.contiguous_format.",
        hint=3,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: any(noted(s, "strided")) and not any(noted(s, "excess")),
        made_by=patch("torch.empty(value.shape, dtype=value.dtype)", "torch.empty_like(value)"),
    ),
    Mistake(
        "takes new memory for every copy",
        "Memory that is touched for the first time is slow: the stall doubles or more. Keep the "
        "copy, and copy into it.",
        hint=3,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: moves(s) and not any(noted(s, "excess")),
        made_by=patch("copied(state, self.copy)", "copied(state, {})"),
    ),
]

GRADER = Questions(
    name="async_snapshot",
    functions=("AsyncSaver",),
    cases=cases,
    right=right,
    call=call,
    describe=described,
    num_arguments=2,
    mistakes=MISTAKES,
    closed=("labkit.checkpoint",),
    shown="what is written is the state at the moment of the save, training waits for a copy only, "
    "and no failed write stays unknown",
)
