"""Grade find_unused_parameters: means of what any rank used, None for what no rank used."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

SHAPES = {"stem": (3, 5), "left": (7,), "scale": (), "frozen": (4,)}
ALL = {"stem", "left", "scale"}


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Branches that all ranks take, all but one, only one, or none; multiples of n, never zero."""
    drawn = {name: draw(*shape, low=1) for name, shape in SHAPES.items()}
    one = draw.rng.randrange(n)
    used = {
        "all used": [ALL] * n,
        "left used by no rank": [{"stem", "scale"}] * n,
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
    module = nn.ParameterDict({x: nn.Parameter(torch.ones(s)) for x, s in SHAPES.items()})
    module["frozen"].requires_grad = False
    for name, gradient in args[0].items():
        module[name].grad = gradient.clone()
    watch.function(module, watch.group)
    return {name: each.grad for name, each in module.items()}


def joined(by_rank: g.ByRank, join: Callable[[list[Tensor]], Tensor]) -> dict[str, Tensor | None]:
    """For each parameter join(the gradients that ranks have); None where no rank has one."""
    held = {name: [its[name] for its in by_rank if name in its] for name in SHAPES}
    return {name: join(each) if each else None for name, each in held.items()}


def right(by_rank: g.ByRank) -> dict[str, Tensor | None]:
    """The mean over all ranks."""
    return joined(by_rank, lambda held: sum(held) / len(by_rank))


def budget(s: g.Observed) -> g.Budget:
    """One all-reduce to agree, then one for each gradient."""
    used = [each for each in right(s.xs).values() if each is not None]
    payload = sum(each.nbytes for each in used) + 8 * len(ALL)
    return g.Budget(collectives=1 + len(used), payload_bytes=payload)


MEAN = 'group.all_reduce(parameter.grad, op="mean", out=parameter.grad)'
AGREE = 'used = group.all_reduce(used_here, op="max")'
SKIP = "if not is_used:\n            continue"

MISTAKES = [
    g.Mistake(
        "a rank without a gradient skips the all-reduce",
        "Ranks that used the parameter wait for this one. Whether a call is made must not depend "
        "on what this rank used, so the ranks agree first.",
        outcome=g.Outcome.HUNG,
        seen=lambda s: len({frozenset(its) for its in s.xs}) > 1,
        made_by=g.patch(SKIP, "if parameter.grad is None:\n            continue"),
    ),
    g.Mistake(
        "makes zeros where no rank has a gradient",
        "With zeros, weight decay and momentum move a parameter that no loss used. Leave None.",
        seen=lambda s: any(s.y[x] is not None and s.right[0][x] is None for x in ALL),
        made_by=g.patch(SKIP, "pass"),
    ),
    g.Mistake(
        "does not give every rank the mean",
        "A rank that did not use the parameter stores the mean too. Otherwise its optimizer does "
        "not update this parameter, and the ranks' models differ.",
        hint=2,
        seen=lambda s: all(
            s.ys[r][x] is None if x not in its else s.same(s.ys[r][x], s.right[r][x], s.case)
            for r, its in enumerate(s.xs)
            for x in ALL
        ),
        made_by=g.patch(
            "parameter.grad = torch.zeros_like(parameter)",
            'group.all_reduce(torch.zeros_like(parameter), op="mean")\n            continue',
        ),
    ),
    g.Mistake(
        "the gradients stay as they were",
        "all_reduce returns the result and leaves its argument alone. Pass out=, or assign what it "
        "returns to parameter.grad.",
        hint=3,
        seen=lambda s: all(
            s.same(s.ys[r][x], its.get(x, 0 * s.ys[r][x]), s.case)
            for r, its in enumerate(s.xs)
            for x in ALL
            if s.right[r][x] is not None
        ),
        made_by=g.patch(", out=parameter.grad)", ")"),
    ),
    g.Mistake(
        "divides by the ranks that used it",
        "The loss of the step is the mean over all n ranks, and so is each gradient.",
        hint=2,
        seen=lambda s: s.is_answer([joined(s.xs, lambda held: sum(held) / len(held))] * s.n),
        made_by=g.patch(
            AGREE,
            "used = group.all_reduce(used_here)",
            MEAN,
            "parameter.grad = group.all_reduce(parameter.grad) / is_used",
        ),
    ),
    g.Mistake(
        "forgets to divide",
        'The sum over the ranks is n times the mean: pass op="mean", or divide by group.size.',
        hint=3,
        seen=lambda s: s.is_answer([joined(s.xs, sum)] * s.n),
        made_by=g.patch(MEAN, "group.all_reduce(parameter.grad, out=parameter.grad)"),
    ),
    g.Mistake(
        "leaves out a gradient that some ranks do not have",
        "A parameter counts as used if any rank used it, not only if all ranks did.",
        hint=2,
        seen=lambda s: all(
            s.same(
                s.ys[r][x],
                s.right[r][x] if all(x in other for other in s.xs) else its.get(x),
                s.case,
            )
            for r, its in enumerate(s.xs)
            for x in ALL
        ),
        made_by=g.patch(AGREE, 'used = group.all_reduce(used_here, op="min")'),
    ),
    g.Mistake(
        "sends gradients that no rank has",
        "All ranks send zeros for a parameter that none of them used. Agree first, with one small "
        "all-reduce, and send what some rank has.",
        hint=2,
        outcome=g.Outcome.OVER_BUDGET,
        seen=lambda s: (
            None in right(s.xs).values() and s.payload_bytes(0) > budget(s).payload_bytes
        ),
        made_by=g.patch(
            SKIP,
            "if not is_used:\n            group.all_reduce(torch.zeros_like(parameter))\n"
            "            continue",
        ),
    ),
    g.Mistake(
        "asks for each parameter by itself",
        "One all-reduce of a tensor with an element per parameter tells the ranks all they need.",
        hint=3,
        outcome=g.Outcome.OVER_BUDGET,
        seen=lambda s: (
            s.num_collectives(0) > budget(s).collectives
            and s.payload_bytes(0) <= budget(s).payload_bytes
        ),
        made_by=g.patch(
            AGREE,
            'used = torch.cat([group.all_reduce(each, op="max") for each in used_here.split(1)])',
        ),
    ),
]

GRADER = g.OnRanks(
    name="find_unused_parameters",
    cases=cases,
    right=right,
    call=call,
    num_arguments=2,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.data_parallel",),
    shown="every rank has the mean of what any rank used, and one all-reduce was enough to agree",
)
