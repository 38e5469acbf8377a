"""Seconds of one layer for one microbatch on one GPU: computing, collectives, data parallelism.

Computing: computing.py.

Exposed seconds of a layer's collectives (`tensor_seconds` and so on), (forward, backward):

    tp           4 halves (reduce-scatter, all-gather) of B T D forward, 4 backward, exposed; the
                 two more all-gathers of sequence parallelism's backward overlap. Experts: their
                 part times k. A share Assumptions.tp_overlap is hidden
    cp           a ring of keys and values; exposed where a step of it is longer than attention's.
                 Assumptions(context="gather"): all of them gathered before attention, and their
                 gradients reduced after it; exposed
    ep           2 all-to-alls forward of k B T D, 2 backward, exposed. In fp8 tokens are sent in
                 8 bits, and results in 16. Assumptions(expert_nodes=M): over slow links M B T D,
                 and k B T D over fast ones. A share expert_overlap is hidden, and all computing
                 beside it has fewer multiprocessors, as sending_cores says

Recomputed in full: forward's once more, in backward. All experts get equally many tokens.

A collective in a group whose ranks are on several nodes, L on each of H nodes (`Span`):

    half         reduce-scatter or all-gather, D bytes: (L-1) (a_fast + D/L b_fast)
                                                      + (H-1) (a_slow + D/(L H) b_slow)
    all-reduce   two halves: collective("all_reduce", "hierarchical", ...)
    all-to-all   D bytes of each rank, L H blocks:      (L-1) (a_fast + D/(L H) b_fast)
                                                + (L H - L) (a_slow + D/(L H) b_slow)
    message      a + D b

a: latency of a message; b: seconds of a byte, at the share of the bandwidth that collectives reach.
L and H come from the layout: ranks of rank 0's group that are among the first G ranks share its
node of G GPUs. If the H nodes have unequal numbers of ranks of a group, L is their mean.

Data parallelism: reduces, gathers and the optimizer of the ranks that share a model's states.

    zero   reduce, times K_g N    gather, times K_p N      N parameters of a stage on one GPU
    0      2, once a step         -
    1      1, once a step         1, once a step
    2      1 per microbatch       1, once a step           interleaved: 1 per round of p
    3      1 per microbatch       2 per microbatch         1 in forward, 1 in backward; 1 where
                                                           units are kept, and in a pipeline that
                                                           keeps them both once a step

An interleaved schedule does a round of p microbatches on one stage before it goes to another, so
zero 2 may sum the gradients of that one stage. With fewer shards than ranks (HSDP) a reduce also
sums the copies of each shard. Collectives go layer by layer, experts separately. A share `overlap`
of a collective is hidden, up to the computing beside it. The rest is exposed.

Papers: Korthikanti et al., arXiv:2205.05198; Liu et al., arXiv:2310.01889, for rings; DeepSeek-V3,
arXiv:2412.19437, section 3.2, for few nodes and overlap; Llama 3, arXiv:2407.21783, section 3.3.2,
for gathering; Lepikhin et al., GShard, arXiv:2006.16668, for all-to-alls; Cho et al.,
"BlueConnect", SysML 2019; Rajbhandari et al., arXiv:1910.02054, section 7.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from labkit.calc.hardware import Tier
from labkit.calc.layout import Layout
from labkit.calc.plan.computing import (
    attention_backward,
    attention_seconds,
    layer_compute,
    moved_seconds,
)
from labkit.calc.plan.gpu_memory import Held, held_by_ranks, held_by_stage
from labkit.calc.plan.job import Job

Pair = tuple[float, float]
"""(forward, backward) seconds."""


class Span(NamedTuple):
    """The places of a group's ranks on nodes."""

    inside: float
    """Ranks on each node."""
    nodes: int

    @property
    def size(self) -> int:
        """Ranks."""
        return round(self.inside * self.nodes)

    @property
    def is_in_one_node(self) -> bool:
        """True if the group uses no slow link."""
        return self.nodes == 1


@lru_cache(maxsize=1 << 16)
def span(gpus_per_node: int, *sides: tuple[int, int]) -> Span:
    """Return the span of a group, from the (ranks, stride) of each axis that it lies along."""
    size, in_first = 1, [0]
    for num, stride in sides:
        size *= num
        in_first = [
            offset + place * stride
            for offset in in_first
            for place in range(min(num, -(-(gpus_per_node - offset) // stride)))
        ]
    nodes = -(-size // len(in_first))
    return Span(size / nodes, nodes)


def span_of(job: Job, layout: Layout, axis: str, num: int | None = None) -> Span:
    """Return the span of the group along an axis. num: take only its first ranks."""
    size: int = getattr(layout, axis)
    return span(job.machines.gpus_per_node, (num or size, layout.stride(axis)))


def half_seconds(job: Job, nbytes: float, where: Span) -> float:
    """Return the seconds of a reduce-scatter of nbytes, or of an all-gather to nbytes."""
    L, H = where
    fast, slow = job.machines.fast, job.machines.slow
    inside = (L - 1) * (fast.alpha + nbytes / L * _beta(job, fast))
    across = (H - 1) * (slow.alpha + nbytes / (L * H) * _beta(job, slow))
    return inside + across


def all_to_all_seconds(job: Job, nbytes: float, where: Span) -> float:
    """Return the seconds of an all-to-all of nbytes on each rank, in equal blocks."""
    L, H = where
    block = nbytes / (L * H)
    fast, slow = job.machines.fast, job.machines.slow
    inside = (L - 1) * (fast.alpha + block * _beta(job, fast))
    return inside + (L * H - L) * (slow.alpha + block * _beta(job, slow))


def routed_seconds(job: Job, tokens: float, size: float, num_experts: int, where: Span) -> float:
    """Return the seconds of an all-to-all of tokens to their experts, or back.

    size: bytes of a number. With expert_nodes each node gets a token once, and forwards it.
    """
    nbytes, most = tokens * job.config.hidden * size, job.assumptions.expert_nodes
    L, H = where
    if most is None or H == 1:
        return all_to_all_seconds(job, num_experts * nbytes, where)
    across = min(most, H, num_experts) * nbytes
    fast, slow = job.machines.fast, job.machines.slow
    return (H - 1) * (slow.alpha + across / H * _beta(job, slow)) + (L - 1) * (
        fast.alpha + num_experts * nbytes / L * _beta(job, fast)
    )


def message_seconds(job: Job, nbytes: float, *, crosses_nodes: bool) -> float:
    """Return seconds of a message from one rank to another."""
    tier = job.machines.tier(crosses_nodes=crosses_nodes)
    return tier.alpha + nbytes * _beta(job, tier)


def _beta(job: Job, tier: Tier) -> float:
    return tier.beta / job.assumptions.link_share


_FLOAT32_BYTES = 4


def tensor_seconds(
    job: Job, tokens: int, where: Span, recompute: str, num_experts: int, inner: Span
) -> Pair:
    """Return tp's seconds. num_experts: experts that a token goes through; 0: a dense layer.

    inner: the ranks of tp that cut one expert.
    """
    if where.size == 1:
        return 0.0, 0.0
    nbytes = tokens * job.config.hidden * job.kept.activation_itemsize
    half = half_seconds(job, nbytes, where)
    mlp = half
    if num_experts:
        mlp = half_seconds(job, num_experts * nbytes * inner.size / where.size, inner)
    forward = 2 * half + 2 * mlp
    return forward, forward * (2 if recompute == "full" else 1)


def context_seconds(
    job: Job, tokens: int, where: Span, tp: int, recompute: str, attention_s: float
) -> Pair:
    """Return the seconds that context parallelism adds to (forward, backward).

    With a ring and equal work per rank (zigzag), each step is hidden behind attention as far as it
    goes. Gathering hides behind nothing.
    """
    n = where.size
    if n == 1:
        return 0.0, 0.0
    config, b = job.config, job.kept.activation_itemsize
    numbers = 2 * max(1, config.num_kv_heads / tp) * config.features_per_head
    if config.is_latent:
        numbers = config.kv_lora_rank + config.rope_head_dim
    if job.assumptions.context == "gather":
        half = half_seconds(job, n * tokens * numbers * b, where)
        return half, half * (2 if recompute == "full" else 1)
    step_s, gradients_s = (
        message_seconds(job, tokens * numbers * size, crosses_nodes=not where.is_in_one_node)
        for size in (b, _FLOAT32_BYTES)
    )
    backward_s = attention_backward(job) * attention_s
    forward = (n - 1) * max(0.0, step_s - attention_s / n)
    backward = (n - 1) * max(0.0, step_s + gradients_s - backward_s / n)
    return forward, backward + (forward if recompute == "full" else 0.0)


def expert_seconds(
    job: Job,
    tokens: int,
    where: Span,
    tp: int,
    sequence_parallel: bool,
    recompute: str,
    num_experts: int,
) -> Pair:
    """Return ep's seconds: tokens to their experts, and back."""
    if where.size == 1 or not num_experts:
        return 0.0, 0.0
    own = tokens / (tp if sequence_parallel else 1)
    size = job.kept.activation_itemsize
    sizes = (1 if job.precision == "fp8" else size, size)  # dispatched, combined
    forward = sum(routed_seconds(job, own, each, num_experts, where) for each in sizes)
    return forward, forward * (2 if recompute == "full" else 1)


class LayerSeconds(NamedTuple):
    """(forward, backward) of one layer, one microbatch. What is recomputed is in backward."""

    compute_s: Pair
    tp_s: Pair = (0.0, 0.0)
    cp_s: Pair = (0.0, 0.0)
    ep_s: Pair = (0.0, 0.0)


_NONE = LayerSeconds((0.0, 0.0))


def _exposed(seconds: Pair, overlap: float, beside: Pair) -> Pair:
    """Return the seconds that computing does not hide."""
    return (
        seconds[0] - min(overlap * seconds[0], beside[0]),
        seconds[1] - min(overlap * seconds[1], beside[1]),
    )


def layer_seconds(job: Job, layout: Layout) -> tuple[LayerSeconds, LayerSeconds]:
    """Return seconds of (a dense layer, one with experts)."""
    tensor, ring = span_of(job, layout, "tp"), span_of(job, layout, "cp")
    experts = span(job.machines.gpus_per_node, *layout.expert_sides[0])
    inner = span_of(job, layout, "tp", num=min(layout.expert_tp, layout.tp))
    cut = layout.ep * layout.expert_tp / layout.tp  # as if tp cut each expert
    sizes = (layout.tp, layout.cp, cut, layout.sequence_parallel, layout.microbatch)
    again, plain = (
        _layers(job, tensor, ring, experts, inner, *sizes, each)
        for each in (layout.recompute, "none")
    )
    n = layout.recompute_every
    return again if n == 1 else (_mean(again[0], plain[0], n), _mean(again[1], plain[1], n))


def _mean(again: LayerSeconds, plain: LayerSeconds, n: int) -> LayerSeconds:
    """Return the mean of n layers of which one recomputes."""
    return LayerSeconds(
        *((a[0], b[1] + (a[1] - b[1]) / n) for a, b in zip(again, plain, strict=True))
    )


@lru_cache(maxsize=1 << 16)
def _layers(
    job: Job,
    tensor: Span,
    ring: Span,
    across: Span,
    inner: Span,
    tp: int,
    cp: int,
    ep: float,
    sequence_parallel: bool,
    microbatch: int,
    recompute: str,
) -> tuple[LayerSeconds, LayerSeconds]:
    tokens = microbatch * job.length // cp
    found = []
    for num_experts in (0, job.config.top_k):
        if num_experts == 0 and job.config.expert_layers == job.config.layers:
            found.append(_NONE)
            continue
        attention_s = attention_seconds(job, tokens) / tp
        compute = layer_compute(job, tokens, tp, ep, sequence_parallel, recompute, num_experts)
        over_tp = tensor_seconds(job, tokens, tensor, recompute, num_experts, inner)
        over_ep = expert_seconds(job, tokens, across, tp, sequence_parallel, recompute, num_experts)
        if over_ep[0] and job.assumptions.expert_overlap:
            left = 1 - job.assumptions.sending_cores
            compute = compute[0] / left, compute[1] / left
        found.append(
            LayerSeconds(
                compute,
                _exposed(over_tp, job.assumptions.tp_overlap, compute),
                context_seconds(job, tokens, ring, tp, recompute, attention_s),
                _exposed(over_ep, job.assumptions.expert_overlap, compute),
            )
        )
        if not job.config.num_experts:
            return found[0], _NONE
    return found[0], found[1]


def reduces_of_zero2(layout: Layout, num_microbatches: int) -> int:
    """Return how many times zero 2 reduces a gradient in a step."""
    return num_microbatches // layout.pp if layout.virtual > 1 else num_microbatches


def once_a_step(job: Job, layout: Layout) -> list[Pair]:
    """Return the seconds of the once-a-step (reduce, gather) by stage, hidden or not."""
    times = {0: (2, 0), 1: (1, 1), 2: (0, 1), 3: (0, 0)}[layout.exchange_level]
    return [(times[0] * r, times[1] * g) for r, g in _halves(job, layout)]


def in_each_microbatch(job: Job, layout: Layout, computing: list[Pair]) -> list[Pair]:
    """Return the exposed seconds in a microbatch's (forward, backward), by stage.

    computing: by stage, (forward, backward) of a microbatch, behind which they may hide.
    """
    if layout.exchange_level < 2:
        return [(0.0, 0.0)] * len(computing)
    every = layout.pp if layout.zero == 2 and layout.virtual > 1 else 1
    once, again = layout.zero == 3, layout.zero == 3 and not layout.keeps_units
    return [
        _exposed(
            (once * gather_s, reduce_s / every + again * gather_s), job.assumptions.overlap, beside
        )
        for (reduce_s, gather_s), beside in zip(_halves(job, layout), computing, strict=True)
    ]


def exposed_seconds(job: Job, once: Pair, computing: Pair) -> float:
    """Return exposed seconds of (reduce, gather), beside (forward, backward) of computing."""
    reduce_s, gather_s = once
    return sum(_exposed((gather_s, reduce_s), job.assumptions.overlap, computing))


def optimizer_seconds(job: Job, layout: Layout) -> float:
    """Return the optimizer's seconds to move states, gradients and parameters of the largest
    share."""
    shards, kept = layout.num_shards if layout.zero else 1, job.kept
    size = 2 * kept.optimizer_bytes + kept.gradient_bytes + kept.parameter_bytes
    share = max(
        held.others / shards + held.experts / (layout.expert_shards if layout.zero else 1)
        for held in held_by_ranks(job.config, layout)
    )
    return moved_seconds(job, share * size)


def _halves(job: Job, layout: Layout) -> list[Pair]:
    """Return the seconds of (reduce-scatter of gradients, all-gather of parameters), by stage."""
    stages = held_by_stage(job.config, layout)
    if layout.dp * layout.cp == 1:
        return [(0.0, 0.0)] * len(stages)
    units = max(1, job.config.layers // len(stages))
    gradients = job.kept.gradient_bytes
    sizes = (gradients, job.kept.cast_bytes or job.kept.parameter_bytes)
    kinds = set(stages)  # most stages are alike
    gpus = job.machines.gpus_per_node
    where = (span(gpus, *layout.shard_sides[0]), span(gpus, *layout.expert_sides[1]))
    reduces, gathers = (
        {held: _half(job, where, held, size, units) for held in kinds} for size in sizes
    )
    if layout.num_shards < layout.dp * layout.cp and layout.zero:  # copies of a shard are summed
        copies = span(gpus, *layout.shard_sides[1])
        for held in kinds:
            shard = gradients * held.others / layout.num_shards
            reduces[held] += 2 * half_seconds(job, shard, copies)
    return [(reduces[held], gathers[held]) for held in stages]


def _half(job: Job, where: tuple[Span, Span], held: Held, size: float, units: int) -> float:
    one = units * half_seconds(job, size * held.others / units, where[0])
    if held.experts:
        one += units * half_seconds(job, size * held.experts / units, where[1])
    return one
