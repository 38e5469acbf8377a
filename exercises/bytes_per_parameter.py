"""How many bytes training holds for each parameter.

An interviewer asks: "We train with Adam in mixed precision. How many bytes of GPU memory does each
parameter take, before any activation? I have heard 12, 16, 18 and 20. Which is it, and how much of
it do ZeRO's levels shard?"

All of them are right, of different recipes. A recipe is a dict; its dtypes have torch's names
("float32", "bfloat16", "float16", "float8_e4m3fn", "int8"):

    parameters  dtype of the parameters that forward and backward compute with
    gradients   dtype in which a gradient is kept until the optimizer's step: often that of the
                parameters (ZeRO's paper), or float32, to add up microbatches (Megatron-LM)
    master      dtype of the copy that the optimizer updates, and from which the parameters are
                rounded after each step; None where it updates the parameters themselves
    moments     a list, the dtype of each value that the optimizer keeps for a parameter: two for
                Adam, one for momentum, none for plain SGD
    casts       dtype of copies that autocast makes of parameters within a step, and frees in it;
                None where there are none

Write two functions.

    bytes_per_parameter(recipe)  bytes of all that lives from one step to the next, on one GPU that
                                 shares nothing. A gradient counts, though it may be freed between
                                 steps: it is whole when the step is made
    sharded_from(recipe)         a dict {1: ..., 2: ..., 3: ...}: of these, the bytes that ZeRO
                                 shards from level 1 on, from level 2 on and from level 3 on. Level
                                 1 shards what only the optimizer's step needs, 2 gradients as well,
                                 3 everything. Each byte is in one of the three

Contract
    recipe   stays as it is: both functions are asked about the same one
    returns  numbers of bytes
    never    labkit.calc. It is a few lines
"""

from collections.abc import Mapping
from typing import Any


def bytes_per_parameter(recipe: Mapping[str, Any]) -> int:
    """Bytes that live from step to step, for each parameter."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def sharded_from(recipe: Mapping[str, Any]) -> dict[int, int]:
    """Bytes of a parameter by the ZeRO level that begins to shard them."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
