"""Count the bytes that training keeps for each parameter, and which of them ZeRO shards.

An interviewer asks: "We train with Adam in mixed precision. How many bytes of GPU memory does each
parameter take, without activations? I have heard 12, 16, 18 and 20. Which is it, and how much of it
does each level of ZeRO shard?"

Each of these numbers is right for one recipe. A recipe is a dict. Its dtypes have torch's names:
"float32", "bfloat16", "float16", "float8_e4m3fn" and "int8".

    parameters  dtype of the parameters that forward and backward compute with
    gradients   dtype in which a gradient is stored until the optimizer's step. The ZeRO paper uses
                the parameters' dtype. Megatron-LM uses float32, to add up microbatches
    master      dtype of the copy of the parameters that the optimizer updates. None where the
                optimizer updates the parameters themselves
    moments     a list with the dtype of each value that the optimizer stores per parameter: two for
                Adam, one for SGD with momentum, none for plain SGD
    casts       dtype of the copies of parameters that autocast makes and frees within one step.
                None where there are no such copies

Write two functions.

    bytes_per_parameter(recipe)  the bytes that are kept from one step to the next, on a GPU that
                                 shards nothing. Gradients count too: all of them exist when the
                                 optimizer's step starts
    sharded_from(recipe)         a dict {1: ..., 2: ..., 3: ...}. The entry of a level has the bytes
                                 that ZeRO shards from this level on. Level 1 adds what only the
                                 optimizer's step needs, level 2 adds gradients of any dtype, level
                                 3 adds the rest. Each byte is in exactly one of the three entries

Contract
    recipe   stays as it is
    returns  whole numbers of bytes
    never    labkit.calc. The answer takes a few lines
"""

from collections.abc import Mapping
from typing import Any


def bytes_per_parameter(recipe: Mapping[str, Any]) -> int:
    """Count the bytes per parameter that are kept from step to step."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def sharded_from(recipe: Mapping[str, Any]) -> dict[int, int]:
    """Split the bytes of one parameter by the ZeRO level that first shards them."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
