"""Seconds of one layer for one microbatch on one GPU, by what they go into.

    computing    FLOPs / (efficiency * peak)  +  bytes to and from the GPU's own memory / bandwidth

    FLOPs        2 per weight and token; attention 4 H K s, or 2 H K s of a causal mask with flash
    bytes        forward, of numbers with b bytes, for each token of a microbatch:
                 norms, residuals     10 D                          each rank all, or / t
                 linear layers        4 D + 8 HK-like + 4 F, gated 6 F     D whole, the rest / t
                 attention's scores   4 H s, not with flash
                 and for each weight  K_p forward; K_p + 2 K_g backward
    backward     twice the FLOPs and the bytes of tokens, of attention with flash 2.5 times: scores
                 were never written down, and are computed again; recomputed: forward again

Small microbatches, and cuts by tp, lower what is achieved by the second term: weights are read for
few tokens, and what is not cut stays. Kernels' own inefficiency at small sizes is not modelled.

Collectives of tp, cp and ep: exchanges.py.

Papers: Narayanan et al., arXiv:2104.04473, section 5.1, for FLOPs; Dao, arXiv:2307.08691, for five
products backward where forward has two.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from labkit.calc.layout import Layout
from labkit.calc.models.parameters import attention_parameters, mlp_parameters, norm_parameters
from labkit.calc.plan.exchanges import context_seconds, expert_seconds, tensor_seconds
from labkit.calc.plan.job import Job
from labkit.calc.plan.links import Span, span_of


class LayerSeconds(NamedTuple):
    """(forward, backward) of one layer, one microbatch. What is recomputed is in backward."""

    compute_s: tuple[float, float]
    tp_s: tuple[float, float] = (0.0, 0.0)
    cp_s: tuple[float, float] = (0.0, 0.0)
    ep_s: tuple[float, float] = (0.0, 0.0)


_NONE = LayerSeconds((0.0, 0.0))


def layer_seconds(job: Job, layout: Layout) -> tuple[LayerSeconds, LayerSeconds]:
    """Of (a dense layer, one with experts)."""
    tensor, ring = span_of(job, layout, "tp"), span_of(job, layout, "cp")
    experts = span_of(job, layout, "dp", num=layout.ep)
    how = (layout.sequence_parallel, layout.microbatch, layout.recompute)
    return _layers(job, tensor, ring, experts, layout.tp, layout.cp, layout.ep, *how)


def compute_seconds(job: Job, flops: float, nbytes: float) -> float:
    """On one GPU: products of matrices, and then what only moves bytes."""
    device = job.device
    products = flops / (job.assumptions.efficiency * device.flops_per_s)
    return products + nbytes / device.memory_bytes_per_s


@lru_cache(maxsize=1 << 16)
def _layers(
    job: Job,
    tensor: Span,
    ring: Span,
    across: Span,
    tp: int,
    cp: int,
    ep: int,
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
        attention_s = compute_seconds(job, _score_flops(job, tokens) / tp, 0)
        compute = _compute(job, tokens, tp, ep, sequence_parallel, recompute, num_experts)
        found.append(
            LayerSeconds(
                compute,
                tensor_seconds(job, tokens, tensor, recompute, num_experts),
                context_seconds(job, tokens, ring, tp, recompute, attention_s),
                expert_seconds(job, tokens, across, tp, sequence_parallel, recompute, num_experts),
            )
        )
        if not job.config.num_experts:
            return found[0], _NONE
    return found[0], found[1]


def _compute(
    job: Job,
    tokens: int,
    tp: int,
    ep: int,
    sequence_parallel: bool,
    recompute: str,
    num_experts: int,
) -> tuple[float, float]:
    """(forward, backward) seconds."""
    config, kept = job.config, job.kept
    used = attention_parameters(config) + 2 * norm_parameters(config)
    held = used
    if num_experts:
        expert = mlp_parameters(config, config.expert_features)
        router = config.hidden * config.num_experts
        used += (num_experts + config.shared_experts) * expert + router
        held += (config.num_experts // ep + config.shared_experts) * expert + router
    else:
        used += mlp_parameters(config, config.mlp_features)
        held = used
    scores = _score_flops(job, tokens)
    flops = (2 * used * tokens + scores) / tp
    moved = tokens * _bytes_of_a_token(job, tp, sequence_parallel, num_experts)
    computed_with = kept.cast_bytes or kept.parameter_bytes
    forward = compute_seconds(job, flops, moved + computed_with * held / tp)
    of_weights = (computed_with + 2 * kept.gradient_bytes) * held / tp
    again = scores / tp / 2 if job.assumptions.flash else 0
    backward = compute_seconds(job, 2 * flops + again, 2 * moved + of_weights)
    if recompute == "full":
        backward += forward
    elif recompute == "selective" and not job.assumptions.flash:
        backward += compute_seconds(job, scores / tp, tokens * _score_bytes(job) / tp)
    return forward, backward


def _score_flops(job: Job, tokens: int) -> float:
    """Forward, of one layer, all heads: both products, and with flash the unmasked half only."""
    config = job.config
    features = config.features_per_head * 2
    if config.is_latent:
        features = config.features_per_head + config.rope_head_dim + config.value_head_dim
    seen = job.length / 2 if job.assumptions.flash else job.length
    return 2 * config.heads * features * seen * tokens


def _score_bytes(job: Job) -> float:
    """Of a token, all heads: written, read and written by a fused softmax, read."""
    return 4 * job.kept.activation_itemsize * job.config.heads * job.length


def _bytes_of_a_token(job: Job, tp: int, sequence_parallel: bool, num_experts: int) -> float:
    """Forward, on one rank: every tensor is written once, and read by the next operation."""
    config = job.config
    D, H, K = config.hidden, config.heads, config.features_per_head
    keys = config.heads if config.is_latent else config.num_kv_heads
    features = config.mlp_features
    if num_experts:
        features = (num_experts + config.shared_experts) * config.expert_features
    replicated = 10 * D + (4 * num_experts * D)  # experts: permuted, and back
    cut = 2 * (H + 2 * keys) * K + 2 * H * K + (6 if config.gated else 4) * features
    moved = replicated / (tp if sequence_parallel else 1) + 4 * D + cut / tp
    scores = 0 if job.assumptions.flash else _score_bytes(job) / tp
    return job.kept.activation_itemsize * moved + scores
