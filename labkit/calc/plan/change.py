"""The smallest change with which a layout fits: recomputed each time, never guessed.

As memory/fit.py orders single knobs by what they cost, on the same GPUs and with the same batch:
what one axis gains, dp loses. Where no single change is enough, two are tried, and then
three, each pair in the same order; the first that no rule refuses and that fits is it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from labkit.calc.layout import Layout
from labkit.calc.plan.job import Job
from labkit.calc.plan.judging import Verdict, verdict

STEPS: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("zero", (1,), "nothing: as many bytes on the wire as an all-reduce"),
    ("sequence_parallel", (True,), "two more all-gathers per block in backward, which overlap"),
    ("recompute", ("selective",), "attention's scores again: a few percent; nothing with flash"),
    ("zero", (2,), "gradients are reduced in every microbatch"),
    ("microbatch", (8, 4, 2, 1), "smaller products of matrices, and more of them"),
    ("ep", (2, 4, 8, 16, 32, 64), "all-to-alls of more of the tokens"),
    ("tp", (2, 4, 8), "collectives in every layer, of more ranks"),
    ("pp", (2, 4, 8, 16, 32, 64), "a larger bubble"),
    ("cp", (2, 4, 8, 16), "keys and values travel a ring"),
    ("zero", (3,), "parameters are gathered for every microbatch, forward and backward"),
    ("recompute", ("full",), "a second forward pass: a third more computing"),
)
"""(knob, values, what it costs), cheapest first."""
_RECOMPUTE = ("none", "selective", "full")
_MOST_KNOBS = 3


@dataclass(frozen=True)
class LayoutChange:
    """Knobs that are moved, each with what it was and is, and what that costs."""

    moved: dict[str, tuple[Any, Any]]
    costs: tuple[str, ...]
    verdict: Verdict
    """With the change; it fits."""

    @property
    def layout(self) -> Layout:
        """With the change."""
        return self.verdict.layout

    def __str__(self) -> str:
        said = [
            f"{knob.replace('_', ' ')}: {was} -> {now}" for knob, (was, now) in self.moved.items()
        ]
        return f"{', '.join(said)} ({'; '.join(self.costs)}): {self.verdict.memory}"


def smallest_change(job: Job, layout: Layout) -> LayoutChange | None:
    """The cheapest change on the same GPUs. None: none of up to three knobs is enough.

    ValueError where it fits already: there is nothing to change.
    """
    before = verdict(job, layout)
    if before:
        raise ValueError(f"it fits: {before.memory}; nothing has to change")
    for num in range(1, _MOST_KNOBS + 1):
        for moves in _moves(layout, num):
            changed = {knob: value for knob, value, _ in moves}
            try:
                found = verdict(job, replace(layout, **changed))
            except ValueError:  # more ranks than there are, or ep that no longer divides dp
                continue
            if found:
                moved = {knob: (getattr(layout, knob), value) for knob, value in changed.items()}
                return LayoutChange(moved, tuple(cost for *_, cost in moves), found)
    return None


def _moves(layout: Layout, num: int) -> Iterator[tuple[tuple[str, Any, str], ...]]:
    """All ways to move `num` knobs, cheapest first."""
    for steps in combinations(STEPS, num):
        if len({knob for knob, *_ in steps}) < num:
            continue
        choices = [
            [(knob, value, costs) for value in values if _is_a_step(layout, knob, value)]
            for knob, values, costs in steps
        ]
        yield from product(*choices)


def _is_a_step(layout: Layout, knob: str, value: Any) -> bool:
    """Whether a value saves more than the present one."""
    now = getattr(layout, knob)
    if knob == "recompute":
        return _RECOMPUTE.index(value) > _RECOMPUTE.index(now)
    if knob == "sequence_parallel":
        return not now and layout.tp > 1
    return bool(value < now if knob == "microbatch" else value > now)
