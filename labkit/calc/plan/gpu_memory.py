"""Bytes of a GPU by part, on the rank of the pipeline that is fullest.

The parts of calc.footprint, and beyond it experts, latent attention, and stages with unequal
numbers of layers.

    states        of the rank's parameters: over d c ranks, or `shards`; experts over d c t / (e x)
    activations   what is kept of a microbatch by each layer of the rank, times those in flight
    dispatched    with experts: inputs and outputs of a token's k experts, 2 k D more
    whole units   as footprint.py; zero 2 with virtual stages: a whole stage, whose gradients are
                  reduced after a round of p microbatches; zero 3 that keeps units, as in a
                  pipeline: all of the rank's parameters, and their gradients

States are those of the rank's own stages, where calc.footprint takes the average N / (t p). All
experts get equally many tokens. Ranks that can be fullest: 0 (most in flight, embedding), the last
(head and loss), and of the others the first of each kind of layers: in flight never rises along the
pipeline. Windows change no bytes, because flash attention keeps no scores.

Layers of each stage (`layer_counts`); stage s is on rank s % pp:

    equal       L layers, S stages, L / S each
    balanced    (L + 2) / S each, of which the embedding is one on the first stage, and the head one
                on the last: these have one layer less, even none
    uneven      the first L % S have one more; not where stages are virtual
    given       Layout.stages

L = 126, S = 16 * 8 is balanced: the first and the last virtual stage have no layer, all others one,
as Llama 3 405B was trained.

Parameters that one GPU holds (`held_by_ranks`), of its layers and of the pipeline's ends:

    layer           attention, two norms, an MLP;          / t
    with experts    attention, two norms, router, shared experts, / t; its routed experts / (e x),
                    of which x ranks cut each
    first stage     embedding, learned positions           / t
    last stage      last norm, head: where it is tied, a copy of the embedding, / t

    rank r of p     its stages r, p + r, 2 p + r ... together

So the ranks at the ends hold more than those between: 39% more than N/p for llama3-8b on 8 stages.
Of fewer key-value heads than t, each rank holds one. Shares of t ranks are rounded up. Norms are on
every rank of tp, but counted as sharded: 2 D of a layer.

A model with experts or latent attention counts as a dense one that keeps as many activations:

    experts            the MLP of a token: k + shared experts, side by side
    latent attention   all heads' keys and values, expanded; a head has the mean of the sizes of its
                       query, key and value, rounded up

The formulas for dense layers leave out what is dispatched, which is added.

In fp8, as Transformer Engine keeps it: inputs of linear layers have 1 byte, but for the router's.
Attention's output is kept in 16 bits for attention's backward, and in 8 for the layer after it.
Weights have 2 bytes, in 8 bits once as they are and once transposed, as Hopper's products ask for.

recompute="selective", as DeepSeek-V3 has it:

    latent attention   queries, keys and values again, from compressed ones:
                       query and key-value ranks + rotary features
    experts            their outputs are not kept, k D less: the gradient of a token's weight is
                       <g, h W> = <g W^T, h>, which backward has; h is inside the MLP

Papers: Narayanan et al., arXiv:2104.04473, section 2, for stages and tied embeddings; Llama 3,
arXiv:2407.21783, section 3.3.2; DeepSeek-V3, arXiv:2412.19437, section 3.2.3.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from labkit import arguments
from labkit.calc.bubble import in_flight_microbatches
from labkit.calc.layout import Layout
from labkit.calc.memory.activations import activation_bytes
from labkit.calc.memory.footprint import kept_unit_bytes, layers_bytes, whole_unit_bytes
from labkit.calc.memory.loss import head_parts
from labkit.calc.memory.model_state import model_state_bytes
from labkit.calc.memory.torch_buffers import gathered_gradient_bytes, stage_buffer_bytes
from labkit.calc.models import ModelConfig
from labkit.calc.parameters import (
    attention_parameters,
    end_parameters,
    layer_norms,
    layer_parameters,
    mlp_parameters,
    router_parameters,
    with_copied_heads,
)
from labkit.calc.plan.job import Job, check_asked
from labkit.calc.result import Result, total
from labkit.calc.traffic.cost import chunk_numels
from labkit.calc.units import number_text

_CACHED = 1 << 16


class StageLayers(NamedTuple):
    """Numbers of layers of one stage."""

    dense: int
    experts: int
    """Layers that have experts."""

    @property
    def total(self) -> int:
        """Layers."""
        return self.dense + self.experts


@lru_cache(maxsize=4096)
def layer_counts(layers: int, num_stages: int, virtual: int = 1) -> tuple[int, ...] | None:
    """Return the number of layers of each stage. None: no rule divides them."""
    if layers % num_stages == 0:
        return (layers // num_stages,) * num_stages
    if num_stages > 2 and (layers + 2) % num_stages == 0:
        each = (layers + 2) // num_stages
        return (each - 1, *(each,) * (num_stages - 2), each - 1)
    if virtual > 1 or layers < num_stages:
        return None
    return tuple(chunk_numels(layers, num_stages))


def stage_layers(config: ModelConfig, layout: Layout) -> tuple[StageLayers, ...] | None:
    """Return layers by stage, in the order of the model. None: no rule divides them."""
    return _stage_layers(config, layout.pp, layout.virtual, layout.stages)


@lru_cache(maxsize=4096)
def _stage_layers(
    config: ModelConfig, pp: int, virtual: int, stages: tuple[int, ...] | None
) -> tuple[StageLayers, ...] | None:
    counts = stages or layer_counts(config.layers, pp * virtual, virtual)
    if counts is None or sum(counts) != config.layers:
        return None
    found, before = [], 0
    for count in counts:
        experts = sum(kind.mlp == "experts" for kind in config.kinds[before : before + count])
        found.append(StageLayers(count - experts, experts))
        before += count
    return tuple(found)


def layers_of_rank(config: ModelConfig, layout: Layout, rank: int) -> StageLayers:
    """Return the layers of all of a rank's stages together."""
    return _layers_of_ranks(config, layout.pp, layout.virtual, layout.stages)[rank]


@lru_cache(maxsize=4096)
def _layers_of_ranks(
    config: ModelConfig, pp: int, virtual: int, stages: tuple[int, ...] | None
) -> tuple[StageLayers, ...]:
    found = _stage_layers(config, pp, virtual, stages)
    assert found is not None, "a rule refuses such layouts"
    return tuple(
        StageLayers(sum(each.dense for each in mine), sum(each.experts for each in mine))
        for mine in (found[rank::pp] for rank in range(pp))
    )


class Held(NamedTuple):
    """Numbers of parameters of one GPU."""

    others: int
    """All but routed experts: one copy on each of d c ranks."""
    experts: int
    """Routed experts: one copy on each of Layout.expert_shards ranks."""

    @property
    def total(self) -> int:
        """Both."""
        return self.others + self.experts


def held_by_stage(config: ModelConfig, layout: Layout) -> tuple[Held, ...]:
    """Return the parameters of each stage, in the order of the model."""
    cut = (layout.tp, layout.ep * layout.expert_tp)
    return _by_stage(config, layout.pp, layout.virtual, layout.stages, *cut)


def held_by_ranks(config: ModelConfig, layout: Layout) -> tuple[Held, ...]:
    """Return the parameters of each rank of the pipeline, all its stages together."""
    return _by_rank(held_by_stage(config, layout), layout.pp)


@lru_cache(maxsize=1 << 12)
def _by_rank(stages: tuple[Held, ...], pp: int) -> tuple[Held, ...]:
    return tuple(
        Held(sum(each.others for each in mine), sum(each.experts for each in mine))
        for mine in (stages[rank::pp] for rank in range(pp))
    )


@lru_cache(maxsize=1 << 12)
def _by_stage(
    config: ModelConfig,
    pp: int,
    virtual: int,
    stages: tuple[int, ...] | None,
    tp: int,
    of_experts: int,
) -> tuple[Held, ...]:
    layers = _stage_layers(config, pp, virtual, stages)
    assert layers is not None, "a rule refuses such layouts"
    config, last = with_copied_heads(config, tp), len(layers) - 1
    return tuple(
        _held(config, each, end_parameters(config, place == 0, place == last), tp, of_experts)
        for place, each in enumerate(layers)
    )


def _held(config: ModelConfig, layers: StageLayers, of_ends: int, tp: int, of_experts: int) -> Held:
    shared = attention_parameters(config) + layer_norms(config)
    others = of_ends + layers.total * shared
    others += layers.dense * mlp_parameters(config, config.mlp_features) if layers.dense else 0
    experts = 0
    if layers.experts:
        expert = mlp_parameters(config, config.expert_features)
        others += layers.experts * (router_parameters(config) + config.shared_experts * expert)
        experts = layers.experts * config.num_experts * expert
    return Held(-(-others // tp), -(-experts // of_experts))


@lru_cache(maxsize=256)
def like_dense(config: ModelConfig, num_experts: int) -> ModelConfig:
    """Return a dense model with the same attention and an MLP for so many experts; 0: its own."""
    none = {"num_experts": 0, "top_k": 0, "shared_experts": 0, "dense_layers": 0}
    changed: dict[str, Any] = none | {"pattern": (), "window": 0}
    changed |= {"expert_ffn": None, "shared_gate": False}
    if num_experts:
        changed["ffn"] = num_experts * config.expert_features
    if config.is_latent:
        of_key = config.features_per_head + config.rope_head_dim
        changed |= {"kv_heads": None, "head_dim": -(-(2 * of_key + config.value_head_dim) // 3)}
        changed |= {"kv_lora_rank": 0, "q_lora_rank": 0, "rope_head_dim": 0, "value_head_dim": 0}
    return replace(config, **changed)


def memory(job: Job, layout: Layout, rank: int | None = None) -> Result:
    """Return the bytes of one GPU, by part. rank: of the pipeline; None: the fullest.

    ValueError for a batch that the ranks cannot share.
    """
    check_asked(job, layout)
    if rank is None:
        rank = fullest(job, layout)[0]
    rank = arguments.rank("rank", rank, layout.pp)
    return total(
        f"one GPU of {layout.world_size:,}, rank {rank} of {layout.pp} of the pipeline",
        rank_parts(job, layout, rank),
        formula="states + activations of its layers * in flight + what passes through",
        convention=f"as calc.footprint; {job.assumptions.loss} loss; experts get equally many "
        f"tokens; {job.assumptions.reserve_bytes / 2**30:g} GiB more are kept free for CUDA, "
        "communication buffers and fragmentation",
        source="arXiv:1910.02054, arXiv:2205.05198, arXiv:2104.04473",
    )


def fullest(job: Job, layout: Layout) -> tuple[int, dict[str, Result]]:
    """Return the rank of the pipeline that holds most, and its bytes by part."""
    held = {rank: rank_parts(job, layout, rank) for rank in _candidates(job, layout)}
    return max(held.items(), key=lambda item: sum([part.value for part in item[1].values()]))


def rank_parts(job: Job, layout: Layout, rank: int) -> dict[str, Result]:
    """Return the bytes of a rank, by name of the part."""
    held = held_by_ranks(job.config, layout)[rank]
    shards = layout.num_shards
    parts = dict(_states(job, held, layout.zero, shards, layout.expert_shards))
    if layout.zero >= 2 and shards > 1:
        parts["whole units"] = _units(job, layout, held, rank)
    cut = (layout.tp, layout.cp, layout.sequence_parallel, layout.microbatch)
    how = (layout.recompute, layout.recompute_every)
    layers = layers_of_rank(job.config, layout, rank)
    num, flying = layout.num_microbatches(job.global_batch), in_flight(job, layout)[rank]
    parts |= _of_layers(job, layers, flying, *how, *cut)
    parts |= _by_torch(job, cut, (layout.pp, layout.virtual, num, flying, rank))
    if rank == layout.pp - 1:
        parts |= _head(job, *cut)
    return parts


@lru_cache(maxsize=_CACHED)
def _of_layers(
    job: Job, layers: StageLayers, at_once: float, recompute: str, every: int, *cut: Any
) -> dict[str, Result]:
    kept, whole = (_layer(job, *cut, each) for each in (recompute, "none"))
    num = [each // every for each in layers]
    others = [all_of - some for all_of, some in zip(layers, num, strict=True)]
    parts = layers_bytes(at_once, zip((*num, *others), (*kept, *whole), strict=True))
    if again := max(all_of - part for all_of, part in zip(whole, kept, strict=True)):
        parts["recomputed layer"] = Result(
            again, "bytes", "recomputed layer", substitution="1 layer: all - what is kept"
        )
    return parts


def in_flight(job: Job, layout: Layout) -> tuple[float, ...]:
    """Return the microbatches in flight by rank of the pipeline, in all layers of a rank."""
    return _in_flight(layout.pp, layout.num_microbatches(job.global_batch), layout.virtual)


@lru_cache(maxsize=_CACHED)
def _in_flight(pp: int, num: int, virtual: int) -> tuple[float, ...]:
    schedule = "interleaved" if virtual > 1 else "1f1b"
    return tuple(each / virtual for each in in_flight_microbatches(pp, num, schedule, virtual))


def _candidates(job: Job, layout: Layout) -> set[int]:
    """Return ranks of which one is the fullest: the ends, and the first with such layers."""
    of_ranks = _layers_of_ranks(job.config, layout.pp, layout.virtual, layout.stages)
    return {0, layout.pp - 1, *_first_places(of_ranks[:-1])}


@lru_cache(maxsize=4096)
def _first_places(of_ranks: tuple[StageLayers, ...]) -> tuple[int, ...]:
    """Return the first place of each that is there, but for the place 0."""
    between = of_ranks[1:]
    return tuple(1 + between.index(each) for each in set(between))


@lru_cache(maxsize=_CACHED)
def _states(
    job: Job, held: Held, zero: int, shards: int, shards_of_experts: int
) -> dict[str, Result]:
    parts = dict(model_state_bytes(held.others, job.kept, zero, shards).parts)
    if held.experts:
        of_experts = model_state_bytes(held.experts, job.kept, zero, shards_of_experts).parts
        for name, part in of_experts.items():
            how = f"{parts[name].substitution} + {part.substitution} of experts"
            parts[name] = replace(parts[name] + part, name=name, substitution=how, parts={})
    if job.kept.cast_bytes and zero < 3:
        nbytes = job.kept.cast_bytes * held.total
        how = f"{number_text(job.kept.cast_bytes)} B * {held.total:,}"
        parts["casts"] = Result(nbytes, "bytes", "casts", substitution=how)
    return parts


def _units(job: Job, layout: Layout, held: Held, rank: int) -> Result:
    if layout.keeps_units:
        return kept_unit_bytes(job.kept, held.total, layout.pp)
    place = 0 if rank == 0 else layout.pp - 1 if rank == layout.pp - 1 else 1
    experts = job.config.num_experts * layout.tp / (layout.ep * layout.expert_tp)
    cut = (layout.tp, layout.pp, layout.zero, layout.virtual, math.ceil(experts))
    return _passing_units(job, *cut, place)


@lru_cache(maxsize=_CACHED)
def _passing_units(
    job: Job, tp: int, pp: int, zero: int, virtual: int, experts: int, place: int
) -> Result:
    """Return units that are whole for a moment. experts: of a layer, if tp cuts each."""
    config = job.config
    if config.num_experts:
        config = like_dense(config, experts + config.shared_experts)
    config = with_copied_heads(config, tp)
    unit = whole_unit_bytes(config, job.kept, zero, tp, pp, place)
    layers = -(-config.layers // (pp * virtual))
    if zero == 3 or virtual == 1 or layers == 1:
        return unit
    layer = -(-layer_parameters(config) // tp)
    how = f"{number_text(job.kept.gradient_bytes)} B * {layers} layers * {layer:,}"
    stage = job.kept.gradient_bytes * layers * layer
    return max(unit, Result(stage, "bytes", "whole units", substitution=how))


@lru_cache(maxsize=_CACHED)
def _layer(
    job: Job, tp: int, cp: int, sequence_parallel: bool, microbatch: int, recompute: str
) -> tuple[float, float]:
    """Return bytes kept by (a dense layer, one with experts); 0 if there is none."""
    config, b = job.config, job.kept.activation_itemsize

    def kept(num_experts: int) -> float:
        layer = replace(like_dense(config, num_experts), layers=1)
        cut = (microbatch, tp, sequence_parallel, cp, recompute, job.assumptions.flash)
        assumed = job.assumptions
        how: dict[str, Any] = {"dropout": False, "fused": assumed.fused}
        how |= {"gathered_inputs": assumed.gathered_inputs}
        return float(activation_bytes(layer, *cut, sequence=job.length, itemsize=b, **how))

    num = config.top_k + config.shared_experts
    dense, experts = kept(0), kept(num) if config.num_experts else 0.0
    if recompute == "full":
        return dense, experts
    tokens, whole = microbatch * job.length / cp, tp if sequence_parallel else 1
    of_inputs = 1 if job.assumptions.gathered_inputs else whole
    inner = 0.0
    if recompute == "selective" and config.is_latent:
        expanded = 3 * config.heads * like_dense(config, 0).features_per_head / tp
        compressed = config.q_lora_rank + config.kv_lora_rank + config.rope_head_dim
        inner += b * (compressed / whole - expanded)
    in_fp8 = job.precision == "fp8" and recompute != "operations"
    D, saved = config.hidden, b - 1 if in_fp8 else 0
    if in_fp8:
        values = config.value_head_dim or config.features_per_head
        inner += config.heads * values / tp - saved * D / of_inputs
    of_mlp = config.mlp_features / tp + D / of_inputs
    dense += tokens * (inner - saved * of_mlp)
    if config.num_experts:
        outputs = 0 if recompute == "selective" else b
        inner += config.top_k * D * (b - saved + outputs) / whole
        experts += tokens * (inner - saved * num * config.expert_features / tp)
    return dense, experts


@lru_cache(maxsize=_CACHED)
def _head(job: Job, *cut: Any) -> dict[str, Result]:
    return head_parts(*_sizes(job, *cut), **_how(job), loss=job.assumptions.loss)


def _by_torch(job: Job, cut: tuple[Any, ...], pipe: tuple[Any, ...]) -> dict[str, Result]:
    parts: dict[str, Result] = {}
    if job.assumptions.gathered_inputs:
        parts |= gathered_gradient_bytes(*_sizes(job, *cut), **_how(job))
    if job.assumptions.stage_buffers:
        loss = job.assumptions.loss
        parts |= stage_buffer_bytes(*_sizes(job, *cut), *pipe, **_how(job), loss=loss)
    return parts


def _sizes(
    job: Job, tp: int, cp: int, sequence_parallel: bool, microbatch: int
) -> tuple[ModelConfig, int, int, bool, int]:
    return job.config, microbatch, tp, sequence_parallel, cp


def _how(job: Job) -> dict[str, Any]:
    return {"sequence": job.length, "itemsize": job.kept.activation_itemsize}
