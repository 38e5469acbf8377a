"""Bytes of a GPU by part, on the rank of the pipeline that is fullest.

The parts of calc.footprint, and beyond it experts, latent attention, and stages with unequal
numbers of layers.

    states        of the rank's parameters: over d c ranks, experts over d c / e
    activations   what is kept of a microbatch by each layer of the rank, times those in flight
    dispatched    with experts: inputs and outputs of a token's k experts, 2 k D more
    whole units   as footprint.py; zero 2 with virtual stages: a whole stage, whose gradients are
                  reduced after a round of p microbatches

States are those of the rank's own stages, where calc.footprint takes the average N / (t p). All
experts get equally many tokens. Ranks that can be fullest: 0 (most in flight, embedding), the first
whose layers are no fewer (1), the first ones that have experts, and the last (head and loss). In
flight never rises along the pipeline, and ranks between hold the same otherwise, so no other can.

Layers of each stage (`layer_counts`); stage s is on rank s % pp:

    equal       L layers, S stages, L / S each
    balanced    (L + 2) / S each, of which the embedding is one on the first stage, and the head one
                on the last: these have one layer less, even none
    uneven      the first L % S have one more; not where stages are virtual

L = 126, S = 16 * 8 is balanced: the first and the last virtual stage have no layer, all others one,
as Llama 3 405B was trained.

Parameters that one GPU holds (`held_by_ranks`), of its layers and of the pipeline's ends:

    layer           attention, two norms, an MLP;          / t
    with experts    attention, two norms, router, shared experts, / t; its routed experts / (t e)
    first stage     embedding, learned positions           / t
    last stage      last norm, head: where it is tied, a copy of the embedding, / t

    rank r of p     its stages r, p + r, 2 p + r ... together

So the ranks at the ends hold more than those between: 39% more than N/p for llama3-8b on 8 stages.
Shares of t ranks are rounded up. Norms are on every rank of tp, but counted as sharded: 2 D of a
layer.

A model with experts or latent attention counts as a dense one that keeps as many activations:

    experts            the MLP of a token: k + shared experts, side by side
    latent attention   all heads' keys and values, expanded; a head has the mean of the sizes of its
                       query, key and value, rounded up

The formulas for dense layers leave out inputs of each expert and the compressed keys, which are
added.

Papers: Narayanan et al., arXiv:2104.04473, section 2, for stages and tied embeddings; Llama 3,
arXiv:2407.21783, section 3.3.2.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from labkit import arguments
from labkit.calc.bubble import in_flight_microbatches
from labkit.calc.layout import Layout
from labkit.calc.memory.activations import (
    activation_bytes,
    head_input_bytes,
    logits_bytes,
    loss_gradient_bytes,
)
from labkit.calc.memory.footprint import whole_unit_bytes
from labkit.calc.memory.model_state import model_state_bytes
from labkit.calc.models import ModelConfig
from labkit.calc.parameters import (
    attention_parameters,
    end_parameters,
    layer_norms,
    layer_parameters,
    mlp_parameters,
    router_parameters,
)
from labkit.calc.plan.job import Job, check_asked
from labkit.calc.result import Result, total
from labkit.calc.traffic.cost import chunk_numels
from labkit.calc.units import number_text


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


@lru_cache(maxsize=4096)
def stage_layers(
    config: ModelConfig, num_stages: int, virtual: int
) -> tuple[StageLayers, ...] | None:
    """Return layers by stage, in the order of the model."""
    counts = layer_counts(config.layers, num_stages, virtual)
    if counts is None:
        return None
    found, before = [], 0
    for count in counts:
        experts = sum(kind.mlp == "experts" for kind in config.kinds[before : before + count])
        found.append(StageLayers(count - experts, experts))
        before += count
    return tuple(found)


@lru_cache(maxsize=1 << 14)
def layers_of_rank(config: ModelConfig, pp: int, virtual: int, rank: int) -> StageLayers:
    """Return the layers of all of a rank's stages together."""
    stages = stage_layers(config, pp * virtual, virtual)
    assert stages is not None, "a rule refuses such layouts"
    mine = stages[rank::pp]
    return StageLayers(sum(each.dense for each in mine), sum(each.experts for each in mine))


class Held(NamedTuple):
    """Numbers of parameters of one GPU."""

    others: int
    """All but routed experts: one copy on each of d c ranks."""
    experts: int
    """Routed experts: one copy on each of d c / e ranks."""

    @property
    def total(self) -> int:
        """Both."""
        return self.others + self.experts


def held_by_stage(config: ModelConfig, layout: Layout) -> tuple[Held, ...]:
    """Return the parameters of each stage, in the order of the model."""
    return _by_stage(config, layout.pp, layout.virtual, layout.tp, layout.ep)


def held_by_ranks(config: ModelConfig, layout: Layout) -> tuple[Held, ...]:
    """Return the parameters of each rank of the pipeline, all its stages together."""
    return _by_rank(config, layout.pp, layout.virtual, layout.tp, layout.ep)


@lru_cache(maxsize=1 << 12)
def _by_rank(config: ModelConfig, pp: int, virtual: int, tp: int, ep: int) -> tuple[Held, ...]:
    stages = _by_stage(config, pp, virtual, tp, ep)
    return tuple(
        Held(sum(each.others for each in mine), sum(each.experts for each in mine))
        for mine in (stages[rank::pp] for rank in range(pp))
    )


@lru_cache(maxsize=1 << 12)
def _by_stage(config: ModelConfig, pp: int, virtual: int, tp: int, ep: int) -> tuple[Held, ...]:
    stages = stage_layers(config, pp * virtual, virtual)
    assert stages is not None, "a rule refuses such layouts"
    last = len(stages) - 1
    return tuple(
        _held(config, layers, end_parameters(config, place == 0, place == last), tp, ep)
        for place, layers in enumerate(stages)
    )


def _held(config: ModelConfig, layers: StageLayers, of_ends: int, tp: int, ep: int) -> Held:
    shared = attention_parameters(config) + layer_norms(config)
    others = of_ends + layers.total * shared
    others += layers.dense * mlp_parameters(config, config.mlp_features) if layers.dense else 0
    experts = 0
    if layers.experts:
        expert = mlp_parameters(config, config.expert_features)
        others += layers.experts * (router_parameters(config) + config.shared_experts * expert)
        experts = layers.experts * config.num_experts * expert
    return Held(-(-others // tp), -(-experts // (tp * ep)))


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


_CACHED = 1 << 16


def memory(job: Job, layout: Layout, rank: int | None = None) -> Result:
    """Return the bytes of one GPU, by part. rank: of the pipeline; None: the fullest.

    ValueError for a batch that the ranks cannot share.
    """
    check_asked(job, layout)
    if rank is None:
        rank = fullest(job, layout)[0]
    rank = arguments.rank("rank", rank, layout.pp)
    parts = dict(rank_parts(job, layout, rank))
    layers, at_once = _layers_of(job, layout, rank).total, in_flight(job, layout)[rank]
    each = parts["activations"].value / (at_once * layers) if layers else 0.0
    how = f"{layers} layers * {number_text(at_once)} in flight * {Result(each, 'bytes')}"
    parts["activations"] = replace(parts["activations"], substitution=how)
    return total(
        f"one GPU of {layout.world_size:,}, rank {rank} of {layout.pp} of the pipeline",
        parts,
        formula="states + activations of its layers * in flight + what passes through",
        convention="as calc.footprint; experts get equally many tokens; "
        f"{job.assumptions.reserve_bytes / 2**30:g} GiB more are kept free",
        source="arXiv:1910.02054, arXiv:2205.05198, arXiv:2104.04473",
    )


def fullest(job: Job, layout: Layout) -> tuple[int, dict[str, Result]]:
    """Return the rank of the pipeline that holds most, and its bytes by part."""
    held = {rank: rank_parts(job, layout, rank) for rank in _candidates(job, layout)}
    return max(held.items(), key=lambda item: sum([part.value for part in item[1].values()]))


def rank_parts(job: Job, layout: Layout, rank: int) -> dict[str, Result]:
    """Return the bytes of a rank, by name of the part."""
    shards = layout.dp * layout.cp
    held = held_by_ranks(job.config, layout)[rank]
    parts = dict(_states(job, held, layout.ep, layout.zero, shards))
    if layout.zero >= 2 and shards > 1:
        place = 0 if rank == 0 else layout.pp - 1 if rank == layout.pp - 1 else 1
        cut = (layout.tp, layout.pp, layout.ep)
        parts["whole units"] = _units(job, *cut, layout.zero, layout.virtual, place)
    layers, cut_by = _layers_of(job, layout, rank), (layout.sequence_parallel, layout.microbatch)
    dense, experts, again = _layer(job, layout.tp, layout.cp, *cut_by, layout.recompute)
    kept = layers.dense * dense + layers.experts * experts
    parts["activations"] = Result(in_flight(job, layout)[rank] * kept, "bytes", "activations")
    if again:
        parts["recomputed layer"] = Result(
            again, "bytes", "recomputed layer", substitution="1 layer: all - what is kept"
        )
    if rank == layout.pp - 1:
        parts |= _head(job, layout.tp, layout.cp, *cut_by)
    return parts


def _layers_of(job: Job, layout: Layout, rank: int) -> StageLayers:
    return layers_of_rank(job.config, layout.pp, layout.virtual, rank)


def in_flight(job: Job, layout: Layout) -> tuple[float, ...]:
    """Return the microbatches in flight by rank of the pipeline, in all layers of a rank."""
    return _in_flight(layout.pp, layout.num_microbatches(job.global_batch), layout.virtual)


@lru_cache(maxsize=_CACHED)
def _in_flight(pp: int, num: int, virtual: int) -> tuple[float, ...]:
    schedule = "interleaved" if virtual > 1 else "1f1b"
    return tuple(each / virtual for each in in_flight_microbatches(pp, num, schedule, virtual))


def _candidates(job: Job, layout: Layout) -> set[int]:
    if job.config.pattern:  # any stage may have most of the experts
        return set(range(layout.pp))
    per_stage = -(-job.config.layers // (layout.pp * layout.virtual))
    without = job.config.layers - job.config.expert_layers if job.config.num_experts else 0
    first = without // per_stage
    found = {0, 1, first, first + 1, first + 2, layout.pp - 1}
    return {rank for rank in found if 0 <= rank < layout.pp}


@lru_cache(maxsize=_CACHED)
def _states(job: Job, held: Held, ep: int, zero: int, shards: int) -> dict[str, Result]:
    parts = dict(model_state_bytes(held.others, job.kept, zero, shards).parts)
    if held.experts:
        of_experts = model_state_bytes(held.experts, job.kept, zero, max(shards // ep, 1)).parts
        for name, part in of_experts.items():
            how = f"{parts[name].substitution} + {part.substitution} of experts"
            parts[name] = replace(parts[name] + part, name=name, substitution=how, parts={})
    if job.kept.cast_bytes and zero < 3:
        nbytes = job.kept.cast_bytes * held.total
        how = f"{number_text(job.kept.cast_bytes)} B * {held.total:,}"
        parts["casts"] = Result(nbytes, "bytes", "casts", substitution=how)
    return parts


@lru_cache(maxsize=_CACHED)
def _units(job: Job, tp: int, pp: int, ep: int, zero: int, virtual: int, place: int) -> Result:
    config = job.config
    if config.num_experts:
        config = like_dense(config, config.num_experts // ep + config.shared_experts)
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
) -> tuple[float, float, float]:
    """Return bytes kept by (a dense layer, one with experts, the layer being recomputed)."""
    cut = {"tp": tp, "cp": cp, "sequence_parallel": sequence_parallel, "microbatch": microbatch}
    kept, whole = (_kept(job, recompute=each, **cut) for each in (recompute, "none"))
    return *kept, max(all_of - part for all_of, part in zip(whole, kept, strict=True))


def _kept(job: Job, *, recompute: str, **cut: Any) -> tuple[float, float]:
    """Return bytes kept by (a dense layer, one with experts); 0 if there is none."""
    config, a = job.config, job.assumptions
    how: dict[str, Any] = {
        "recompute": recompute,
        "flash": a.flash,
        "fused": a.fused,
        "dropout": False,
    }
    how |= {"sequence": job.length, "itemsize": job.kept.activation_itemsize} | cut
    dense = float(activation_bytes(replace(like_dense(config, 0), layers=1), **how))
    if not config.num_experts:
        return dense, 0.0
    num = config.top_k + config.shared_experts
    experts = float(activation_bytes(replace(like_dense(config, num), layers=1), **how))
    if recompute != "full":
        tokens = cut["microbatch"] * job.length / cut["cp"]
        whole = cut["tp"] if cut["sequence_parallel"] else 1
        experts += 2 * config.top_k * config.hidden * how["itemsize"] * tokens / whole
    return dense, experts


@lru_cache(maxsize=_CACHED)
def _head(
    job: Job, tp: int, cp: int, sequence_parallel: bool, microbatch: int
) -> dict[str, Result]:
    sizes, itemsize = (job.config, microbatch, tp), job.kept.activation_itemsize
    inputs = head_input_bytes(*sizes, sequence_parallel, cp, sequence=job.length, itemsize=itemsize)
    return {
        "head inputs": inputs,
        "logits and loss": logits_bytes(*sizes, cp, sequence=job.length, itemsize=itemsize),
        "gradients of the loss": loss_gradient_bytes(*sizes, cp, sequence=job.length),
    }
