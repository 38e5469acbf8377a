"""Bytes of a GPU by part, on the rank of the pipeline that is fullest.

As calc.footprint counts, part by part, and beyond it: experts, latent attention, stages without
equally many layers.

    states        of the rank's parameters (parameters_by_rank.py): over d c ranks, experts over
                  d c / e
    activations   what is kept of a microbatch by each layer of the rank, times those in flight
    dispatched    with experts: inputs and outputs of a token's k experts, 2 k D more
    whole units   as whole_units.py; zero 2 with virtual stages: a whole stage, whose gradients are
                  reduced after a round of p microbatches

Unlike calc.footprint, whose states are N / (t p), an average over the stages. All experts get
equally many tokens. Layers with experts and latent attention keep what a dense layer keeps that is
like them: likeness.py.

Ranks that can be fullest: 0 (most in flight, embedding), the first whose layers are no fewer (1),
the first ones that have experts, and the last (head and loss). In flight never rises along the
pipeline, and ranks between hold the same otherwise, so no other can.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from labkit.calc.checked_numbers import check_rank
from labkit.calc.layout import Layout
from labkit.calc.memory.activations import activation_bytes
from labkit.calc.memory.head import head_input_bytes, logits_bytes, loss_gradient_bytes
from labkit.calc.memory.model_state import model_state_bytes
from labkit.calc.memory.whole_units import whole_unit_bytes
from labkit.calc.models.parameters import layer_parameters
from labkit.calc.pipeline.bubble import in_flight_microbatches
from labkit.calc.plan.job import Job, check_asked
from labkit.calc.plan.layers_by_stage import StageLayers, layers_of_rank
from labkit.calc.plan.likeness import like_dense
from labkit.calc.plan.parameters_by_rank import Held, held_by_ranks
from labkit.calc.result import Result, total
from labkit.calc.units import number_text

_CACHED = 1 << 16


def memory(job: Job, layout: Layout, rank: int | None = None) -> Result:
    """Bytes of one GPU, by part. rank: of the pipeline; None: the fullest.

    ValueError for a batch that the ranks cannot share.
    """
    check_asked(job, layout)
    if rank is None:
        rank = fullest(job, layout)[0]
    rank = check_rank(rank, layout.pp)
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
    """The rank of the pipeline that holds most, and what, by part."""
    held = {rank: rank_parts(job, layout, rank) for rank in _candidates(job, layout)}
    return max(held.items(), key=lambda item: sum([part.value for part in item[1].values()]))


def rank_parts(job: Job, layout: Layout, rank: int) -> dict[str, Result]:
    """By name."""
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
    """By rank of the pipeline: microbatches, of all its layers."""
    return _in_flight(layout.pp, layout.num_microbatches(job.global_batch), layout.virtual)


@lru_cache(maxsize=_CACHED)
def _in_flight(pp: int, num: int, virtual: int) -> tuple[float, ...]:
    schedule = "interleaved" if virtual > 1 else "1f1b"
    return tuple(each / virtual for each in in_flight_microbatches(pp, num, schedule, virtual))


def _candidates(job: Job, layout: Layout) -> set[int]:
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
    """Kept by (a dense layer, one with experts, again for a moment while one is recomputed)."""
    cut = {"tp": tp, "cp": cp, "sequence_parallel": sequence_parallel, "microbatch": microbatch}
    kept, whole = (_kept(job, recompute=each, **cut) for each in (recompute, "none"))
    return *kept, max(all_of - part for all_of, part in zip(whole, kept, strict=True))


def _kept(job: Job, *, recompute: str, **cut: Any) -> tuple[float, float]:
    """By (a dense layer, one with experts; 0 where there is none)."""
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
