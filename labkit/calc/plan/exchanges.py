"""Seconds of one layer's collectives for one microbatch, (forward, backward): what is exposed.

    tp           4 halves (reduce-scatter, all-gather) of B T D forward, 4 backward, exposed; the
                 two more all-gathers of sequence parallelism's backward overlap. Experts: their
                 part times k
    cp           a ring of keys and values; exposed where a step of it is longer than attention's.
                 Assumptions(context="gather"): all of them gathered before attention, and their
                 gradients reduced after it; exposed
    ep           2 all-to-alls forward of k B T D, 2 backward, exposed

Recomputed in full: forward's once more, in backward. All experts get equally many tokens.
Papers: Korthikanti et al., arXiv:2205.05198; Liu et al., arXiv:2310.01889, for rings; Llama 3,
arXiv:2407.21783, section 3.3.2, for gathering; Lepikhin et al., GShard, arXiv:2006.16668, for
all-to-alls.
"""

from __future__ import annotations

from labkit.calc.plan.job import Job
from labkit.calc.plan.links import Span, all_to_all_seconds, half_seconds

_FLOAT32_BYTES = 4


def tensor_seconds(
    job: Job, tokens: int, where: Span, recompute: str, num_experts: int
) -> tuple[float, float]:
    """Of tp. num_experts: that a token goes through; 0: a dense layer."""
    if where.size == 1:
        return 0.0, 0.0
    nbytes = tokens * job.config.hidden * job.kept.activation_itemsize
    half = half_seconds(job, nbytes, where)
    mlp = half if not num_experts else half_seconds(job, num_experts * nbytes, where)
    forward = 2 * half + 2 * mlp
    return forward, forward * (2 if recompute == "full" else 1)


def context_seconds(
    job: Job, tokens: int, where: Span, tp: int, recompute: str, attention_s: float
) -> tuple[float, float]:
    """Of a ring with shares of equal work (zigzag): attention hides what it can, step by step.

    Or of gathering, behind which nothing is computed.
    """
    n = where.size
    if n == 1:
        return 0.0, 0.0
    config, b = job.config, job.kept.activation_itemsize
    numbers = 2 * config.num_kv_heads * config.features_per_head / tp
    if config.is_latent:
        numbers = config.kv_lora_rank + config.rope_head_dim
    if job.assumptions.context == "gather":
        half = half_seconds(job, n * tokens * numbers * b, where)
        return half, half * (2 if recompute == "full" else 1)
    tier = job.machines.tier(crosses_nodes=not where.is_in_one_node)
    per_byte = tier.beta / job.assumptions.link_share
    step_s = tier.alpha + tokens * numbers * b * per_byte
    back_s = 2 * tier.alpha + tokens * numbers * (b + _FLOAT32_BYTES) * per_byte
    forward = (n - 1) * max(0.0, step_s - attention_s / n)
    products = 2.5 if job.assumptions.flash else 2
    backward = (n - 1) * max(0.0, back_s - products * attention_s / n)
    return forward, backward + (forward if recompute == "full" else 0.0)


def expert_seconds(
    job: Job,
    tokens: int,
    where: Span,
    tp: int,
    sequence_parallel: bool,
    recompute: str,
    num_experts: int,
) -> tuple[float, float]:
    """Of ep: tokens to their experts, and back."""
    if where.size == 1 or not num_experts:
        return 0.0, 0.0
    own = tokens / (tp if sequence_parallel else 1)
    nbytes = own * num_experts * job.config.hidden * job.kept.activation_itemsize
    forward = 2 * all_to_all_seconds(job, nbytes, where)
    return forward, forward * (2 if recompute == "full" else 1)
