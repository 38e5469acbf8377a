"""The parts of a step, and how long they take together, in closed form.

    step = m R + (sum of all ranks' R - R) / v + sends + dp + optimizer

R: seconds of one microbatch on the slowest of p ranks, all its v stages, forward and backward, with
the exchanges of zero 2 and 3. m: microbatches. The second term is the bubble: (p - 1)/(v m) of m R
if ranks are equal.

    sends       c seconds each, m microbatches: 2 c (p - 1 + floor((m - 1)(p - 1)/p)) for 1F1B, in
                which a rank waits for both neighbours; 2 c (v p - 1) interleaved, which runs ahead.
                Both as labkit.pipeline.simulation has them, while c is small beside R
    bubble      a third with schedule="zb_h1", 2/3 (p/2 - 1)/(p - 1) of it with "dualpipe"
    dp          reduce + gather, less what is hidden: seconds.py. Rank r finishes the pipeline
                earlier than rank 0, by the last backwards of the stages 0 to r - 1; the rank that
                ends last counts

Paper: Narayanan et al., arXiv:2104.04473, section 2.2, for the bubble.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from labkit.calc.layout import Layout
from labkit.calc.pieces import Pieces
from labkit.calc.plan.computing import Product, moved_seconds, product_seconds
from labkit.calc.plan.gpu_memory import StageLayers, stage_layers
from labkit.calc.plan.job import Job
from labkit.calc.plan.layout_rules import require_works
from labkit.calc.plan.seconds import (
    LayerSeconds,
    Pair,
    Span,
    exposed_seconds,
    half_seconds,
    in_each_microbatch,
    layer_seconds,
    message_seconds,
    once_a_step,
    optimizer_seconds,
    span_of,
)

PARTS = ("compute", "tp", "cp", "ep", "pp", "bubble", "dp", "optimizer")


class Times(NamedTuple):
    """Seconds of one microbatch by stage, as (forward, backward), and seconds of the whole step."""

    compute: list[Pair]
    tp: list[Pair]
    cp: list[Pair]
    ep: list[Pair]
    dp: list[Pair]
    """Seconds of zero 2 and 3 that are not hidden, in every microbatch."""
    once: list[Pair]
    """By stage: seconds of (reduce, gather) once in a step, hidden or not."""
    send_s: float
    optimizer_s: float
    num_microbatches: int

    @property
    def of_stages(self) -> list[Pair]:
        """Seconds of each stage, all kinds together."""
        kinds = zip(self.compute, self.tp, self.cp, self.ep, self.dp, strict=True)
        return [
            (a[0] + b[0] + c[0] + d[0] + e[0], a[1] + b[1] + c[1] + d[1] + e[1])
            for a, b, c, d, e in kinds
        ]


def pieces(job: Job, layout: Layout) -> Pieces:
    """Return the parts of a step. ValueError, with the reason, for a layout that a rule refuses."""
    require_works(job, layout)
    found = times(job, layout)
    both = found.of_stages
    return Pieces(
        forward_s=tuple(forward for forward, _ in both),
        backward_s=tuple(backward for _, backward in both),
        send_s=found.send_s,
        reduce_s=tuple(reduce_s for reduce_s, _ in found.once),
        gather_s=tuple(gather_s for _, gather_s in found.once),
        optimizer_s=found.optimizer_s,
        overlap=job.assumptions.overlap,
        num_microbatches=found.num_microbatches,
        compute_s=tuple(map(sum, found.compute)),
        exchanged_s=tuple(found.dp) if layout.exchange_level >= 2 else (),
    )


def times(job: Job, layout: Layout) -> Times:
    """Return the parts of a step by kind, for a layout that no rule refuses."""
    stages = stage_layers(job.config, layout)
    assert stages is not None, "a rule refuses such layouts"
    dense, experts = layer_seconds(job, layout)
    # One stage's seconds depend on its numbers of layers only, and few of them differ.
    kinds = {count: _of_layers(count, dense, experts) for count in set(stages)}
    compute, tp, cp, ep = ([kinds[count][kind] for count in stages] for kind in range(len(dense)))
    first, last = _ends(job, layout)
    compute[-1] = _added(compute[-1], last[0])
    tp[-1] = _added(tp[-1], last[1])
    tp[0] = _added(tp[0], first)
    num = layout.num_microbatches(job.global_batch)
    return Times(
        compute, tp, cp, ep,
        dp=in_each_microbatch(job, layout, compute),
        once=once_a_step(job, layout),
        send_s=_send(job, layout),
        optimizer_s=optimizer_seconds(job, layout),
        num_microbatches=num,
    )  # fmt: skip


def step_parts(job: Job, layout: Layout) -> dict[str, float]:
    """Seconds of a step by PARTS; their sum is the step."""
    found = times(job, layout)
    p, v, m = layout.pp, layout.virtual, found.num_microbatches
    both = found.of_stages
    of_stage = [forward + backward for forward, backward in both]
    of_rank = [sum(of_stage[rank::p]) for rank in range(p)]
    slowest = of_rank.index(max(of_rank))
    parts: dict[str, float] = {
        name: m * sum(f + b for f, b in getattr(found, name)[slowest::p])
        for name in ("compute", "tp", "cp", "ep")
    }
    parts["pp"] = _sends(found.send_s, p, v, m)
    parts["bubble"] = (sum(of_rank) - max(of_rank)) / v * _bubble_share(job, p)
    each_time = m * sum(f + b for f, b in found.dp[slowest::p])
    parts["dp"] = each_time + _exposed_at_the_end(job, layout, found, both)
    parts["optimizer"] = found.optimizer_s
    return parts


def _bubble_share(job: Job, stages: int) -> float:
    """Return a schedule's bubble as a share of 1F1B's, if both halves of backward take F each."""
    if job.assumptions.schedule == "zb_h1":
        return 1 / 3
    if job.assumptions.schedule == "dualpipe":  # (p/2 - 1) (F&B + B - 3 W), of (p - 1) (F + B)
        return 2 / 3 * max(0, stages / 2 - 1) / max(1, stages - 1)
    return 1.0


def _exposed_at_the_end(job: Job, layout: Layout, found: Times, of_stages: list[Pair]) -> float:
    """Exposed seconds of the once-a-step reduce and gather, on the rank that finishes last."""
    if layout.dp * layout.cp == 1:
        return 0.0
    rounds = min(layout.pp, found.num_microbatches) if layout.virtual > 1 else 1
    latest, earlier = 0.0, 0.0
    for rank in range(layout.pp):
        mine = slice(rank, None, layout.pp)
        once, computing = _sum(found.once[mine]), _sum(found.compute[mine])
        beside = computing[0] * rounds, computing[1] * rounds
        latest = max(latest, exposed_seconds(job, once, beside) - earlier)
        earlier += of_stages[rank][1]
    return latest


def _sum(pairs: list[Pair]) -> Pair:
    return sum(first for first, _ in pairs), sum(second for _, second in pairs)


def _of_layers(count: StageLayers, dense: LayerSeconds, experts: LayerSeconds) -> list[Pair]:
    """Return the seconds of these layers by kind: computing, tp, cp, ep."""
    return [
        (count.dense * d[0] + count.experts * e[0], count.dense * d[1] + count.experts * e[1])
        for d, e in zip(dense, experts, strict=True)
    ]


def _added(first: Pair, second: Pair) -> Pair:
    return first[0] + second[0], first[1] + second[1]


def _sends(each_s: float, p: int, v: int, m: int) -> float:
    if p == 1:
        return 0.0
    in_a_row = v * p - 1 if v > 1 else p - 1 + (m - 1) * (p - 1) // p
    return 2 * each_s * in_a_row


def _send(job: Job, layout: Layout) -> float:
    """Seconds to send one microbatch to the next stage.

    Each rank of tp sends its share, which is gathered at the receiver if needed.
    """
    if layout.pp == 1:
        return 0.0
    tokens = layout.microbatch * job.length // layout.cp
    nbytes = tokens * job.config.hidden * job.kept.activation_itemsize
    crosses = not span_of(job, layout, "pp").is_in_one_node
    seconds = message_seconds(job, nbytes / layout.tp, crosses_nodes=crosses)
    if layout.tp > 1 and not layout.sequence_parallel:
        seconds += half_seconds(job, nbytes, span_of(job, layout, "tp"))
    return seconds


def _ends(job: Job, layout: Layout) -> tuple[Pair, tuple[Pair, Pair]]:
    """Return tp's seconds of the embedding, and computing and tp's seconds of head and loss."""
    return _ends_of(job, layout.tp, layout.cp, layout.microbatch, span_of(job, layout, "tp"))


@lru_cache(maxsize=1 << 14)
def _ends_of(
    job: Job, tp: int, cp: int, microbatch: int, where: Span
) -> tuple[Pair, tuple[Pair, Pair]]:
    config, b = job.config, job.kept.activation_itemsize
    tokens = microbatch * job.length // cp
    # Logits are written and read in b bytes, their float32 log-softmax written and read.
    moved = tokens * config.vocab / tp * (2 * b + 8) + b * config.vocab * config.hidden / tp
    products_s = product_seconds(
        job, [Product(1, tokens, config.hidden, config.vocab / tp)], wide=True
    )
    forward = products_s + moved_seconds(job, moved)
    compute = (forward, 2 * forward)
    if tp == 1:
        return (0.0, 0.0), (compute, (0.0, 0.0))
    half = half_seconds(job, tokens * config.hidden * b, where)
    return (2 * half, 0.0), (compute, (0.0, 2 * half))
