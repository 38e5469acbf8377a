"""Grade column_row_mlp: output, all gradients, one all-reduce forward and one backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import gelu, linear, silu

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    close,
    patch,
    within,
)

Tensor = torch.Tensor
SHARDS = ["gradient of up_fD", "gradient of up_f", "gradient of down_Df"]
OF_X, OF_BIAS = "gradient of x_BTD", "gradient of down_D"
KEYS = ["y", OF_X, *SHARDS, OF_BIAS]


def cases(n: int, draw: Draw) -> list[Case]:
    """F that n divides, F that n does not divide, and a rank without features."""
    return [case(draw, n, num) for num in (4 * n, 5 * n - 1, 4 * n + 1, max(1, n - 1))]


def case(draw: Draw, n: int, num_features: int) -> Case:
    """An MLP whose weights are cut into shards; the last argument is the gradient of y."""
    tokens, width = draw.rng.randrange(5, 8), draw.rng.choice((33, 35, 37))
    shapes = (2, tokens, width), (num_features, width), (num_features,), (width, num_features)
    shapes += (width,), (2, tokens, width)
    x, up, up_bias, down, bias, dy = (draw.same(*each, dtype=torch.float64) for each in shapes)
    shards = ByRank(up.tensor_split(n)), ByRank(up_bias.tensor_split(n))
    shards += (ByRank((down / 4).tensor_split(n, dim=1)),)
    return Case(f"x {tuple(x.shape)}, F = {num_features}", x, *shards, bias, dy)


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Compute x + mlp(x), as a caller with a residual does, and all gradients."""
    *leaves, dy = args
    for leaf in leaves:
        leaf.requires_grad_()
    x = leaves[0].view_as(leaves[0])  # no leaf, as if a layer before had returned it
    y = watch.function(x, *leaves[1:], *watch.groups)
    if not isinstance(y, Tensor) or y.shape != dy.shape:
        return {**dict.fromkeys(KEYS), "y": y}
    watch.note("backward begins")
    value = y.detach().clone()
    ((x + y) * dy).sum().backward()
    # A rank without features may leave its shards out of the graph.
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in leaves]
    return dict(zip(KEYS, [value, *gradients]))


def whole(args: tuple[Any, ...], act: Any = gelu) -> tuple[list[Tensor], Tensor]:
    """One process with the whole MLP: x and all weights, and y."""
    x, up, up_bias, down, bias, _ = args
    leaves = [x, torch.cat(up), torch.cat(up_bias), torch.cat(down, dim=1), bias]
    leaves = [each.clone().requires_grad_() for each in leaves]
    hidden = act(linear(*leaves[:3]))
    return leaves, linear(hidden, *leaves[3:])


def right(*args: Any) -> ByRank:
    """One process with the whole MLP; the gradients of its weights are then cut."""
    leaves, y = whole(args)
    ((leaves[0] + y) * args[-1]).sum().backward()
    of_x, of_up, of_up_bias, of_down, of_bias = (leaf.grad for leaf in leaves)
    sizes = [len(each) for each in args[1]]
    cut = zip(of_up.split(sizes), of_up_bias.split(sizes), of_down.split(sizes, dim=1))
    return ByRank(dict(zip(KEYS, [y.detach(), of_x, *each, of_bias])) for each in cut)


def budget(s: Observed) -> Budget:
    """An all-reduce of x's size in each direction."""
    size = s.xs.nbytes
    return Budget(collectives=2, payload_bytes=2 * size, sent_bytes=4 * (s.n - 1) / s.n * size)


def y_is(s: Observed, value: Callable[[Tensor, Tensor, Tensor], Tensor]) -> bool:
    """Whether y is value(right y, bias of down, partial y), whatever its gradients are."""
    expected = [value(r["y"], s.args[4], own(s, rank)[0]) for rank, r in enumerate(s.right)]
    return all(close(seen["y"], each, steps=500) for seen, each in zip(s.ys, expected))


def own(s: Observed, rank: int) -> tuple[Tensor, Tensor]:
    """What a rank's features contribute to y, and to the gradient of x."""
    x, up, up_bias, down, _, dy = s.case.of_rank(rank)
    x = x.clone().requires_grad_()
    y = linear(gelu(linear(x, up, up_bias)), down)
    return y.detach(), torch.autograd.grad((y * dy).sum(), x)[0]


def gradients_are(
    s: Observed, residual: float = 1, mlp: float = 1, alone: float = 0, shards: float = 1
) -> bool:
    """Whether y is right, and the gradients differ from the right ones by these factors.

    residual, mlp, alone: of the parts of x's gradient, the last from the rank's own features.
    """
    expected = []
    for rank, r in enumerate(s.right):
        dy = s.args[5]
        of_x = residual * dy + mlp * (r[OF_X] - dy) + alone * own(s, rank)[1]
        expected.append({**r, OF_X: of_x, **{key: shards * r[key] for key in SHARDS}})
    return s.is_answer(expected)


def others(s: Observed) -> list[Tensor]:
    """y of other MLPs: another activation or none, GELU after down, up without bias, a residual."""
    hidden_as_is = whole(s.args, lambda hidden: hidden)[1]
    acts = torch.relu, silu, lambda hidden: gelu(hidden, approximate="tanh")
    other_acts = [whole(s.args, act)[1] for act in acts]
    without_bias = whole(s.args, lambda hidden: gelu(hidden - torch.cat(s.args[2])))[1]
    return [*other_acts, hidden_as_is, gelu(hidden_as_is), without_bias, s.xs + s.right[0]["y"]]


def only_bias_is_wrong(s: Observed) -> bool:
    """Whether y and all gradients but the bias's are right."""
    pairs = zip(s.ys, s.right)
    return all(close(y[key], r[key], steps=500) for y, r in pairs for key in KEYS[:-1])


def num_calls(s: Observed) -> list[int]:
    """All-reduces of rank 0 forward, and backward."""
    events = [e.what for e in s.ranks[0].events if e.is_note or e.what == "all_reduce"]
    return [events.index("backward begins"), len(events) - 1 - events.index("backward begins")]


FORTH, BACK = "return group.all_reduce(partial)", "Any:\n        return gradient, None"
OUT = "linear(hidden_BTf, down_Df)"
SUMS_BACKWARD = (FORTH, f"ctx.group = group\n        {FORTH}")
SUMS_BACKWARD += (BACK, BACK.replace("gradient,", "ctx.group.all_reduce(gradient),"))

MISTAKES = [
    Mistake(
        "does not sum over the ranks",
        "y is a sum over all F features. A rank's own features give a partial result only.",
        seen=lambda s: y_is(s, lambda y, b, part: part + b) or y_is(s, lambda y, b, part: part),
        made_by=patch(f"_Summed.apply({OUT}, group)", OUT),
    ),
    Mistake(
        "divides by n",
        "The ranks have different features. y and the gradient of x are sums over all of them.",
        seen=lambda s: (
            y_is(s, lambda y, b, part: (y - b) / s.n + b)
            or gradients_are(s, mlp=1 / s.n)
            or gradients_are(s, mlp=1 / s.n, shards=1 / s.n)
        ),
        made_by=patch(FORTH, FORTH + " / group.size"),
    ),
    Mistake(
        "does not add the bias of down exactly once",
        "In each partial result the bias is added n times, and nothing adds up parts of it after "
        "the sum. Add the whole bias once, after the sum, on every rank.",
        hint=3,
        seen=lambda s: any(
            y_is(s, lambda y, b, part, f=f: y + f * b) for f in (s.n - 1, -1, 1 / s.n - 1)
        ),
        made_by=patch(f"{OUT}, group) + down_D", "linear(hidden_BTf, down_Df, down_D), group)"),
    ),
    Mistake(
        "computes another MLP",
        "y = down(gelu(up(x))). The exact GELU, not approximate='tanh', stands between the two "
        "layers, up has its bias, and the caller adds the residual.",
        seen=lambda s: any(y_is(s, lambda y, b, part, other=other: other) for other in others(s)),
        made_by=patch("up_fD, up_f))", "up_fD, up_f), approximate='tanh')"),
    ),
    Mistake(
        "no gradient comes through the all-reduce",
        "Autograd treats what group.all_reduce returns as a constant: the graph ends there. Call "
        "it inside a torch.autograd.Function whose backward you write.",
        hint=3,
        seen=lambda s: gradients_are(s, mlp=0, shards=0) or gradients_are(s, mlp=0),
        made_by=patch(f"_Summed.apply({OUT}, group)", f"group.all_reduce({OUT})"),
    ),
    Mistake(
        "no all-reduce in backward",
        "The gradient of x has this rank's contribution only. Every feature uses x, so the "
        "gradients of x must be summed over the ranks.",
        seen=lambda s: gradients_are(s, mlp=0, alone=1),
        made_by=patch("ctx.group.all_reduce(gradient), None", "gradient, None"),
    ),
    Mistake(
        "sums the gradient of y over the ranks",
        "All ranks compute the same loss, so each has the whole gradient of y. The backward of "
        "the sum passes it on unchanged. Summing makes the gradients n times too large.",
        hint=2,
        seen=lambda s: gradients_are(s, mlp=s.n, shards=s.n),
        made_by=patch(*SUMS_BACKWARD),
    ),
    Mistake(
        "has the all-reduce of backward at the wrong end",
        "Backward sums the gradient of x, before up. After down, where forward sums, the "
        "gradient is passed on unchanged.",
        hint=2,
        seen=lambda s: gradients_are(s, mlp=0, alone=s.n, shards=s.n),
        made_by=patch("_Copied.apply(x_BTD, group)", "x_BTD", *SUMS_BACKWARD),
    ),
    Mistake(
        "sums the gradient of the residual too",
        "The gradient that x gets from outside the MLP, as in x + mlp(x), is the same on every "
        "rank already. A hook on x itself sums it too. Sum only what comes back from up.",
        hint=3,
        seen=lambda s: gradients_are(s, residual=s.n),
        made_by=patch(
            *("gelu(linear(_Copied.apply(x_BTD, group)", "gelu(linear(x_BTD"),
            *("    hidden_BTf =", "    x_BTD.register_hook(group.all_reduce)\n    hidden_BTf ="),
        ),
    ),
    Mistake(
        "the bias of down gets another gradient",
        "Its gradient is y's gradient summed over all tokens, the same on every rank. A bias "
        "that is split before the sum, or added on one rank only, gets a part of it.",
        hint=3,
        seen=only_bias_is_wrong,
        made_by=patch(f"{OUT}, group) + down_D", f"{OUT} + down_D / group.size, group)"),
    ),
    Mistake(
        "gathers instead of summing",
        "The results are right, but all_gather sends more than the budget. Weights and hidden "
        "features stay on their rank; only partial results are summed.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: bool(s.operations(0, "all_gather")),
        made_by=patch(FORTH, "return group.all_gather(partial[None]).sum(0)"),
    ),
    Mistake(
        "more than one all-reduce in one direction",
        "Each call adds its latency to the critical path. Forward, sum the partial y in one "
        "call; backward, the gradient of x. Everything else is the same on all ranks already.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: max(num_calls(s)) > 1,
        made_by=patch(FORTH, "return torch.stack([group.all_reduce(each) for each in partial])"),
    ),
    Mistake(
        "a rank without features takes no part",
        "It adds zeros to y and to the gradient of x, but it must call both all-reduces: its y "
        "must depend on x in autograd's graph too.",
        hint=3,
        outcome=Outcome.HUNG,
        seen=lambda s: any(not len(up) for up in s.args[1]),
        made_by=patch(f"_Summed.apply({OUT}", f"_Summed.apply({OUT} if len(up_f) else 0 * down_D"),
    ),
]

GRADER = OnRanks(
    name="column_row_mlp",
    cases=cases,
    right=right,
    call=call,
    num_arguments=6,
    same=within(500),
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce", "all_gather"),
    world_sizes=(3, 2, 1),
    closed=("labkit.tensor_parallel", "labkit.collectives"),
    shown="output and gradients are those of one process with the whole MLP, also with a residual "
    "and for any number of features; there is one all-reduce forward and one backward",
)
