"""Mistakes in the backward of sequence_parallel_norm, by the gradients that they leave."""

from collections.abc import Iterator

import torch
from torch import Tensor

from labkit.grade.graders.sequence_inputs import EPS, Given, Step, norm_backward
from labkit.grade.graders.sequence_mistakes import (
    Mistake,
    alone,
    by_rows,
    everywhere,
    h_gradient_of,
    h_of,
    weight_gradient_of,
)

_AVERAGES_X = (
    "averages the gradients of x",
    "what the ranks say of x was divided by their number: the losses add up, and so do gradients",
)
_LOSES_WHAT_COMES_IN = (
    "loses the gradient that comes in for the residual",
    "what comes back is the gradient through the norm alone. The residual that is returned goes on "
    "to the next layers, and has a gradient of its own: add both",
)
_LOSES_THE_NORM = (
    "loses the gradient through the norm",
    "what comes back is the gradient of the residual alone: no gradient has come back from x, "
    "through the all_gather and the norm",
)
_CONSTANTS = (
    "takes mean and variance for constants",
    "the gradient is multiplied by weight / standard deviation, and that is all: mean and variance "
    "depend on each feature of the row, too",
)
_DRIFTS = "the weights are equal on all ranks now, and no longer after a step. Sum over the ranks"


def of_r_gradient(given: Given, step: Step) -> Iterator[Mistake]:
    """Other gradients of the residual's rows than what comes in and what comes through the norm."""
    h_ND, w_D = h_of(step), given.weight_D
    come_in_ND = torch.cat(step.residual_gradients)
    whole_ND = step.x_gradient_ND

    def through(gradient_ND: Tensor) -> Tensor:
        return norm_backward(h_ND, w_D, gradient_ND)[0]

    yield Mistake(
        "backward of the all_gather is a slice",
        "each rank took its rows of its own gradient of x, and what the other ranks say of these "
        "rows is lost: all of them have computed with them. The adjoint of an all_gather is a "
        "reduce_scatter",
        lambda rank: step.own(rank, come_in_ND + through(step.x_gradients[rank])),
    )
    std_N1 = (h_ND.var(1, keepdim=True, correction=0) + EPS).sqrt()
    of_mean_ND = come_in_ND + through(whole_ND / step.num_ranks)
    for (name, why), value_ND in (
        (_AVERAGES_X, of_mean_ND),
        (_LOSES_WHAT_COMES_IN, through(whole_ND)),
        (_LOSES_THE_NORM, come_in_ND),
        (_CONSTANTS, come_in_ND + whole_ND * w_D / std_N1),
    ):
        yield Mistake(name, why, by_rows(step, value_ND))


def of_z_gradient(given: Given, step: Step) -> Iterator[Mistake]:
    """Other gradients of z than those of all rows."""
    n, whole_ND = step.num_ranks, h_gradient_of(given, step)
    yield Mistake(
        "backward of the reduce_scatter keeps to its rows",
        "z has a gradient in this rank's rows, and zeros in the others: its other rows are in the "
        "sums of the other ranks, which have their gradients. The adjoint of a reduce_scatter is "
        "an all_gather",
        lambda rank: alone(step, rank, whole_ND),
    )
    for name, factor in (("averages the gradients of z", 1 / n), ("adds up gradients of z", n)):
        yield Mistake(
            name,
            "each row's gradient is on one rank, whole: it is handed out, and neither added up "
            "nor averaged",
            everywhere(whole_ND * factor),
        )
    for by in range(1, n):
        yield Mistake(
            "puts the gradients of z in another order",
            "all gradients are right, and lie in other rows than their own",
            everywhere(whole_ND.roll(by * step.rows_per_rank, 0)),
        )


def of_weight_gradient(given: Given, last: int) -> Iterator[Mistake]:
    """Other gradients of the weight than the sum over all rows, and over all steps to `last`."""
    n, steps = given.steps[0].num_ranks, given.steps[: last + 1]
    whole_D = torch.stack([weight_gradient_of(given, step) for step in steps]).sum(0)

    def of_own_rows(rank: int) -> Tensor:
        parts = []
        for step in steps:
            h_nD, gradient_nD = (step.own(rank, x) for x in (h_of(step), step.x_gradient_ND))
            parts.append(norm_backward(h_nD, given.weight_D, gradient_nD)[1])
        return torch.stack(parts).sum(0)

    def of_own_columns(rank: int) -> Tensor:
        parts = [norm_backward(h_of(s), given.weight_D, s.x_gradients[rank])[1] for s in steps]
        return torch.stack(parts).sum(0)

    name = "does not add up the weight's gradient"
    yield Mistake(name, f"each rank has that of its own rows: {_DRIFTS}", of_own_rows)
    yield Mistake(name, f"each rank has that of its own columns: {_DRIFTS}", of_own_columns)
    yield Mistake(
        "averages the weight's gradient",
        f"it is 1/{n} of what it should be: the ranks have different rows of one batch, and "
        "not different batches. Their gradients add up",
        everywhere(whole_D / n),
    )
    yield Mistake(
        "adds up the weight's gradient twice",
        f"it is {n} times what it should be: what was the sum already, was summed again",
        everywhere(whole_D * n),
    )
    if last:
        yield Mistake(
            "overwrites the weight's gradient",
            "only the last step is in it: .grad adds up over backward passes, and whatever writes "
            "to it has to add as well",
            everywhere(weight_gradient_of(given, steps[-1])),
        )
