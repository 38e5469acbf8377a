"""All layouts of a job: the feasible ones by seconds of a step, and why the others lost.

    found = plan.plan(plan.Job("llama3-70b", "megatron_bf16", calc.cluster("h100", 512), 1024))
    print(found)                 a table, the fastest first, and the losers by reason
    found.best.explain()         every number of the first
    plan.losers[0].nearest[0]    the one that missed least: its verdict

One row for each (dp, tp, pp, cp, ep): the fastest of its variants (virtual, zero, recompute,
microbatch). Losers are counted before that, each variant for itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from heapq import nsmallest

from labkit.calc.checked_numbers import check_ranks
from labkit.calc.layout import Layout
from labkit.calc.plan.change import LayoutChange, smallest_change
from labkit.calc.plan.enumeration import layouts
from labkit.calc.plan.estimation import Estimate, estimate
from labkit.calc.plan.gpu_memory import fullest
from labkit.calc.plan.job import Job
from labkit.calc.plan.judging import Verdict, verdict
from labkit.calc.plan.planned_step import step_parts
from labkit.calc.plan.rules import refusal
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
    """Those with the fewest bytes too many; of a rule, the first ones."""

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
    """What is feasible, ranked, and what is not. `count`: of layouts looked at."""

    job: Job
    ranked: tuple[Estimate, ...]
    losers: tuple[Losers, ...]
    """Most first."""
    count: int
    num_feasible: int

    @property
    def best(self) -> Estimate:
        """The fastest. ValueError where nothing fits, with the nearest miss and what would help."""
        if not self.ranked:
            raise ValueError(f"{self.job.title}: nothing fits\n{self.help}")
        return self.ranked[0]

    @property
    def nearest_miss(self) -> Verdict | None:
        """Of those that only lack memory, the one that lacks least. None: there is none."""
        missed = [each for group in self.losers for each in group.nearest if each.memory]
        return min(missed, key=lambda each: each.over_bytes, default=None)

    @property
    def help(self) -> str:
        """Of a plan in which nothing fits: the nearest miss, and what would help it."""
        miss = self.nearest_miss
        if miss is None:
            return "\n".join(map(str, self.losers))
        change: LayoutChange | None = smallest_change(self.job, miss.layout)
        return f"{miss}\n    what would help: {change or 'more GPUs, or GPUs with more memory'}"

    def rows(self) -> list[dict[str, str]]:
        """The table, a row for each layout, by heading."""
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
        """How many there are."""
        return f"{self.count:,} layouts, {self.num_feasible:,} of them feasible"


def plan(job: Job, top: int = 10) -> Plan:
    """Every layout of `layouts(job)`, judged; the `top` fastest estimated in full.

    TypeError for what is no Job.
    """
    if not isinstance(job, Job):
        raise TypeError(f"job={job!r:.60}: give a Job(model, recipe, cluster, global_batch)")
    top = check_ranks(top, "top")
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
    """("", 0) for one that fits; else why not, and by how many bytes."""
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
