"""Grade find_unused_parameters: means of what any rank used, None for what no rank used."""

from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

SHAPES = {"stem": (3, 5), "left": (7,), "scale": (), "dead": (2,), "frozen": (4,)}
ALL = {"stem", "left", "scale", "dead"}


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Branches that all ranks take, all but one, only one, or none; multiples of n, or zero."""
    drawn = {name: draw(*shape, low=1, dtype=torch.float64) for name, shape in SHAPES.items()}
    drawn["dead"] = g.ByRank(map(torch.zeros_like, drawn["dead"]))
    one = draw.rng.randrange(n)
    used = {
        "all used": [ALL] * n,
        "left used by no rank": [ALL - {"left"}] * n,
        f"left not used by rank {one}": [ALL - {"left"} if r == one else ALL for r in range(n)],
        f"left used by rank {one} only": [ALL if r == one else {"stem"} for r in range(n)],
        "nothing used": [set()] * n,
    }
    return [
        g.Case(label, g.ByRank({x: n * drawn[x][r] for x in names[r]} for r in range(n)))
        for label, names in used.items()
    ]


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Give a module the rank's gradients, call the function, and return what grad is then."""
    module = nn.ParameterDict({x: nn.Parameter(torch.ones(s).double()) for x, s in SHAPES.items()})
    module["frozen"].requires_grad = False
    for name, gradient in args[0].items():
        module[name].grad = gradient.clone()
    watch.function(module, watch.group)
    return {name: each.grad for name, each in module.items()}


def right(by_rank: g.ByRank) -> dict[str, Tensor | None]:
    """Return the mean over all ranks; None where no rank has a gradient."""
    held = {name: [its[name] for its in by_rank if name in its] for name in SHAPES}
    return {name: sum(each) / len(by_rank) if each else None for name, each in held.items()}


def budget(s: g.Observed) -> g.Budget:
    """One all-reduce to agree, then one for each gradient."""
    used = [each for each in s.right[0].values() if each is not None]
    payload = sum(each.nbytes for each in used) + 8 * len(ALL)
    return g.Budget(collectives=1 + len(used), payload_bytes=payload)


AGREE = 'used = group.all_reduce(used_here, op="max")'
NONE = "parameter.grad = None\n            continue"
MISTAKES = [
    g.Mistake(
        "the all-reduces depend on what a rank used",
        "Ranks wait for each other in different all-reduces. Which are made, in which order and "
        "dtype, must not depend on what this rank used. Agree first, then fill up with zeros_like.",
        g.patch("not is_used", "parameter.grad is None"),
        hung=lambda s: len({frozenset(its) for its in s.xs}) > 1,
    ),
    g.Mistake(
        "makes zeros where no rank has a gradient",
        "With zeros, weight decay and momentum move a parameter that no loss used. Leave None.",
        g.patch("not is_used", "False"),
    ),
    g.Mistake(
        "does not give every rank the mean",
        "If any rank has a gradient, even one of zeros, every rank stores the mean. Otherwise only "
        "some optimizers update this parameter, and the ranks' models differ.",
        [
            g.patch(
                "parameter.grad = torch.zeros_like(parameter)",
                'group.all_reduce(torch.zeros_like(parameter), op="mean")\n            continue',
            ),
            g.patch(AGREE, AGREE.replace("max", "min")),
            g.patch("not None for", "not None and bool(each.grad.any()) for"),
            g.patch("not None for", "not None and bool(each.grad.any()) for", "continue", NONE),
        ],
        hint=2,
    ),
    g.Mistake(
        "the gradients stay as they were",
        "List module.parameters(). Pass out= to all_reduce, or assign what it returns to grad.",
        g.patch(", out=parameter.grad)", ")"),
        hint=3,
    ),
    g.Mistake(
        "divides by the ranks that used it",
        "The loss of the step is the mean over all n ranks, and so is each gradient.",
        g.patch(
            *(AGREE, "used = group.all_reduce(used_here)"),
            *('op="mean", out=parameter.grad)', "out=parameter.grad).div_(is_used)"),
        ),
        hint=2,
    ),
    g.Mistake(
        "makes more all-reduces than it needs",
        "One all-reduce of a tensor with an element per parameter tells the ranks which gradients "
        "any of them has. After it, they send these gradients and no zeros for the others.",
        g.patch(AGREE, f"{AGREE}\n    {AGREE}"),
        over_budget=lambda s: s.num_collectives(0) > budget(s).collectives,
        hint=3,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.data_parallel",),
    shown="every rank has the mean of what any rank used, and one all-reduce was enough to agree",
)
