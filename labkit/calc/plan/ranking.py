"""All layouts of a job: the feasible ones ranked by seconds of a step, and why the others lost.

    found = plan.plan(plan.Job("llama3-70b", "megatron_bf16", calc.cluster("h100", 512), 1024))
    print(found)                 a table, the fastest first, and the losers by reason
    found.best.explain()         every number of the first
    plan.losers[0].nearest[0]    the verdict of the one that missed least

One row for each (dp, tp, pp, cp, ep): the fastest of its variants (virtual, zero, recompute,
microbatch). Losers are counted before that, each variant for itself.

`smallest_change` is the smallest change with which a layout fits, recomputed each time. It orders
single knobs by cost, like memory/fit.py, on the same GPUs and with the same batch: ranks that one
axis gains, dp loses. If no single change is enough, it tries two and then three, in the same order,
and takes the first that no rule refuses and that fits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import combinations, product
from typing import Any

from labkit import arguments
from labkit.calc.layout import RECOMPUTE, Layout
from labkit.calc.plan.estimation import Estimate, Verdict, estimate, verdict
from labkit.calc.plan.gpu_memory import fullest
from labkit.calc.plan.job import Job
from labkit.calc.plan.layout_rules import layouts, refusal
from labkit.calc.plan.planned_step import step_parts
from labkit.calc.units import bytes_text, seconds_text

_NEAREST = 3
_OF_MEMORY = "memory: "


@dataclass(frozen=True)
class Losers:
    """Layouts that lost for one reason."""

    reason: str
    """A rule's title, or "memory: " and the part that is largest."""
    count: int
    nearest: tuple[Verdict, ...]
    """The layouts that lack the fewest bytes; for a rule, the first ones."""

    def __str__(self) -> str:
        text = f"{self.count:>7,}  {self.reason}"
        if not self.nearest:
            return text
        first = self.nearest[0]
        if first.refused is not None:
            return f"{text}; such as {first.refused.reason}"
        return f"{text}; least with {first.layout}: {bytes_text(first.over_bytes)} too many"


@dataclass(frozen=True)
class Plan:
    """The feasible layouts, ranked, and the others by reason. `count`: layouts that were judged."""

    job: Job
    ranked: tuple[Estimate, ...]
    losers: tuple[Losers, ...]
    """Most first."""
    count: int
    num_feasible: int

    @property
    def best(self) -> Estimate:
        """The fastest layout. ValueError if nothing fits, with the nearest miss and what would
        help."""
        if not self.ranked:
            raise ValueError(f"{self.job.title}: nothing fits\n{self.help}")
        return self.ranked[0]

    @property
    def nearest_miss(self) -> Verdict | None:
        """The layout that lacks the fewest bytes. None: no layout is refused for its memory
        alone."""
        missed = [each for group in self.losers for each in group.nearest if each.memory]
        return min(missed, key=lambda each: each.over_bytes, default=None)

    @property
    def help(self) -> str:
        """Explain a plan in which nothing fits: the nearest miss, and what would help it."""
        miss = self.nearest_miss
        if miss is None:
            return "\n".join(map(str, self.losers))
        change: LayoutChange | None = smallest_change(self.job, miss.layout)
        return f"{miss}\n    what would help: {change or 'more GPUs, or GPUs with more memory'}"

    def rows(self) -> list[dict[str, str]]:
        """Rows of the table, one for each layout, by heading."""
        found = []
        for place, each in enumerate(self.ranked, 1):
            step = float(each.step)
            shares = sorted(each.step.parts.items(), key=lambda item: -float(item[1]))
            lost = ", ".join(
                f"{name} {100 * float(part) / step:.0f}%"
                for name, part in shares
                if name != "compute" and float(part) >= step / 200
            )
            row = {"": str(place), "layout": str(each.layout), "step": seconds_text(step)}
            row |= {"MFU": f"{each.mfu.to('%'):.1f}%", "memory": str(each.memory)}
            if self.job.tokens is not None:
                row |= {"time": str(each.time), "cost": _dollars(float(each.dollars))}
            found.append(row | {"not computing": lost or "-"})
        return found

    def __str__(self) -> str:
        lines = [self.job.title, self.summary, ""]
        rows = self.rows()
        if rows:
            widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
            table = [{name: name for name in widths}, *rows]
            lines += [
                "  ".join(row[name].ljust(width) for name, width in widths.items()).rstrip()
                for row in table
            ]
        else:
            lines += ["nothing fits", self.help]
        return "\n".join([*lines, "", "why others lost", *map(str, self.losers)])

    @property
    def summary(self) -> str:
        """Say how many layouts fit and how many do not."""
        return f"{self.count:,} layouts, {self.num_feasible:,} of them feasible"


def plan(job: Job, top: int = 10) -> Plan:
    """Judge every layout of `layouts(job)`, and estimate the `top` fastest in full.

    TypeError for anything but a Job.
    """
    if not isinstance(job, Job):
        raise TypeError(f"job={job!r:.60}: give a Job(model, recipe, cluster, global_batch)")
    top = arguments.counted("top", top)
    best: dict[tuple[int, ...], tuple[float, Layout]] = {}
    counts: Counter[str] = Counter()
    missed: dict[str, list[tuple[float, int, Layout]]] = defaultdict(list)
    num = num_feasible = 0
    for num, layout in enumerate(layouts(job), 1):
        reason, over = _judged(job, layout)
        if reason:
            counts[reason] += 1
            missed[reason].append((over, num, layout))
            continue
        num_feasible += 1
        seconds = sum(step_parts(job, layout).values())
        shape = (layout.tp, layout.pp, layout.cp, layout.ep)
        if shape not in best or seconds < best[shape][0]:
            best[shape] = (seconds, layout)
    ranked = nsmallest(top, best.values(), key=lambda item: item[0])
    return Plan(
        job,
        tuple(estimate(job, layout) for _, layout in ranked),
        tuple(_losers(job, reason, count, missed) for reason, count in counts.most_common()),
        num,
        num_feasible,
    )


def _judged(job: Job, layout: Layout) -> tuple[str, float]:
    """Return ("", 0) for a layout that fits, else the reason and the bytes that it lacks."""
    refused = refusal(job, layout)
    if refused is not None:
        return refused.title, 0.0
    _, parts = fullest(job, layout)
    over = sum(part.value for part in parts.values()) - job.room_bytes
    if over <= 0:
        return "", 0.0
    return _OF_MEMORY + max(parts, key=lambda name: parts[name].value), over


def _losers(
    job: Job, reason: str, count: int, missed: dict[str, list[tuple[float, int, Layout]]]
) -> Losers:
    nearest = nsmallest(_NEAREST, missed[reason])
    return Losers(reason, count, tuple(verdict(job, layout) for *_, layout in nearest))


def _dollars(amount: float) -> str:
    return f"${amount / 1e6:,.3g}M" if amount >= 1e6 else f"${amount:,.0f}"


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
    ("reshard_after_forward", (True,), "parameters are gathered for every microbatch again"),
)
"""(knob, values, its cost), cheapest first."""
_MOST_KNOBS = 3


@dataclass(frozen=True)
class LayoutChange:
    """A change of knobs, each with its old and new value, and its cost."""

    moved: dict[str, tuple[Any, Any]]
    costs: tuple[str, ...]
    verdict: Verdict
    """Verdict after the change, which fits."""

    @property
    def layout(self) -> Layout:
        """The layout after the change."""
        return self.verdict.layout

    def __str__(self) -> str:
        said = [
            f"{knob.replace('_', ' ')}: {was} -> {now}" for knob, (was, now) in self.moved.items()
        ]
        return f"{', '.join(said)} ({'; '.join(self.costs)}): {self.verdict.memory}"


def smallest_change(job: Job, layout: Layout) -> LayoutChange | None:
    """Return the cheapest change on the same GPUs. None: three knobs are not enough.

    ValueError if the layout fits already.
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
    """Yield all ways to move `num` knobs, cheapest first."""
    for steps in combinations(STEPS, num):
        if len({knob for knob, *_ in steps}) < num:
            continue
        choices = [
            [(knob, value, costs) for value in values if _is_a_step(layout, knob, value)]
            for knob, values, costs in steps
        ]
        yield from product(*choices)


def _is_a_step(layout: Layout, knob: str, value: Any) -> bool:
    """Return whether a value saves more than the present one."""
    now = getattr(layout, knob)
    if knob == "recompute":
        return RECOMPUTE.index(value) > RECOMPUTE.index(now)
    if knob == "sequence_parallel":
        return not now and layout.tp > 1
    if knob == "reshard_after_forward":
        return layout.zero == 3 and not now
    return bool(value < now if knob == "microbatch" else value > now)
