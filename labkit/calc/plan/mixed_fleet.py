"""One job on GPUs of several kinds: seconds of a step with equal shares, and with shares by speed.

    kind        replicas             microbatches      seconds of a step
    h100        dp_1 = n_1/(tp pp)   m_1 each          fixed_1 + m_1 R_1  -+
    a100        dp_2 = n_2/(tp pp)   m_2 each          fixed_2 + m_2 R_2  -+->  the largest counts

    equal       m_1 = m_2
    by speed    as many for each kind as make the largest smallest, in whole microbatches

All replicas have the same layout, and each replica has GPUs of one kind: tensor parallelism waits
in every layer, and a pipeline in every microbatch. Data parallelism waits once a step. So dp is the
axis along which kinds differ.
A replica's step is that of `estimate` on a cluster of all these GPUs, if all were of its kind. Each
kind has its own links inside nodes. Between nodes, the slowest kind's links count for all kinds. A
layout has to fit the smallest memory.
Paper: Um et al., "Metis", USENIX ATC 2024, for planners that also cut layers unequally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from labkit.calc.hardware import Cluster, Tier, cluster
from labkit.calc.layout import Layout
from labkit.calc.plan.estimation import estimate, verdict
from labkit.calc.plan.job import Job
from labkit.calc.plan.ranking import plan
from labkit.calc.result import Result

_LAYOUTS = 20
"""Layouts of each kind that are tried for the mix, the fastest of it alone."""


@dataclass(frozen=True)
class FleetStep:
    """A step of the job on some or all of the GPUs."""

    way: str
    """"equal shares", "shares by speed", or "h100 alone"."""
    layout: Layout
    step: Result
    """Seconds."""
    microbatches: dict[str, int]
    """By kind: of a replica; the last replicas of a kind may have fewer."""
    busy: dict[str, float]
    """By kind: the share of the step in which its slowest replica is not waiting."""
    tokens_per_s: float
    dollars_per_million_tokens: float
    """At the prices of the clusters, which are assumptions."""

    def row(self) -> dict[str, str]:
        """Return a row of a table."""
        return {
            "": self.way,
            "layout": str(self.layout),
            "microbatches": ", ".join(f"{k} {m}" for k, m in self.microbatches.items()),
            "step": str(self.step),
            "busy": ", ".join(f"{k} {share:.0%}" for k, share in self.busy.items()),
            "tokens/s": f"{self.tokens_per_s:,.0f}",
            "$ per million tokens": f"{self.dollars_per_million_tokens:.3f}",
        }


def mixed_fleet(
    job: Job, also: Sequence[Cluster | str], layout: Layout | None = None
) -> list[FleetStep]:
    """Return the step on all GPUs, with equal shares and by speed, and on each kind alone.

    job: with the first kind as its cluster. also: clusters of the other kinds, by name for all
    their GPUs. layout: of all GPUs; None: the one that is fastest by speed and fits every kind.
    A kind that cannot hold the job alone has no row.
    ValueError if a kind is named twice, if no layout fits all kinds, and for a layout that cuts
    replicas across kinds.
    """
    kinds = _with_joint_links([job.machines, *map(cluster, also)])
    jobs = {each.device.name: replace(job, cluster=each) for each in kinds}
    if len(jobs) < len(kinds):
        raise ValueError(
            f"also={[each.device.name for each in kinds[1:]]}: each kind of GPU once, beside "
            f"{job.device.name}"
        )
    whole = _whole(jobs)
    if layout is None:
        found = {each.layout for one in whole.values() for each in plan(one, _LAYOUTS).ranked}
        layouts = [each for each in found if not _trouble(jobs, whole, each)]
        if not layouts:
            raise ValueError(
                f"no layout fits all of {', '.join(jobs)}: the smallest memory decides, and "
                "replicas have GPUs of one kind; plan each kind alone, with calc.plan.plan"
            )
    elif trouble := _trouble(jobs, whole, layout):
        raise ValueError(trouble)
    else:
        layouts = [layout]
    by_speed = [
        _step("shares by speed", jobs, whole, each, _by_speed(jobs, whole, each))
        for each in layouts
    ]
    best = min(by_speed, key=lambda each: (float(each.step), str(each.layout)))
    equal = dict.fromkeys(jobs, _rounds(job, best.layout))
    rows = [_step("equal shares", jobs, whole, best.layout, equal), best]
    for name, job in jobs.items():
        if ranked := plan(job, 1).ranked:
            one, first = {name: job}, ranked[0].layout
            count = {name: first.num_microbatches(job.global_batch)}
            rows.append(_step(f"{name} alone", one, one, first, count))
    return rows


def _with_joint_links(kinds: list[Cluster]) -> list[Cluster]:
    """Give all kinds the slowest links between nodes."""
    slow = Tier(
        min(each.slow.bandwidth_bytes_per_s for each in kinds),
        max(each.slow.latency_s for each in kinds),
    )
    return [replace(each, slow=slow) for each in kinds]


def _whole(jobs: dict[str, Job]) -> dict[str, Job]:
    """Return the job on as many GPUs as there are in all, once for each kind.

    Shares may be unequal, so the replicas need not divide the batch: it is rounded up here.
    """
    num = sum(one.num_gpus for one in jobs.values())
    return {
        name: replace(
            one,
            cluster=replace(one.machines, num_gpus=num),
            global_batch=-(-one.global_batch // num) * num,
        )
        for name, one in jobs.items()
    }


def _trouble(jobs: dict[str, Job], whole: dict[str, Job], layout: Layout) -> str:
    """Return why a layout does not work for these kinds, or ""."""
    replica = layout.world_size // layout.dp * layout.ep
    for name, one in jobs.items():
        if one.num_gpus % replica:
            return (
                f"{layout}: {one.num_gpus} {name} make no whole number of replicas of {replica} "
                "GPUs, and a replica has GPUs of one kind; give tp, pp, cp and ep that divide them"
            )
        judged = verdict(whole[name], layout)
        if not judged:
            return f"{layout} on {name}: {judged.reason}"
    return ""


def _rounds(job: Job, layout: Layout) -> int:
    """Return the microbatches of each replica if all have equally many, rounded up."""
    unit, each = _unit(layout), layout.dp * layout.microbatch
    return -(-job.global_batch // (each * unit)) * unit


def _unit(layout: Layout) -> int:
    """Return the number of which microbatches are a multiple: interleaved stages take rounds."""
    return layout.pp if layout.virtual > 1 else 1


def _seconds(job: Job, layout: Layout, microbatches: int) -> float:
    """Return seconds of a step in which each replica of the job has so many microbatches."""
    batch = microbatches * layout.dp * layout.microbatch
    return float(estimate(replace(job, global_batch=batch), layout).step)


def _by_speed(jobs: dict[str, Job], whole: dict[str, Job], layout: Layout) -> dict[str, int]:
    """Return the microbatches of a replica of each kind: each goes where it is finished first."""
    unit, p = _unit(layout), layout.pp
    fixed, each_s = {}, {}
    for name, one in whole.items():  # exact at multiples of p, within a send between them
        two, four = (_seconds(one, layout, k * p) for k in (2, 4))
        each_s[name] = (four - two) / (2 * p)
        fixed[name] = two - 2 * p * each_s[name]
    replicas = {name: one.num_gpus * layout.dp // layout.world_size for name, one in jobs.items()}
    counts = dict.fromkeys(jobs, 0)
    wanted = -(-next(iter(jobs.values())).global_batch // layout.microbatch)
    while sum(replicas[name] * count for name, count in counts.items()) < wanted:
        first = min(counts, key=lambda name: fixed[name] + (counts[name] + unit) * each_s[name])
        counts[first] += unit
    return counts


def _step(
    way: str,
    jobs: dict[str, Job],
    whole: dict[str, Job],
    layout: Layout,
    counts: dict[str, int],
) -> FleetStep:
    """Return the step in which replicas of each kind have these numbers of microbatches."""
    taken = {n: _seconds(whole[n], layout, count) if count else 0.0 for n, count in counts.items()}
    slowest = max(taken, key=lambda name: taken[name])
    tokens_per_s = next(iter(jobs.values())).tokens_per_step / taken[slowest]
    dollars_per_s = sum(
        one.num_gpus * one.machines.dollars_per_gpu_hour / 3600 for one in jobs.values()
    )
    step = Result(
        taken[slowest],
        "seconds",
        f"seconds of a step, {way}",
        "the largest of the kinds' steps",
        ", ".join(f"{name} {seconds:.4g} s" for name, seconds in taken.items()),
        source="labkit.calc.plan.estimation, for each kind",
    )
    busy = {name: seconds / taken[slowest] for name, seconds in taken.items()}
    return FleetStep(
        way, layout, step, counts, busy, tokens_per_s, dollars_per_s / tokens_per_s * 1e6
    )
