"""The cheapest change, or several changes, with which a training fits into memory.

`STEPS` orders changes by cost: free ones first, then those that send more bytes, then those that
compute more, then more GPUs, of which tensor parallelism needs the fastest links. The order is a
judgement; a cluster may have another. Another model, another recipe or shorter sequences are never
proposed, because they change what is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from labkit import arguments
from labkit.calc.memory.activations import RECOMPUTE
from labkit.calc.memory.footprint import TrainingSetup, check_setup, footprint
from labkit.calc.result import Result, number_of

STEPS: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("flash", (True,), "nothing: exact, and faster"),
    ("zero", (1,), "nothing: as many bytes on the wire as an all-reduce"),
    (
        "sequence_parallel",
        (True,),
        "two more all-gathers per block in backward, which overlap: a quarter more of tensor "
        "parallelism's bytes",
    ),
    ("recompute", ("selective",), "attention's scores again: a few percent"),
    ("zero", (2,), "gradients are reduced in every microbatch"),
    ("microbatch", (64, 32, 16, 8, 4, 2, 1), "smaller products of matrices, and more of them"),
    (
        "zero",
        (3,),
        "3 times the parameters on the wire for each microbatch, where zero 1 has 2 for all",
    ),
    ("recompute", ("full",), "a second forward pass: a third more computing"),
    ("dp", (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), "more GPUs, and a larger batch"),
    ("tp", (2, 4, 8), "more GPUs, and all-reduces in every layer: fast links only"),
    ("pp", (2, 4, 8, 16, 32, 64), "more GPUs, and a bubble: many microbatches"),
)
"""(knob, values, its cost), cheapest first; each value of a knob saves more than the one before."""

_MOST_SHARDED = 3


@dataclass(frozen=True)
class Change:
    """A change of one knob."""

    knob: str
    before: Any
    after: Any
    costs: str
    setup: TrainingSetup
    """The setup after the change."""
    footprint: Result
    """Memory of the fullest GPU after the change."""

    def __str__(self) -> str:
        how = "on" if self.after is True else f"{self.before} -> {self.after}"
        return f"{self.knob.replace('_', ' ')}: {how}"


def smallest_change(setup: TrainingSetup, capacity: float | Result) -> Change | None:
    """Return the cheapest single change with which the fullest GPU has room. None: there is none.

    ValueError if the setup fits already; TypeError for anything but a TrainingSetup.
    """
    check_setup(setup)
    room = _capacity(capacity)
    if footprint(setup) <= room:
        raise ValueError(f"it fits: {footprint(setup)} of {_text(room)}; nothing has to change")
    return next((each for each in _changes(setup) if each.footprint <= room), None)


def changes_that_fit(setup: TrainingSetup, capacity: float | Result) -> list[Change]:
    """Return several changes after which the setup fits, cheapest first; [] if all are not enough.

    Changes that save anything are added until the setup fits; more ranks also with a higher level
    of ZeRO. Then changes that turned out unnecessary are dropped, the costliest first. `setup` and
    `footprint` of a change include those before it. TypeError for anything but a TrainingSetup.
    """
    check_setup(setup)
    room, current = _capacity(capacity), setup
    while footprint(current) > room:
        smaller = _smaller(current)
        if smaller is None:
            return []
        current = smaller
    for knob, _, _ in reversed(STEPS):
        current = _moved_back(setup, current, knob, room)
    return _separate_changes(setup, current)


def _changes(setup: TrainingSetup) -> Iterator[Change]:
    """Yield every possible single change, cheapest first."""
    for knob, values, costs in STEPS:
        before = getattr(setup, knob)
        for value in values:
            if not _is_a_step(knob, before, value):
                continue
            try:
                changed = replace(setup, **{knob: value})
                yield Change(knob, before, value, costs, changed, footprint(changed))
            except ValueError:  # heads that cannot be split evenly, more stages than layers
                continue


def _smaller(setup: TrainingSetup) -> TrainingSetup | None:
    """Return the setup after the cheapest change that saves anything. None: there is none.

    On one rank ZeRO shards nothing, and more ranks without ZeRO save nothing. So a number of ranks
    is also tried with each higher level, at the place of the ranks in the order.
    """
    held = footprint(setup)
    for change in _changes(setup):
        level = change.setup.zero
        for zero in range(level, _MOST_SHARDED + 1) if change.knob == "dp" else (level,):
            tried = replace(change.setup, zero=zero)
            if footprint(tried) < held:
                return tried
    return None


def _is_a_step(knob: str, before: Any, value: Any) -> bool:
    """Return whether a value saves more than the present one."""
    if knob == "recompute":
        return RECOMPUTE.index(value) > RECOMPUTE.index(before)
    return bool(value < before if knob == "microbatch" else value > before)


def _moved_back(
    setup: TrainingSetup, current: TrainingSetup, knob: str, room: float
) -> TrainingSetup:
    """Return `current` with the knob moved as little as still fits."""
    before, now = getattr(setup, knob), getattr(current, knob)
    of_knob = [value for name, values, _ in STEPS if name == knob for value in values]
    for value in (before, *(each for each in of_knob if _is_a_step(knob, before, each))):
        if value == now:
            break
        try:
            tried = replace(current, **{knob: value})
            if footprint(tried) <= room:
                return tried
        except ValueError:
            continue
    return current


def _separate_changes(setup: TrainingSetup, changed: TrainingSetup) -> list[Change]:
    found, current = [], setup
    for knob, values, costs in STEPS:
        before, after = getattr(setup, knob), getattr(changed, knob)
        if before != after and after in values:
            current = replace(current, **{knob: after})
            found.append(Change(knob, before, after, costs, current, footprint(current)))
    return found


_LEAST_CAPACITY = 1e6
"""Bytes. Less is a number of gigabytes."""


def _capacity(capacity: float | Result) -> float:
    room = number_of(capacity, "capacity", "bytes")
    arguments.number(
        "capacity", room, "a device has memory, in bytes: 80e9 for 80 GB", least=_LEAST_CAPACITY
    )
    return room


def _text(nbytes: float) -> str:
    return str(Result(nbytes, "bytes"))
