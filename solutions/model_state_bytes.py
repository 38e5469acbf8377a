"""Model states on one rank, with ZeRO 0, 1, 2 and 3.

An interviewer asks: "7B parameters, mixed precision, Adam, 64 GPUs. How many bytes of parameters,
gradients and optimizer states does each GPU hold with ZeRO-1, with ZeRO-2, with ZeRO-3? People say
that the first two save 4x and 8x: do they?"

Write `model_state_bytes(num_params, recipe, zero, dp)`.

    num_params  of the model
    recipe      a dict, bytes per parameter of each copy that lives from step to step:
                    parameter_bytes  of the parameters themselves
                    gradient_bytes   of gradients
                    master_bytes     of the optimizer's own copy of the parameters; may be 0
                    moment_bytes     a list, of each value that the optimizer keeps: [4, 4] for Adam
    zero        the level: 0 shards nothing, 1 what the optimizer keeps, its copy of the parameters
                included, 2 gradients as well, 3 parameters as well
    dp          data-parallel ranks, over which that is sharded
    returns     bytes of the rank that holds most

Shards are cut in parameters, which come whole: of 10 parameters on 4 ranks the largest shard has 3,
whatever the bytes of each.

Contract
    returns  a whole number, to the byte
    never    labkit.calc. It is a few lines

Paper: Rajbhandari et al., "ZeRO", arXiv:1910.02054, figure 1.
"""

from collections.abc import Mapping
from typing import Any


def model_state_bytes(num_params: int, recipe: Mapping[str, Any], zero: int, dp: int) -> int:
    """Bytes of parameters, gradients and optimizer states on the rank that holds most."""
    ### BEGIN SOLUTION
    shard = -(-num_params // dp)  # rounded up: a parameter is on one rank, and not cut in two
    optimizer_bytes = recipe["master_bytes"] + sum(recipe["moment_bytes"])
    num_parameters = shard if zero >= 3 else num_params
    num_gradients = shard if zero >= 2 else num_params
    num_states = shard if zero >= 1 else num_params
    return (
        num_parameters * recipe["parameter_bytes"]
        + num_gradients * recipe["gradient_bytes"]
        + num_states * optimizer_bytes
    )
    ### END SOLUTION
