"""Layouts of a job: which are worth a look, which do not work and why, and warnings.

    refused    heads, key-value heads, features and tokens that ranks cut unevenly; more ranks than
               key-value heads have copies of them
               layers that stages cut unevenly (but see gpu_memory.py), more stages than layers
               interleaving with microbatches that are no multiple of pp: it goes in rounds of pp
               a global batch that ranks and microbatches cannot share
               ep without experts, or not dividing them
    warned     tp, or ep, over slow links; zero 2 or 3 with a pipeline; fewer microbatches than
               stages

A refusal has a title, by which losers are counted, and a reason that says what would work.

`layouts` yields these in a fixed order:

    tp          divisors of heads, key-value heads and features that are powers of 2, up to twice
                the GPUs of a node; up to those of a node also more than key-value heads
    cp          powers of 2 that leave each rank 2,048 tokens of a sequence or more
    pp          up to 128, and no more than layers
    ep          powers of 2 that divide the experts, and dp cp
    virtual     numbers of stages on a rank that cut layers equally (gpu_memory.py); 1 always
    microbatch  powers of 2 up to 16 sequences
    zero        0 to 3
    recompute   none, full; selective where scores are kept, without flash

tp * cp * pp divides the GPUs. Some layouts are left out, because another one is the same or better:
zero 1 to 3 if one rank has all (dp cp = 1); virtual stages if pp = 1; tp > 1 without sequence
parallelism, which sends as many bytes and holds more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from labkit import arguments
from labkit.calc.layout import Layout
from labkit.calc.models import ModelConfig
from labkit.calc.plan.gpu_memory import (
    held_by_ranks,
    layer_counts,
    layers_of_rank,
    like_dense,
    stage_layers,
)
from labkit.calc.plan.job import Job, check_asked
from labkit.calc.plan.seconds import layer_seconds, reduces_of_zero2, span, span_of
from labkit.calc.units import bytes_text, seconds_text


class Refusal(NamedTuple):
    """The reason why a layout does not exist for a job."""

    title: str
    reason: str

    def __str__(self) -> str:
        return f"{self.title}: {self.reason}"


def refusal(job: Job, layout: Layout) -> Refusal | None:
    """Return the first rule that the layout breaks. None: it can run, if it fits."""
    check_asked(job, layout)
    return (
        _of_ranks(job, layout)
        or _of_heads(job, layout)
        or _of_tokens(job, layout)
        or _of_experts(job, layout)
        or _of_stages(job, layout)
        or _of_the_batch(job, layout)
    )


def require_works(job: Job, layout: Layout) -> None:
    """Raise ValueError for a layout that a rule refuses, with the rule."""
    refused = refusal(job, layout)
    if refused is not None:
        raise ValueError(f"{layout}: {refused}")


def warnings_of(job: Job, layout: Layout) -> list[str]:
    """Return warnings about costs that are easily overlooked, in seconds and bytes of a step."""
    found = []
    num = layout.num_microbatches(job.global_batch)
    if layout.tp > 1 and not (where := span_of(job, layout, "tp")).is_in_one_node:
        seconds = num * _exchange_seconds(job, layout, "tp")
        found.append(
            f"tp={layout.tp} spans {where.nodes} nodes: its collectives take "
            f"{seconds_text(seconds)} of each step over slow links; {_inside_a_node(job, layout)} "
            "stays inside one"
        )
    group = span(job.machines.gpus_per_node, *layout.expert_sides[0])
    if layout.ep > 1 and not group.is_in_one_node:
        seconds = num * _exchange_seconds(job, layout, "ep")
        found.append(
            f"ep={layout.ep} spans nodes: its all-to-alls take {seconds_text(seconds)} of each step"
        )
    if layout.exchange_level >= 2 and layout.pp > 1 and layout.dp * layout.cp > 1:
        rounds = num if layout.zero == 3 else reduces_of_zero2(layout, num)
        found += [_of_zero(job, layout, rounds)] if rounds > 1 else []
    if num < layout.pp:
        found.append(
            f"{num} microbatches for {layout.pp} stages: most of them wait most of the time"
        )
    return found


def _inside_a_node(job: Job, layout: Layout) -> str:
    """Say what keeps tensor parallelism inside a node: another order of the axes, or fewer
    ranks."""
    fitting = math.gcd(layout.tp, job.machines.gpus_per_node)
    if layout.stride("tp") > 1:
        return f"tp={fitting} as the last of order={layout.order}"
    return f"tp={fitting}"


def _of_zero(job: Job, layout: Layout, rounds: int) -> str:
    own = max(held.total for held in held_by_ranks(job.config, layout))
    gradients = job.kept.gradient_bytes
    gathered = job.kept.cast_bytes or job.kept.parameter_bytes
    gathers = 2 * rounds if layout.zero == 3 else 1
    once = own * (gradients + gathered)
    sent = own * (rounds * gradients + gathers * gathered)
    what, times = ("gradients are reduced", rounds)
    if layout.zero == 3:
        what, times = ("parameters are gathered", gathers)
    return (
        f"zero {layout.zero} with a pipeline: {what} {times} times in a step, "
        f"{bytes_text(sent)} of each rank; with zero 1 it is {bytes_text(once)}"
    )


def _exchange_seconds(job: Job, layout: Layout, axis: str) -> float:
    """Seconds of tp or ep for one microbatch, on the rank with the most layers."""
    dense, experts = layer_seconds(job, layout)
    name = f"{axis}_s"
    layers = layers_of_rank(job.config, layout, layout.pp // 2)
    return layers.dense * sum(getattr(dense, name)) + layers.experts * sum(getattr(experts, name))


def _of_ranks(job: Job, layout: Layout) -> Refusal | None:
    if layout.world_size == job.num_gpus:
        return None
    return Refusal(
        "GPUs",
        f"a layout of {layout.world_size} ranks on a cluster of {job.num_gpus} GPUs; give as many",
    )


def _cut_by_tp(config: ModelConfig, tp: int) -> dict[str, int]:
    """Return what tp ranks share; more ranks than key-value heads have copies of them."""
    like = like_dense(config, 0)
    cut = {"heads": like.heads}
    if tp % like.num_kv_heads:
        cut["key-value heads"] = like.num_kv_heads
    if config.expert_layers < config.layers:
        cut["features inside the MLP"] = like.mlp_features
    return cut


def _of_heads(job: Job, layout: Layout) -> Refusal | None:
    config = job.config
    if config.num_experts and config.expert_features % layout.expert_tp:
        would_do = arguments.divisors_text(config.expert_features)
        return Refusal(
            "tp does not divide features of an expert",
            f"{layout.expert_tp} ranks of {config.expert_features} features of an expert; give "
            f"etp={would_do}",
        )
    cut = _cut_by_tp(config, layout.tp)
    for what, number in cut.items():
        if number % layout.tp:
            would_do = arguments.divisors_text(math.gcd(*cut.values()))
            return Refusal(
                f"tp does not divide {what}",
                f"tp={layout.tp} of {number} {what}; give {would_do}",
            )
    return None


def _of_tokens(job: Job, layout: Layout) -> Refusal | None:
    cut = layout.cp * (layout.tp if layout.sequence_parallel else 1)
    if job.length % cut == 0:
        return None
    return Refusal(
        "ranks do not divide the tokens",
        f"cp={layout.cp} and tp={layout.tp} cut {job.length} tokens into {cut}; give a divisor",
    )


def _of_experts(job: Job, layout: Layout) -> Refusal | None:
    num = job.config.num_experts
    if layout.ep == 1 or (num and num % layout.ep == 0):
        return None
    if not num:
        return Refusal("ep without experts", f"ep={layout.ep}: the model is dense; give ep=1")
    return Refusal(
        "ep does not divide the experts",
        f"ep={layout.ep} of {num} experts; give {arguments.divisors_text(num)}",
    )


def _of_stages(job: Job, layout: Layout) -> Refusal | None:
    layers = job.config.layers
    if stage_layers(job.config, layout) is not None:
        return None
    if layout.stages is not None:
        counts = layer_counts(layers, layout.pp * layout.virtual, layout.virtual)
        return Refusal(
            "layers of the stages are not those of the model",
            f"stages={'+'.join(map(str, layout.stages))} have {sum(layout.stages)} layers, and the "
            f"model {layers}" + (f"; give {'+'.join(map(str, counts))}" if counts else ""),
        )
    if layout.virtual > 1:
        return Refusal(
            "layers do not divide into virtual stages",
            f"{layers} layers, or {layers} + 2 with embedding and head, are no multiple of "
            f"pp={layout.pp} * virtual={layout.virtual} stages; try virtual=1",
        )
    return Refusal(
        "more stages than layers", f"pp={layout.pp} for {layers} layers; give {layers} or fewer"
    )


def _that_divides(job: Job, layout: Layout) -> str:
    """Suggest how the layout could divide this batch: fewer ranks, or smaller microbatches."""
    of_ranks, rest = divmod(job.global_batch, layout.microbatch)
    if rest:
        microbatch = math.gcd(job.global_batch, layout.microbatch)
        dp = math.gcd(job.global_batch // microbatch, layout.dp)
        return f"microbatches of {microbatch} over a dp of {dp}"
    return f"a dp of {math.gcd(of_ranks, layout.dp)}"


def _of_the_batch(job: Job, layout: Layout) -> Refusal | None:
    at_once = layout.dp * layout.microbatch
    if job.global_batch % at_once:
        return Refusal(
            "ranks do not divide the batch",
            f"{job.global_batch} sequences over dp={layout.dp} in microbatches of "
            f"{layout.microbatch}; give a multiple of {at_once}, or {_that_divides(job, layout)}",
        )
    num = job.global_batch // at_once
    if layout.virtual > 1 and num % layout.pp:
        return Refusal(
            "interleaving needs microbatches in rounds of pp",
            f"num_microbatches={num} is no multiple of pp={layout.pp}, and an interleaved schedule "
            f"goes in rounds of {layout.pp}; give virtual=1, or a global batch of "
            f"{at_once * layout.pp * max(1, num // layout.pp)}",
        )
    return None


MOST_STAGES = 128
MOST_SEQUENCES = 16
LEAST_TOKENS = 2048


def layouts(job: Job) -> Iterator[Layout]:
    """Yield each layout once, also those that a rule refuses or that do not fit."""
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
    """Yield each (tp, cp, pp, ep)."""
    n = job.num_gpus
    for tp, cp, pp in product(_tensor(job), _context(job), _stages(job)):
        if n % (tp * cp * pp):
            continue
        dp = n // (tp * cp * pp)
        for ep in _powers(job.config.num_experts or 1):
            if dp * cp % ep == 0 and (job.config.num_experts or 1) % ep == 0:
                yield tp, cp, pp, ep


def _powers(most: int) -> Iterator[int]:
    each = 1
    while each <= most:
        yield each
        each *= 2


def _tensor(job: Job) -> list[int]:
    like = like_dense(job.config, 0)
    cut, inside = [like.heads, job.config.expert_features], job.machines.gpus_per_node
    return [
        each
        for each in _powers(2 * inside)
        if all(number % each == 0 for number in cut)
        and (like.num_kv_heads % each == 0 or (each <= inside and each % like.num_kv_heads == 0))
    ]


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
