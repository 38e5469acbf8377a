"""Which layers each stage of a pipeline has.

    equal       L layers, S stages, L / S each
    balanced    (L + 2) / S each, of which the embedding is one on the first stage, and the head one
                on the last: these have one layer less, even none
    uneven      the first L % S have one more; not where stages are virtual

L = 126, S = 16 * 8 is balanced: the first and the last virtual stage have no layer, all others one,
as Llama 3 405B was trained. Stage s is on rank s % pp.
Paper: Llama 3, arXiv:2407.21783, section 3.3.2.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from labkit.calc.models.model_config import ModelConfig
from labkit.calc.traffic.chunks import chunk_numels


class StageLayers(NamedTuple):
    """Of one stage."""

    dense: int
    experts: int
    """Layers that have experts."""

    @property
    def total(self) -> int:
        """Layers."""
        return self.dense + self.experts


@lru_cache(maxsize=4096)
def layer_counts(layers: int, num_stages: int, virtual: int = 1) -> tuple[int, ...] | None:
    """By stage, of which there are num_stages on all ranks together. None: they cannot be cut."""
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
    """By stage, in the order of the model: its first layers have no experts."""
    counts = layer_counts(config.layers, num_stages, virtual)
    if counts is None:
        return None
    found, before = [], 0
    without = config.layers - config.expert_layers
    for count in counts:
        dense = min(max(without - before, 0), count)
        found.append(StageLayers(dense, count - dense))
        before += count
    return tuple(found)


@lru_cache(maxsize=1 << 14)
def layers_of_rank(config: ModelConfig, pp: int, virtual: int, rank: int) -> StageLayers:
    """Of all its stages together."""
    stages = stage_layers(config, pp * virtual, virtual)
    assert stages is not None, "a rule refuses such layouts"
    mine = stages[rank::pp]
    return StageLayers(sum(each.dense for each in mine), sum(each.experts for each in mine))
