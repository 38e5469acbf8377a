"""Mistakes in the forward of sequence_parallel_norm, by the residual and the x that they leave."""

from collections.abc import Iterator

from torch import Tensor
from torch.nn.functional import layer_norm

from labkit.grade.graders.sequence_inputs import EPS, Given, Step, norm
from labkit.grade.graders.sequence_mistakes import Mistake, alone, by_rows, everywhere, h_of


def of_residual(given: Given, step: Step) -> Iterator[Mistake]:
    """Other residuals than this rank's rows of the sum, plus r."""
    n, z_ND, r_ND, w_D = step.num_ranks, step.sum_ND, step.r_ND, given.weight_D
    added = (
        "normalises before it adds the residual",
        "the sum of z was normalised, and the residual added to that: the norm is of both together",
    )
    rows: list[tuple[str, str, Tensor]] = [
        (
            "averages the partial sums",
            f"z was divided by {n}: the ranks' z are parts of a sum, and not estimates of one "
            "number",
            z_ND / n + r_ND,
        ),
        (
            "adds the residual on every rank",
            f"the residual is in the result {n} times: every rank added it to its part before the "
            "sum was taken. It belongs in it once",
            z_ND + n * r_ND,
        ),
        ("loses the residual", "the row layer's output came back, and r is not in it", z_ND),
        ("loses the row layer's output", "r came back as it was, and z is not in it", r_ND),
        (*added, norm(z_ND, w_D) + r_ND),
        (
            "returns the normalised rows as the residual",
            "what goes on as the residual is the sum before the norm: the next layer's output is "
            "added to that",
            norm(h_of(step), w_D),
        ),
    ]
    yield Mistake(
        "does not add up the ranks' parts",
        "each rank has taken its rows of its own z: what the other ranks have computed of them is "
        "not in the result. A reduce_scatter adds up and hands each rank its rows",
        lambda rank: step.own(rank, step.z[rank]) + step.r[rank],
    )
    for name, why, value_ND in rows:
        yield Mistake(name, why, by_rows(step, value_ND))


def of_x(given: Given, step: Step) -> Iterator[Mistake]:
    """Other sequences than the norm of the residual, all rows of it."""
    h_ND, w_D = h_of(step), given.weight_D
    centred_ND = h_ND - h_ND.mean(1, keepdim=True)
    rows: list[tuple[str, str, Tensor]] = [
        ("gathers the rows without the norm", "x is the residual of all rows", h_ND),
        (
            "normalises before it adds the residual",
            "x is the norm of the row layer's output alone, without the residual",
            norm(step.sum_ND, w_D),
        ),
        (
            "leaves the weight out of the norm",
            "x has mean 0 and variance 1: it is to be multiplied by the weight",
            layer_norm(h_ND, w_D.shape, eps=EPS),
        ),
        (
            "divides by the root mean square",
            "the mean was not subtracted: that is RMSNorm, and a LayerNorm was asked for",
            h_ND / (h_ND.square().mean(1, keepdim=True) + EPS).sqrt() * w_D,
        ),
        (
            "takes the unbiased variance",
            "var() divides by D - 1 unless it is told correction=0: a LayerNorm divides by D",
            centred_ND / (h_ND.var(1, keepdim=True) + EPS).sqrt() * w_D,
        ),
    ]
    for name, why, x_ND in rows:
        yield Mistake(name, why, everywhere(x_ND))
    std_N1 = h_ND.std(1, keepdim=True, correction=0)
    others = [layer_norm(h_ND, w_D.shape, w_D, eps=eps) for eps in (0.0, 1e-6, 1e-8, 1e-12)]
    for x_ND in (*others, centred_ND / (std_N1 + EPS) * w_D):
        yield Mistake(
            "has another eps in the norm",
            "rows with a small variance are off: eps is 1e-5, and added to the variance, under the "
            "root",
            everywhere(x_ND),
        )
    yield from _of_places(given, step)


def _of_places(given: Given, step: Step) -> Iterator[Mistake]:
    x_ND = norm(h_of(step), given.weight_D)
    yield Mistake(
        "has zeros for the other ranks' rows",
        "only this rank's rows are in x: the next column layer needs all of them on every rank",
        lambda rank: alone(step, rank, x_ND),
    )
    for by in range(1, step.num_ranks):
        yield Mistake(
            "puts the rows in another order",
            "all rows are right, and lie in the wrong places. all_gather joins in the order of the "
            "ranks",
            everywhere(x_ND.roll(by * step.rows_per_rank, 0)),
        )
