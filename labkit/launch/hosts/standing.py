"""Where a rank of a job under torchrun stands, as a note to the other hosts.

What the doctor asks of a rank (doctor/waiting.py), as JSON, since it comes over a network. Of a
long journal go its last operations, whatever it still waits for, and of what came before, the last
of each kind: they say how far it has come.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.comm import Operation, Timeline
from labkit.comm.recorded import Recorded
from labkit.doctor.halt import Halt
from labkit.doctor.stacks import Stack
from labkit.doctor.stage import Stage
from labkit.doctor.waiting import View
from labkit.launch.hosts import packing
from labkit.launch.saved import timeline_json, typed_json

_RECENT = 1000
_MOST_BYTES = 64 * 2**20
_TIMELINES = ("operations", "of_torch")


@dataclass(frozen=True)
class Standing:
    """A View, and which look at the rank it comes from."""

    look: int
    """From 1; a later note of the same rank has a larger number."""
    stage: Stage
    operations: Timeline
    of_torch: Timeline
    enqueued: list[tuple[str, int]]
    is_idle: bool
    has_answered: bool
    awaited: int | None
    has_handlers: bool
    stack: Stack
    halt: Halt | None = None

    @classmethod
    def of(cls, look: int, view: View) -> Standing:
        """What goes into the note."""
        return cls(
            look,
            view.stage,
            Timeline(telling(view.operations)),
            Timeline(list(view.recorded.operations[-_RECENT:])),
            list(view.recorded.enqueued.items()),
            view.recorded.is_idle,
            view.recorded.is_known,
            _from_the_end(view.recorded.awaited, len(view.recorded.operations)),
            view.recorded.has_handlers,
            view.stack,
            view.halt,
        )

    @property
    def view(self) -> View:
        """For the doctor."""
        recorded = Recorded(
            self.of_torch.operations,
            dict(self.enqueued),
            self.is_idle,
            self.has_answered,
            self.awaited,
            self.has_handlers,
        )
        return View(self.stage, self.operations.operations, recorded, self.stack, self.halt)

    @property
    def is_final(self) -> bool:
        """Whether it will stay so: the function is over, and nothing of it is left at work."""
        has_told = self.stack.is_known or self.stage is Stage.DIED
        return self.stage.is_over and has_told and not self.view.has_others_at_work

    def as_bytes(self) -> bytes:
        """Packed JSON."""
        data: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        data.update({name: timeline_json.encode(data[name]) for name in _TIMELINES})
        data["stage"], data["stack"] = self.stage.value, dataclasses.asdict(self.stack)
        data["halt"] = None if self.halt is None else dataclasses.asdict(self.halt)
        return packing.packed(json.dumps(data).encode())

    @classmethod
    def from_bytes(cls, note: bytes) -> Standing:
        """The note again. ValueError, with the reason, for anything else."""
        data = typed_json.parsed(packing.unpacked(note, _MOST_BYTES))
        if not isinstance(data, dict):
            raise ValueError("it is no note of labkit's")
        data.update({name: timeline_json.decode(data.get(name)) for name in _TIMELINES})
        standing: Standing = typed_json.fitted(cls, data)
        return standing


def telling(operations: Sequence[Operation]) -> list[Operation]:
    """Those of a journal that say where its rank is, and what it has posted, in their order."""
    before, recent = operations[:-_RECENT], operations[-_RECENT:]
    last_of = {_kind(operation): number for number, operation in enumerate(before)}
    kept = {*last_of.values()}
    kept |= {number for number, each in enumerate(before) if each.is_waited_for}
    return [*(before[number] for number in sorted(kept)), *recent]


def _kind(operation: Operation) -> tuple[object, ...]:
    """Operations of which the n-th belongs to the others' n-th: they are counted in one row."""
    if operation.is_collective:
        return (operation.group_name,)
    return (operation.group_name, operation.kind, operation.peer)


def _from_the_end(number: int | None, length: int) -> int | None:
    """The place of an operation among the last _RECENT ones; None where it is not among them."""
    if number is None or number < length - _RECENT:
        return None
    return number - max(length - _RECENT, 0)
