"""Find the lowest ZeRO level at which training fits into a GPU's memory.

An interviewer asks: "This model, on these GPUs. Does it fit with plain data parallelism? With
ZeRO-1? Which level do you take, and why not the one below?"

Each level needs more communication or more care than the level below it. You therefore take the
lowest level that fits. Write `which_stage_fits(setup)`. A setup is a dict:

    num_params        parameters of the model
    parameter_bytes   bytes per parameter of the parameters, without sharding
    gradient_bytes    bytes per parameter of the gradients, without sharding
    optimizer_bytes   bytes per parameter of everything that the optimizer keeps, including a master
                      copy, without sharding
    dp                data-parallel ranks
    activation_bytes  bytes of activations that one rank keeps for its own microbatch
    reserve_gb        memory for CUDA's context, communication buffers and fragmentation, in GB of
                      1e9 bytes
    memory_gib        memory of one GPU, in GiB of 2**30 bytes; memory_gib * 2**30 is a whole
                      number, exact in a float

Level 0 shards nothing. Level 1 shards the optimizer's bytes over the dp ranks. Level 2 also shards
gradients, and level 3 also parameters. Shards are made of whole parameters. If dp does not divide
num_params, some ranks have one parameter more than others, and it must fit on these ranks too.

One rank holds five terms: "optimizer", "gradients", "parameters", "activations" and "reserve". A
level fits if the sum of the five is at most the memory of one GPU, exact to the byte.

    returns  (level, largest)
             level    the lowest level that fits: 0, 1, 2 or 3. None if no level fits
             largest  a list with one name for each level below `level`, from level 0 on. If level
                      is None, it has four names. Each name is the largest of the five terms at that
                      level. Of equal terms take the first in the order above

Contract
    never    labkit.calc. The answer takes a few lines
"""

from collections.abc import Mapping
from typing import Any


def which_stage_fits(setup: Mapping[str, Any]) -> tuple[int | None, list[str]]:
    """Find the lowest ZeRO level that fits, and the largest term of each level below it."""
    ### BEGIN SOLUTION
    num_params, shard = setup["num_params"], -(-setup["num_params"] // setup["dp"])
    largest: list[str] = []
    for level in range(4):
        terms = {
            "optimizer": (shard if level >= 1 else num_params) * setup["optimizer_bytes"],
            "gradients": (shard if level >= 2 else num_params) * setup["gradient_bytes"],
            "parameters": (shard if level >= 3 else num_params) * setup["parameter_bytes"],
            "activations": setup["activation_bytes"],
            "reserve": setup["reserve_gb"] * 1e9,
        }
        if sum(terms.values()) <= setup["memory_gib"] * 2**30:
            return level, largest
        largest.append(max(terms, key=terms.__getitem__))  # the first of equal terms
    return None, largest
    ### END SOLUTION
