"""All layouts of a job that are worth a look, in a fixed order.

What is tried, and nothing else is left out:

    tp          divisors of heads, key-value heads and features that are powers of 2, up to twice
                the GPUs of a node
    cp          powers of 2 that leave each rank 2,048 tokens of a sequence or more
    pp          up to 128, and no more than layers
    ep          powers of 2 that divide the experts, and dp
    virtual     numbers of stages on a rank that cut layers equally (layers_by_stage.py); 1 always
    microbatch  powers of 2 up to 16 sequences
    zero        0 to 3
    recompute   none, full; selective where scores are kept, without flash

tp * cp * pp divides the GPUs. Left out, because another layout is the same or better by rule: zero
1 to 3 where one rank has all (dp cp = 1); virtual stages where pp = 1; tp > 1 without sequence
parallelism, which sends as many bytes and holds more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from labkit.calc.layout import Layout
from labkit.calc.plan.job import Job
from labkit.calc.plan.layers_by_stage import layer_counts
from labkit.calc.plan.likeness import like_dense

MOST_STAGES = 128
MOST_SEQUENCES = 16
LEAST_TOKENS = 2048


def layouts(job: Job) -> Iterator[Layout]:
    """Each once. Some of them a rule refuses, and many do not fit."""
    recompute = ("none", "full") if job.assumptions.flash else ("none", "selective", "full")
    microbatches = tuple(_powers(min(MOST_SEQUENCES, job.global_batch)))
    for tp, cp, pp, ep in _shapes(job):
        levels = (0, 1, 2, 3) if job.num_gpus // (tp * pp) > 1 else (0,)
        for virtual, microbatch, zero, again in product(
            _virtual(job, pp), microbatches, levels, recompute
        ):
            yield Layout(
                world_size=job.num_gpus,
                tp=tp, pp=pp, cp=cp, ep=ep, virtual=virtual,
                zero=zero, microbatch=microbatch, recompute=again,
            )  # fmt: skip


def _shapes(job: Job) -> Iterator[tuple[int, int, int, int]]:
    """(tp, cp, pp, ep)."""
    n = job.num_gpus
    for tp, cp, pp in product(_tensor(job), _context(job), _stages(job)):
        if n % (tp * cp * pp):
            continue
        dp = n // (tp * cp * pp)
        for ep in _powers(job.config.num_experts or 1):
            if dp % ep == 0 and (job.config.num_experts or 1) % ep == 0:
                yield tp, cp, pp, ep


def _powers(most: int) -> Iterator[int]:
    each = 1
    while each <= most:
        yield each
        each *= 2


def _tensor(job: Job) -> list[int]:
    like = like_dense(job.config, 0)
    cut = [like.heads, like.num_kv_heads, job.config.expert_features]
    most = 2 * job.machines.gpus_per_node
    return [each for each in _powers(most) if all(number % each == 0 for number in cut)]


def _context(job: Job) -> list[int]:
    most = max(1, job.length // LEAST_TOKENS)
    return [each for each in _powers(most) if job.length % each == 0]


def _stages(job: Job) -> list[int]:
    most = min(MOST_STAGES, job.config.layers)
    return [each for each in range(1, most + 1) if job.num_gpus % each == 0]


def _virtual(job: Job, pp: int) -> list[int]:
    if pp == 1:
        return [1]
    layers = job.config.layers
    more = range(2, (layers + 2) // pp + 1)
    return [1, *(each for each in more if layer_counts(layers, pp * each, each) is not None)]
