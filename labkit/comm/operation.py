"""Operations and regions: a rank's journal as objects, and their names in reports.

A Timeline is one rank's journal. It has operations (tensors that went over a group) and regions
(named spans of the rank's own work). Pictures, traffic counts, the doctor and the graders all read
these two, and name ranks and operations by the functions below.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

P2P_KINDS = ("send", "recv")
NETWORK, SHARED_MEMORY = "the network", "shared memory"
WAITS = "waits"
"""The name of a region in which a rank only waits for another thread of its own."""


@dataclass(frozen=True, slots=True)
class Site:
    """A line of source code: where a group was called."""

    file: str
    line: int
    function: str
    text: str = ""
    """The call itself, `world.all_reduce(x)`; empty where it is not known."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def description(self) -> str:
        """The call's text, or its line where the text is not known."""
        return self.text or f"line {self.line}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that a rank posted on a group, with its times.

    Times are seconds. `posted_s`: written down, before it starts. `waited_s`: the rank began to
    block on it (None: it never did). `done_s`: the rank had the result (None: it never came).
    `completed_s`: the backend was done with it, perhaps while the rank still computed (None: not
    known; gloo tells it of collectives that were posted with `wait=False`).
    """

    index: int
    """Position in this rank's journal, from 0."""
    kind: str
    """One of journal.KINDS, such as send, all_reduce, broadcast, barrier or split. Operations that
    torch itself recorded have torch's names."""
    blocking: bool
    group: tuple[int, ...]
    """The group's members as global ranks."""
    group_name: str
    sequence: int
    """From 1: the n-th collective of this group; for send and recv, the n-th message from this
    source to this destination within the group."""
    reduce: str | None
    """How a reduction combines numbers: sum, mean, max or min."""
    peer: int | None
    """Global rank of a send's destination, a recv's source, or a collective's root."""
    dtype: str
    """The tensor's dtype without "torch.": float32."""
    shape: tuple[int, ...]
    payload_bytes: int
    """Bytes of the tensor that the caller passed."""
    sent_bytes: int
    """Bytes that this rank puts on the wire, without headers."""
    received_bytes: int
    """Bytes that this rank takes from the wire, without headers."""
    site: Site
    """The line that called the group; it may lie inside labkit, such as collectives/ring.py."""
    origin: Site
    """The innermost line outside labkit and torch: the reader's own."""
    posted_s: float
    waited_s: float | None
    done_s: float | None
    failed: bool
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """Rows that an all_to_all sends to, and receives from, each member."""
    callers: tuple[Site, ...] = ()
    """The reader's lines that led to `origin`, out to the function that runs on the rank."""
    label: str | None = None
    """The name that the program gave it with `Group.label`, or None."""
    medium: str = NETWORK
    """How the data travels: over `the network`, or through `shared memory` with no byte sent."""
    in_background: bool = False
    """A thread other than the program's main one has posted it, and blocks on it."""
    completed_s: float | None = None

    @property
    def call_chain(self) -> tuple[str, ...]:
        """The reader's calls that led here, as they read, the innermost first."""
        return (self.origin.description, *(site.description for site in self.callers))

    @property
    def is_internal(self) -> bool:
        """True if labkit or torch posted it, on behalf of another call that the reader has written.

        False where code in between only passes on the reader's own `group.send(x, 1)`.
        """
        text = self.origin.text
        is_own = any(f".{call}(" in text for call in (self.kind, f"i{self.kind}"))
        return self.site != self.origin and bool(text) and not is_own

    @property
    def is_collective(self) -> bool:
        """All members of the group take part, not only two."""
        return self.kind not in P2P_KINDS

    @property
    def is_waited_for(self) -> bool:
        """Its rank blocks on it: the rank began to wait, and has neither a result nor an error."""
        return self.waited_s is not None and self.done_s is None

    @property
    def name(self) -> str:
        """The name in a report: `all_reduce #4`, `send #1 to rank 2`."""
        if self.kind == "send":
            return f"send #{self.sequence} to rank {self.peer}"
        if self.kind == "recv":
            return f"recv #{self.sequence} from rank {self.peer}"
        return f"{self.kind} #{self.sequence}"

    def shifted(self, zero_s: float) -> "Operation":
        """The same operation on a clock that reads 0 at `zero_s`."""
        return dataclasses.replace(
            self,
            posted_s=self.posted_s - zero_s,
            waited_s=None if self.waited_s is None else self.waited_s - zero_s,
            done_s=None if self.done_s is None else self.done_s - zero_s,
            completed_s=None if self.completed_s is None else self.completed_s - zero_s,
        )


@dataclass(frozen=True, slots=True)
class Region:
    """A named span of a rank's own work, from `with group.region(name)`.

    `end_s` is None where the rank never left the region.
    """

    name: str
    start_s: float
    end_s: float | None

    def shifted(self, zero_s: float) -> "Region":
        """The same region on a clock that reads 0 at `zero_s`."""
        end_s = None if self.end_s is None else self.end_s - zero_s
        return Region(self.name, self.start_s - zero_s, end_s)


@dataclass(slots=True)
class Timeline:
    """One rank's journal: everything it communicated and computed, in order of posting."""

    operations: list[Operation] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    start_s: float = 0.0
    end_s: float = 0.0

    def within(self, region: str) -> list[Operation]:
        """Return the operations that began within the first region of this name.

        ValueError if there is none that has ended.
        """
        for each in self.regions:
            if each.name == region and each.end_s is not None:
                end_s = each.end_s
                return [op for op in self.operations if each.start_s <= op.posted_s <= end_s]
        raise ValueError(
            f"no region {region!r} that has ended; name one: with world.region({region!r})"
        )

    def shifted(self, zero_s: float) -> "Timeline":
        """The same timeline on a clock that reads 0 at `zero_s`."""
        return Timeline(
            [operation.shifted(zero_s) for operation in self.operations],
            [region.shifted(zero_s) for region in self.regions],
            self.start_s - zero_s,
            self.end_s - zero_s,
        )


Place = Callable[[Site], str]
"""How a line is shown: `cell 7, line 12` in a notebook, `train.py:12` elsewhere."""


def listed(words: Sequence[str]) -> str:
    """Join texts: `a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def ranks_named(ranks: Iterable[int]) -> str:
    """Name ranks: `rank 1`, or `ranks 0, 2 and 3`."""
    numbers = [str(rank) for rank in ranks]
    return f"rank{'s' if len(numbers) > 1 else ''} {listed(numbers)}"


_PLURALS = {"has": "have", "was": "were", "is": "are", "passes": "pass"}


def verb(many: Sequence[object], one: str) -> str:
    """Return the form of a verb that fits the number of its subjects: `waits`, or `wait`."""
    return one if len(many) == 1 else _PLURALS.get(one, one.removesuffix("s"))


_LONGEST = 60


def shortened(text: str) -> str:
    """Cut a text to the length of a report's line."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def named(operation: Operation) -> str:
    """Name an operation: `all_reduce #4`, `send #1 of group pair to rank 2`."""
    if operation.group_name in ("world", ""):
        return operation.name
    is_torchs = operation.group_name.startswith("torch.distributed")
    which = f"{operation.kind} #{operation.sequence}"
    group = f"{'' if is_torchs else 'group '}{operation.group_name}"
    return f"{which} of {group}{operation.name.removeprefix(which)}"


def known_as(operation: Operation) -> str:
    """Name an operation as `named` does; a message of labkit's by the reader's call, `model(x)`."""
    if operation.is_internal and not operation.is_collective:
        return shortened(operation.origin.text)
    return named(operation)


def purpose(operation: Operation) -> str:
    """Return the label of an operation to go before a place, `weights of 0; `, or an empty text."""
    return f"{operation.label}; " if operation.label and operation.is_internal else ""


def places(operations: Iterable[Operation], place: Place) -> str:
    """Name the reader's own lines, each once: `cell 7, line 3 and cell 7, line 9`."""
    return listed(list(dict.fromkeys(place(operation.origin) for operation in operations)))
