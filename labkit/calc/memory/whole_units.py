"""What is whole for a moment where all the rest is shards: the most that one rank has of it.

    zero 2    K_g max(layer, table)                      a gradient, before it is reduced
    zero 3    (K_p + K_g) rest + 2 (K_p + K_g) layer     the rest throughout, two layers in turn

A layer is an attention, an MLP and two norms. The rest is what belongs to no layer: embedding and
positions on the first stage, last norm and head on the last; on one stage a tied head is the
embedding, and counts once. Zero 3 gathers it for a whole pass, gathers the next layer while one
computes, and reduces the gradient of one while the next arises. An upper bound: not all of that is
there at once.

K bytes of a parameter as it is computed with, and of a gradient, by recipe. Tensor parallelism cuts
all of it by t. Papers: Rajbhandari et al., arXiv:1910.02054, section 5; Zhao et al., "PyTorch
FSDP", arXiv:2304.11277, section 3.2.1, for units.
"""

from __future__ import annotations

from labkit.calc.memory.recipe import Recipe
from labkit.calc.models.model_config import ModelConfig
from labkit.calc.models.parameters import end_parameters, layer_parameters
from labkit.calc.result import Result
from labkit.calc.traffic.chunks import chunk_numels
from labkit.calc.units import number_text


def whole_unit_bytes(
    config: ModelConfig, recipe: Recipe, zero: int, tp: int, pp: int, stage: int
) -> Result:
    """Of one rank of a stage, for zero 2 and 3 over several ranks; 0 bytes for the levels below.

    zero: the level. tp, pp: ranks that cut every parameter, and stages. stage: from 0.
    """
    layer = -(-layer_parameters(config) // tp)
    gathered = recipe.cast_bytes or recipe.parameter_bytes
    if zero == 3:
        rest = -(-end_parameters(config, stage == 0, stage == pp - 1) // tp)
        size = gathered + recipe.gradient_bytes
        num_layers = min(2, chunk_numels(config.layers, pp)[stage])
        number = rest + num_layers * layer
        how = f"{number_text(size)} B * ({rest:,} + {num_layers} * {layer:,})"
        return Result(size * number, "bytes", "whole units", substitution=how)
    size = recipe.gradient_bytes if zero == 2 else 0
    has_table = stage in (0, pp - 1)
    unit = max(layer, -(-config.vocab * config.hidden // tp) if has_table else 0)
    return Result(
        size * unit, "bytes", "whole units", substitution=f"{number_text(size)} B * {unit:,}"
    )
