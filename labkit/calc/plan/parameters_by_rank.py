"""How many parameters one GPU holds: of its layers, and of the pipeline's ends.

    layer           attention, two norms, an MLP;          / t
    with experts    attention, two norms, router, shared experts, / t; its routed experts / (t e)
    first stage     embedding, learned positions           / t
    last stage      last norm, head: where it is tied, a copy of the embedding, / t

    rank r of p     its stages r, p + r, 2 p + r ... together

So the ranks at the ends hold more than those between: of llama3-8b on 8 stages 39% more than N/p.
A t-th is rounded up. Norms are on every rank of tp, and counted as cut: 2 D of a layer.
Paper: Narayanan et al., arXiv:2104.04473, section 2, for stages and tied embeddings.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from labkit.calc.layout import Layout
from labkit.calc.models.model_config import ModelConfig
from labkit.calc.models.parameters import (
    attention_parameters,
    end_parameters,
    mlp_parameters,
    norm_parameters,
    router_parameters,
)
from labkit.calc.plan.layers_by_stage import StageLayers, stage_layers


class Held(NamedTuple):
    """Parameters of one GPU."""

    others: int
    """All but routed experts: one copy on each of d c ranks."""
    experts: int
    """Routed experts: one copy on each of d c / e ranks."""

    @property
    def total(self) -> int:
        """Both."""
        return self.others + self.experts


def held_by_stage(config: ModelConfig, layout: Layout) -> tuple[Held, ...]:
    """Of each stage, in the order of the model."""
    return _by_stage(config, layout.pp, layout.virtual, layout.tp, layout.ep)


def held_by_ranks(config: ModelConfig, layout: Layout) -> tuple[Held, ...]:
    """Of each rank of the pipeline, all its stages together."""
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
    shared = attention_parameters(config) + 2 * norm_parameters(config)
    others = of_ends + layers.total * shared
    others += layers.dense * mlp_parameters(config, config.mlp_features) if layers.dense else 0
    experts = 0
    if layers.experts:
        expert = mlp_parameters(config, config.expert_features)
        others += layers.experts * (router_parameters(config) + config.shared_experts * expert)
        experts = layers.experts * config.num_experts * expert
    return Held(-(-others // tp), -(-experts // (tp * ep)))
