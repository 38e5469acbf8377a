"""Mistakes in the forward pass of a tensor-parallel MLP, by the output that comes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, linear, relu, silu

from labkit.grade.graders.column_row_inputs import Given, mlp


@dataclass(frozen=True)
class WrongOutput:
    """A name for it, and y of a rank."""

    name: str
    explanation: str
    y: Callable[[int], Tensor]
    hint: int = 2


def wrong_outputs(given: Given) -> list[WrongOutput]:
    """In the order in which they are tried."""
    return [*_of_sums(given), *_of_layers(given)]


def _of_sums(given: Given) -> list[WrongOutput]:
    n, y, bias = len(given.shares), given.expected().y, given.down_bias
    partial = [given.of_share(rank).y for rank in range(n)]
    alone = (
        "does not sum over the ranks",
        "each rank has what its own features add to y, and nothing of another rank's: y is the sum "
        "over all F features, so that one all_reduce has to follow down",
    )
    average = (
        "averages instead of summing",
        f"what the ranks' features add to y is summed and divided by {n}: y is a sum over "
        "features, and ranks have different ones",
    )
    return [
        WrongOutput(*alone, lambda rank: partial[rank] + bias, 1),
        WrongOutput(*alone, lambda rank: partial[rank], 1),
        WrongOutput(
            "adds the bias of down on every rank",
            f"y has the bias {n} times: each rank adds it to its partial result, and the sum over "
            "the ranks adds them all. It is added once, after the sum",
            lambda rank: y + (n - 1) * bias,
        ),
        WrongOutput(
            "divides the bias by n after the sum",
            f"y has an n-th of the bias, n = {n}: behind the all_reduce nothing adds the parts up "
            "any more",
            lambda rank: y - bias + bias / n,
        ),
        WrongOutput(
            "forgets the bias of down",
            "y is right but for the bias of down, which is missing",
            lambda rank: y - bias,
        ),
        WrongOutput(*average, lambda rank: (y - bias) / n + bias),
        WrongOutput(*average, lambda rank: (y - bias) / n),
    ]


_LATE = (
    "applies GELU after down",
    "GELU stands between the two layers. It is taken number by number, so that each rank can apply "
    "it to its own features: that is why up is split by columns. Of a sum over features only GELU "
    "of the whole sum would do, and it is not a sum of GELUs",
)
_OTHER = ("takes another activation than GELU", "y is that of an MLP with {} for GELU")


def _of_layers(given: Given) -> list[WrongOutput]:
    x, up, up_bias, down, bias = given.whole
    hidden = linear(x, up, up_bias)
    # What a rank can apply it to before the sum: its own partial result.
    linear_parts = [linear(linear(x, share[1], share[2]), share[3]) for share in given.shares]
    early = sum((gelu(part) for part in linear_parts), torch.zeros_like(x))
    found: Sequence[tuple[str, str, Tensor]] = [
        (
            "forgets the bias of up",
            "y is that of an MLP whose up has no bias: a rank adds its share of it before GELU",
            mlp(x, up, torch.zeros_like(up_bias), down, bias),
        ),
        (
            "forgets GELU",
            "y is down(up(x)): two matrices one after the other, which one matrix could replace",
            linear(hidden, down, bias),
        ),
        (*_LATE, gelu(linear(hidden, down)) + bias),
        (*_LATE, gelu(linear(hidden, down, bias))),
        (*_LATE, early + bias),
        (
            "takes the approximation of GELU",
            "y is that of gelu(..., approximate='tanh'): near, and another function. The two may "
            "not be mixed, as when a checkpoint was trained with the other",
            linear(gelu(hidden, approximate="tanh"), down, bias),
        ),
        (_OTHER[0], _OTHER[1].format("ReLU"), linear(relu(hidden), down, bias)),
        (_OTHER[0], _OTHER[1].format("SiLU"), linear(silu(hidden), down, bias)),
    ]
    return [WrongOutput(name, why, _constant(y)) for name, why, y in found]


def _constant(value: Tensor) -> Callable[[int], Tensor]:
    return lambda rank: value
