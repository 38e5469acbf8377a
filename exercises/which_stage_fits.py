"""The lowest ZeRO level that fits.

An interviewer asks: "This model, on these GPUs. Does it fit with plain data parallelism? With
ZeRO-1? Which level do you take, and why not the one below?"

Each level costs more communication or more care than the one before, so the lowest that fits is
taken. Write `which_stage_fits(setup)`. A setup is a dict:

    num_params        of the model
    parameter_bytes   for each parameter, on a rank that shards nothing: of parameters,
    gradient_bytes    of gradients,
    optimizer_bytes   and of all that the optimizer keeps, a master copy included
    dp                data-parallel ranks
    activation_bytes  that one rank keeps for its microbatch
    reserve_gb        for CUDA's context, communication buffers and fragmentation; in GB, 1e9 bytes
    memory_gib        of a GPU; in GiB, 2**30 bytes

Level 0 shards nothing over dp, level 1 the optimizer's bytes, level 2 gradients as well, level 3
parameters as well. Where the ranks do not divide the parameters, a shard has one parameter more on
some ranks, and those must fit, too. It fits if everything together is at most the GPU's memory.

    returns  (level, largest)
             level    0, 1, 2 or 3: the lowest at which it fits; None where there is none
             largest  a list with one name for each level that was tried in vain, from 0 on: the
                      largest of its terms, "optimizer", "gradients", "parameters", "activations" or
                      "reserve"; of equal ones the first in this order. It says what to attack next

Contract
    never    labkit.calc. It is a few lines
"""

from collections.abc import Mapping
from typing import Any


def which_stage_fits(setup: Mapping[str, Any]) -> tuple[int | None, list[str]]:
    """The lowest ZeRO level that fits, and the largest term of each level below it."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
