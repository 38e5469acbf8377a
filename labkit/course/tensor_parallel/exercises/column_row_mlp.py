"""Grade column_row_mlp: output, all gradients, one all-reduce forward and one backward."""

from typing import Any

import torch
from torch.nn.functional import gelu, linear

from labkit.grade import grader as g

KEYS = ["y", *(f"gradient of {x}" for x in ("x_BTD", "up_fD", "up_f", "down_Df", "down_D"))]


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """F that n divides, F that n does not divide, and a rank without features."""
    listed = []
    for F in (4 * n, 5 * n - 1, 4 * n + 1, max(1, n - 1)):
        T, D = draw.rng.randrange(5, 8), draw.rng.choice((33, 35, 37))
        shapes = (2, T, D), (F, D), (F,), (D, F), (D,), (2, T, D)
        x, up, up_bias, down, bias, dy = (draw.same(*s, dtype=torch.float64) for s in shapes)
        shards = up.tensor_split(n), up_bias.tensor_split(n), (down / 4).tensor_split(n, dim=1)
        listed.append(g.Case(f"x (2, {T}, {D}), F = {F}", x, *map(g.ByRank, shards), bias, dy))
    return listed


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Compute x + mlp(x), as a caller with a residual does, and all gradients."""
    *leaves, dy = args
    for leaf in leaves:
        leaf.requires_grad_()
    x = leaves[0].view_as(leaves[0])  # no leaf, as if a layer before had returned it
    y = watch.function(x, *leaves[1:], watch.group)
    if not isinstance(y, torch.Tensor) or y.shape != dy.shape:
        return {**dict.fromkeys(KEYS), "y": y}
    value = y.detach().clone()
    ((x + y) * dy).sum().backward()
    # A rank without features may leave its shards out of the graph.
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in leaves]
    return dict(zip(KEYS, [value, *gradients]))


def right(x: Any, up: Any, up_bias: Any, down: Any, bias: Any, dy: Any) -> g.ByRank:
    """One process with the whole MLP; the gradients of its weights are then cut."""
    whole = x, torch.cat(up), torch.cat(up_bias), torch.cat(down, dim=1), bias
    leaves = [each.clone().requires_grad_() for each in whole]
    y = linear(gelu(linear(*leaves[:3])), *leaves[3:])
    ((leaves[0] + y) * dy).sum().backward()
    of_x, of_up, of_up_bias, of_down, of_bias = (leaf.grad for leaf in leaves)
    sizes = [len(each) for each in up]
    cut = zip(of_up.split(sizes), of_up_bias.split(sizes), of_down.split(sizes, dim=1))
    return g.ByRank(dict(zip(KEYS, [y.detach(), of_x, *each, of_bias])) for each in cut)


def budget(s: g.Observed) -> g.Budget:
    """An all-reduce of x's size in each direction."""
    return g.Budget(collectives=2, sent_bytes=4 * (s.n - 1) / s.n * s.xs.nbytes)


HIDDEN, X = "hidden_BTf = gelu(", "_Copied.apply(x_BTD, group)"
OUT = "linear(hidden_BTf, down_Df)"
SUM, BIAS = f"_Summed.apply({OUT}, group)", " + down_D"
FORTH, BACK = "return group.all_reduce(partial)", "Any:\n        return gradient, None"
SUMS_BACKWARD = (FORTH, f"ctx.group = group\n        {FORTH}")
SUMS_BACKWARD += (BACK, BACK.replace("gradient,", "ctx.group.all_reduce(gradient),"))

MISTAKES = [
    g.Mistake(
        "does not sum over the ranks",
        "y is a sum over all F features. A rank's own features give a partial result only, and no "
        "sum is divided by n.",
        [g.patch(SUM, OUT), g.patch(FORTH, f"{FORTH} / group.size")],
    ),
    g.Mistake(
        "does not add the bias of down exactly once",
        "In each partial result the bias is added n times; split, or added on one rank only, its "
        "gradient has a part of what it should. Add the whole bias on every rank, after the sum.",
        [
            g.patch(SUM + BIAS, "_Summed.apply(linear(hidden_BTf, down_Df, down_D), group)"),
            g.patch(SUM + BIAS, f"_Summed.apply({OUT} + down_D * (group.rank == 0), group)"),
        ],
        hint=3,
    ),
    g.Mistake(
        "no gradient comes through the all-reduce",
        "Autograd treats what group.all_reduce returns as a constant: the graph ends there. Call "
        "it inside a torch.autograd.Function whose backward you write.",
        g.patch(SUM, f"group.all_reduce({OUT})"),
        hint=3,
    ),
    g.Mistake(
        "no all-reduce in backward",
        "The gradient of x has this rank's contribution only. Every feature uses x, so the "
        "gradients of x must be summed over the ranks.",
        g.patch("ctx.group.all_reduce(gradient), None", "gradient, None"),
    ),
    g.Mistake(
        "sums the gradient of y over the ranks",
        "All ranks compute the same loss, so each has the whole gradient of y: summing makes "
        "gradients n times too large. Pass it on unchanged, and sum the gradient of x, before up.",
        [g.patch(*SUMS_BACKWARD), g.patch(*SUMS_BACKWARD, X, "x_BTD")],
        hint=2,
    ),
    g.Mistake(
        "sums the gradient of the residual too",
        "The gradient that x gets from outside the MLP, as in x + mlp(x), is the same on every "
        "rank already. A hook on x itself sums it too. Sum only what comes back from up.",
        g.patch(X, "x_BTD", HIDDEN, f"x_BTD.register_hook(group.all_reduce)\n    {HIDDEN}"),
        hint=3,
    ),
    g.Mistake(
        "gathers what it could all-reduce",
        "The results are right, but an all_gather sends a rank's whole y to n - 1 others. Sum the "
        "partial y forward and the gradient of x backward, each in one all_reduce.",
        g.patch(FORTH, "return group.all_gather(partial[None]).sum(0)"),
        over_budget=lambda s: bool(s.operations(0, "all_gather")),
    ),
    g.Mistake(
        "a rank without features takes no part",
        "It adds zeros to y and to the gradient of x, but it must call both all-reduces: its y "
        "must depend on x in autograd's graph too.",
        g.patch(f"_Summed.apply({OUT}", f"_Summed.apply({OUT} if len(up_f) else 0 * down_D"),
        hung=lambda s: any(not len(up) for up in s.args[1]),
        hint=3,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    same=g.within(500),
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce", "all_gather"),
    world_sizes=(3, 2, 1),
    closed=("labkit.tensor_parallel", "labkit.collectives"),
    shown="output and gradients are those of one process with the whole MLP, also with a residual "
    "and for any number of features; there is one all-reduce forward and one backward",
)
