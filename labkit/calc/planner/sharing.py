"""What the ranks that share a model's states take of a step: reduces, gathers, the optimizer.

    zero   reduce, times K_g N    gather, times K_p N      N parameters of a stage on one GPU
    0      2                      -
    1      1                      1
    2      1 per microbatch       1                        interleaved: 1 per round of p
    3      1 per microbatch       2 per microbatch

An interleaved schedule does a round of p microbatches on one stage before it goes to another, so
zero 2 may add up the gradients of that one stage. Collectives go layer by layer, experts apart.

Exposed: less what hides, `overlap` of it, and no more than there is to hide behind, computing of
one microbatch backward (zero 0, 1) and forward (gathers of zero 1, 2), or of the whole step
(reduces of zero 2; zero 3). optimizer: reads and writes of states, by the GPU's memory bandwidth.
Paper: Rajbhandari et al., arXiv:1910.02054, section 7, for one microbatch.
"""

from __future__ import annotations

from labkit.calc.layout import Layout
from labkit.calc.planner.gpu_memory import parameters_of_a_rank
from labkit.calc.planner.job import Job
from labkit.calc.planner.links import half_seconds, span_of

Pair = tuple[float, float]


def reduces_of_zero2(layout: Layout, num_microbatches: int) -> int:
    """How often zero 2 reduces a gradient in a step."""
    return num_microbatches // layout.pp if layout.virtual > 1 else num_microbatches


def sharing_seconds(job: Job, layout: Layout, num: int) -> Pair:
    """(reduce, gather) of a rank's stages together, in a step."""
    if layout.dp * layout.cp == 1:
        return 0.0, 0.0
    rounds = {
        0: (2, 0),
        1: (1, 1),
        2: (reduces_of_zero2(layout, num), 1),
        3: (num, 2 * num),
    }[layout.zero]
    sizes = (job.kept.gradient_bytes, job.kept.cast_bytes or job.kept.parameter_bytes)
    most, experts = parameters_of_a_rank(job, layout)
    units = max(1, job.config.layers // layout.pp)
    axes = ("dp", "cp") if layout.cp > 1 else ("dp",)
    seconds = []
    for times_over, size in zip(rounds, sizes, strict=True):
        one = units * half_seconds(job, size * most / units, span_of(job, layout, *axes))
        if experts:
            where = span_of(job, layout, *axes, every=layout.ep)
            one += units * half_seconds(job, size * experts / units, where)
        seconds.append(times_over * one)
    return seconds[0], seconds[1]


def exposed_seconds(
    job: Job, layout: Layout, exchanged: Pair, num_microbatches: int, computing: Pair
) -> float:
    """Of (reduce, gather), of a rank with (forward, backward) of computing for a microbatch."""
    (reduce_s, gather_s), (forward, backward) = exchanged, computing
    overlap = job.assumptions.overlap
    if layout.zero == 3:
        both = reduce_s + gather_s
        return both - min(overlap * both, num_microbatches * (forward + backward))
    behind = backward * (num_microbatches if layout.zero == 2 else 1)
    left = reduce_s - min(overlap * reduce_s, behind)
    return left + gather_s - min(overlap * gather_s, forward)


def optimizer_seconds(job: Job, layout: Layout) -> float:
    """States are read and written, gradients read, parameters written: of the rank's share."""
    most, experts = parameters_of_a_rank(job, layout)
    shards = layout.dp * layout.cp if layout.zero else 1
    share = most / shards + experts / max(1, shards // layout.ep)
    kept = job.kept
    size = 2 * kept.optimizer_bytes + kept.gradient_bytes + kept.parameter_bytes
    return share * size / job.device.memory_bytes_per_s
