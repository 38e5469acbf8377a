"""Mistakes in the backward pass of a tensor-parallel MLP, by the gradients that come of them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from labkit.grade.graders.column_row_inputs import Given, Whole


@dataclass(frozen=True)
class WrongGradients:
    """How gradients differ from the right ones. As it stands: right."""

    name: str
    explanation: str
    own: float = 0.0
    """Of what this rank's features say of x."""
    all_of_them: float = 1.0
    """Of what all features say of x."""
    past: float = 1.0
    """Of what reaches x past the MLP."""
    shares: float = 1.0
    """Of the gradients of the rank's shares of up and down."""
    bias: Callable[[int], float] | None = None
    """Of the gradient of down's bias, by rank; None: whatever it is."""

    def gradients(self, given: Given, whole: Whole, rank: int) -> list[Tensor | None]:
        """Of a rank, in the order of NAMES; None: whatever it is."""
        right = given.share_of(whole.gradients, rank)
        x = self.past * given.output_gradient + self.all_of_them * right[0]
        if self.own:
            x = x + self.own * given.of_share(rank).gradients[0]
        bias = None if self.bias is None else self.bias(rank) * right[4]
        return [x, *(self.shares * each for each in right[1:4]), bias]


_CUT = (
    "no gradient comes through the sum",
    "y depends on shares that get no gradient: what group.all_reduce returns is a constant to "
    "autograd, and the graph ends there. A torch.autograd.Function around it says what backward "
    "does",
)


def wrong_gradients(n: int) -> list[WrongGradients]:
    """In the order in which they are tried: shares of weights, then x, then the bias."""
    of_bias = [
        WrongGradients(
            "the bias of down gets an n-th of its gradient",
            f"down_D has 1/{n} of its gradient: the ranks add up {n} parts of it before the sum, "
            "and y comes out right, but the bias of each rank then stands for an n-th only. It is "
            "the same on every rank, and added once, behind the sum",
            bias=lambda rank: 1 / n,
        ),
        WrongGradients(
            "sums the gradient of the bias over the ranks",
            f"down_D has {n} times its gradient: every rank computes all of it from y's gradient, "
            "which is the same everywhere, and there is nothing to add",
            bias=lambda rank: n,
        ),
        *(
            WrongGradients(
                "only one rank has a gradient of the bias",
                f"y is right, and down_D has its gradient on rank {which} alone, which adds it: "
                "the copies on the other ranks stay behind from the first step on",
                bias=lambda rank, which=which: float(rank == which),  # type: ignore[misc]
            )
            for which in range(n)
        ),
        WrongGradients(
            "the bias of down gets no gradient",
            "y depends on down_D, whose gradient is the sum of y's over all tokens",
            bias=lambda rank: 0.0,
        ),
    ]
    return [*_of_shares(n), *_of_x(n), *of_bias]


def _of_shares(n: int) -> list[WrongGradients]:
    twice = (
        "sums the gradient of the output over the ranks",
        f"gradients of up and down are {n} times what they should be, and x's by way of the MLP: "
        "the backward of the sum is an all_reduce here, which adds up what ranks say of one loss. "
        f"But all hold a copy of the same loss, so that the same gradient is added {n} times. The "
        "backward of the sum hands on what comes in",
    )
    return [
        WrongGradients(*_CUT, all_of_them=0, shares=0),
        WrongGradients(*twice, all_of_them=n, shares=n),
        WrongGradients(*twice, all_of_them=n, shares=n, past=n),
        WrongGradients(
            "has the all-reduce of backward at the wrong end",
            f"gradients of up and down are {n} times what they should be, and x has only what this "
            "rank's features say. Forward sums behind down, and there backward does nothing; "
            "backward sums in front of up, and there forward does nothing",
            own=n,
            all_of_them=0,
            shares=n,
        ),
        WrongGradients(
            "divides the gradient of the output by n",
            f"gradients of up and down are 1/{n} of what they should be: y's gradient is complete "
            "on every rank, and what one feature has done to y is on one rank",
            all_of_them=1 / n,
            shares=1 / n,
        ),
    ]


def _of_x(n: int) -> list[WrongGradients]:
    return [
        WrongGradients(
            "no all-reduce in backward",
            "x has what this rank's features say of it, and nothing of the others': gradients of "
            "x differ between the ranks, and with them those of all layers before. Every feature "
            "has used x, so what they say is summed over the ranks, in front of up",
            own=1,
            all_of_them=0,
        ),
        WrongGradients(
            "the gradient of x ends in front of the MLP",
            "x has what reaches it past the MLP, and nothing by way of it: what comes before the "
            "MLP does not learn from it",
            all_of_them=0,
        ),
        WrongGradients(
            "averages the gradient of x",
            f"what the features say of x is summed and divided by {n}: the ranks have different "
            "features, and no two of them say the same",
            all_of_them=1 / n,
        ),
        WrongGradients(
            "sums what reaches x past the MLP as well",
            f"x has {n} times the gradient that reaches it past the MLP, as in x + mlp(x): it is "
            "the same on every rank. The sum belongs on the way into the MLP, and a hook on x "
            "itself sees all that comes to x. Give a view of x to the MLP",
            past=n,
        ),
        WrongGradients(
            "sums the gradient of x twice",
            f"x has {n} times what the features say of it: it has been summed already when it is "
            "summed once more",
            all_of_them=n,
        ),
    ]
