"""What the ranks that share a model's states take of a step: reduces, gathers, the optimizer.

    zero   reduce, times K_g N    gather, times K_p N      N parameters of a stage on one GPU
    0      2, once a step         -
    1      1, once a step         1, once a step
    2      1 per microbatch       1, once a step           interleaved: 1 per round of p
    3      1 per microbatch       2 per microbatch         1 in forward, 1 in backward

An interleaved schedule does a round of p microbatches on one stage before it goes to another, so
zero 2 may add up the gradients of that one stage. Collectives go layer by layer, experts apart.

Exposed: less what hides, `overlap` of it, and no more than there is to hide behind. What is once a
step is after the last backward of a stage, or before its first forward: exposed_seconds. What is in
every microbatch makes the stage's forward and backward longer, and with them the bubble:
in_each_microbatch. optimizer: reads and writes of states, by the GPU's memory bandwidth.
Paper: Rajbhandari et al., arXiv:1910.02054, section 7, for one microbatch.
"""

from __future__ import annotations

from labkit.calc.layout import Layout
from labkit.calc.plan.job import Job
from labkit.calc.plan.links import half_seconds, span_of
from labkit.calc.plan.parameters_by_rank import Held, held_by_ranks, held_by_stage

Pair = tuple[float, float]


def reduces_of_zero2(layout: Layout, num_microbatches: int) -> int:
    """How often zero 2 reduces a gradient in a step."""
    return num_microbatches // layout.pp if layout.virtual > 1 else num_microbatches


def once_a_step(job: Job, layout: Layout) -> list[Pair]:
    """By stage: seconds of its (reduce, gather) that are done once in a step, whole."""
    times = {0: (2, 0), 1: (1, 1), 2: (0, 1), 3: (0, 0)}[layout.zero]
    return [(times[0] * r, times[1] * g) for r, g in _halves(job, layout)]


def in_each_microbatch(job: Job, layout: Layout, computing: list[Pair]) -> list[Pair]:
    """By stage: exposed seconds of reduces and gathers in a microbatch's (forward, backward).

    computing: by stage, (forward, backward) of a microbatch, behind which they may hide.
    """
    if layout.zero < 2:
        return [(0.0, 0.0)] * len(computing)
    every = layout.pp if layout.zero == 2 and layout.virtual > 1 else 1
    pairs = list(zip(_halves(job, layout), computing, strict=True))
    exposed = {pair: _in_one(job, layout.zero, every, *pair) for pair in set(pairs)}
    return [exposed[pair] for pair in pairs]


def _in_one(job: Job, zero: int, every: int, halves: Pair, computing: Pair) -> Pair:
    reduce_s, gather_s = halves
    gathered = gather_s if zero == 3 else 0.0
    back = reduce_s / every + gathered
    overlap, (forward, backward) = job.assumptions.overlap, computing
    return gathered - min(overlap * gathered, forward), back - min(overlap * back, backward)


def exposed_seconds(job: Job, once: Pair, computing: Pair) -> float:
    """Of (reduce, gather) once a step, of a rank with (forward, backward) of computing."""
    (reduce_s, gather_s), (forward, backward) = once, computing
    overlap = job.assumptions.overlap
    left = reduce_s - min(overlap * reduce_s, backward)
    return left + gather_s - min(overlap * gather_s, forward)


def optimizer_seconds(job: Job, layout: Layout) -> float:
    """States are read and written, gradients read, parameters written: of the largest share."""
    shards = layout.dp * layout.cp if layout.zero else 1
    kept = job.kept
    size = 2 * kept.optimizer_bytes + kept.gradient_bytes + kept.parameter_bytes
    share = max(
        held.others / shards + held.experts / max(1, shards // layout.ep)
        for held in held_by_ranks(job.config, layout)
    )
    return share * size / job.device.memory_bytes_per_s


def _halves(job: Job, layout: Layout) -> list[Pair]:
    """By stage: seconds of (one reduce-scatter of its gradients, one all-gather of parameters)."""
    stages = held_by_stage(job.config, layout)
    if layout.dp * layout.cp == 1:
        return [(0.0, 0.0)] * len(stages)
    units = max(1, job.config.layers // len(stages))
    sizes = (job.kept.gradient_bytes, job.kept.cast_bytes or job.kept.parameter_bytes)
    kinds = set(stages)  # few stages differ from each other
    reduces, gathers = (
        {held: _half(job, layout, held, size, units) for held in kinds} for size in sizes
    )
    return [(reduces[held], gathers[held]) for held in stages]


def _half(job: Job, layout: Layout, held: Held, size: float, units: int) -> float:
    axes = ("dp", "cp") if layout.cp > 1 else ("dp",)
    one = units * half_seconds(job, size * held.others / units, span_of(job, layout, *axes))
    if held.experts:
        where = span_of(job, layout, *axes, every=layout.ep)
        one += units * half_seconds(job, size * held.experts / units, where)
    return one
