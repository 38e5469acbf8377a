"""Grade fix_the_mismatch: the result of one process with all examples, with few collectives."""

import torch
from torch import Tensor

from labkit.grade import grader as g

FULL_BATCH, LEARNING_RATE = 4, 0.01


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Return cases with uneven, full, short and empty batches, and with a large one."""
    rng = draw.rng
    by_rank = [
        [FULL_BATCH, *rng.sample((1, 2, 3, 5, 6, 7, 8), n - 1)],
        [FULL_BATCH] * n,
        [rng.randrange(1, FULL_BATCH), *[FULL_BATCH] * (n - 1)],
        [3, 0, FULL_BATCH, FULL_BATCH][:n],
        [5, 0, 0, 0][:n],
        [300, *rng.sample(range(1, 9), n - 1)],
    ]
    return [case(rng.sample(sizes, n), 2 + i % 4, draw) for i, sizes in enumerate(by_rank)]


def case(sizes: list[int], width: int, draw: g.Draw) -> g.Case:
    """Return a case with a batch per rank. No dtype represents thirds exactly."""

    def thirds() -> g.ByRank:
        drawn = draw(max(sizes), width, dtype=torch.float64)
        return g.ByRank(x[:size] / 3 for x, size in zip(drawn, sizes, strict=True))

    scale, shift = draw(2, width, dtype=torch.float64)[0] / 3
    examples = " and ".join(map(str, sizes))
    return g.Case(f"{examples} examples, D = {width}", thirds(), thirds(), scale, shift)


def right(x: g.ByRank, y: g.ByRank, scale: Tensor, shift: Tensor) -> tuple[Tensor, ...]:
    """Compute the step in one process with all examples, by autograd."""
    parameters = [p.clone().requires_grad_() for p in (scale, shift)]
    error = torch.cat(list(x)) * parameters[0] + parameters[1] - torch.cat(list(y))
    loss = error.square().sum(1).mean()
    gradients = torch.autograd.grad(loss, parameters)
    new = (p.detach() - LEARNING_RATE * d for p, d in zip(parameters, gradients, strict=True))
    return (*new, loss.detach())


def budget(s: g.Observed) -> g.Budget:
    """Allow four sums: of two gradients, the loss and the number of examples."""
    return g.Budget(collectives=4, payload_bytes=8 * (2 * len(s.args[2]) + 2))


def means(*forms: str) -> list[g.Patch]:
    """Return patches that compute all means, those of the gradients or that of the loss wrongly."""
    gradients = ("grad_scale", "grad_shift")
    return [
        g.patch(*(t for n in names for t in (f"group.all_reduce({n}) / count", form.format(n))))
        for names in ((*gradients, "loss"), gradients, ("loss",))
        for form in forms
    ]


SCALE = "    grad_scale = group.all_reduce(grad_scale) / count\n"
SHIFT = "    grad_shift = group.all_reduce(grad_shift) / count\n"

MISTAKES = [
    g.Mistake(
        "averages the ranks' averages",
        "The result is a mean of each rank's own mean. So one example on a rank with few examples "
        "has more weight than one on a rank with many. Reduce sums and counts, then divide once.",
        means('group.all_reduce({} / max(len(x), 1), op="mean")'),
    ),
    g.Mistake(
        "divides by another number than that of all examples",
        "Loss and gradients are means over the examples of all ranks. The number of ranks, of full "
        "batches or of a rank's own examples is another one: reduce len(x), and divide by that.",
        means(
            'group.all_reduce({}, op="mean")',
            'group.all_reduce({}, op="mean") / FULL_BATCH',
            "group.all_reduce({}) / max(len(x), 1)",
            "group.all_reduce({})",
        ),
        hint=2,
    ),
    g.Mistake(
        "keeps a rank's own loss or gradient",
        "At least one of scale, shift and loss is computed from this rank's examples only. Reduce "
        "all three, otherwise the ranks' models drift apart.",
        means("{} / max(len(x), 1)"),
        hint=2,
    ),
    g.Mistake(
        "mixes the gradients of scale and shift",
        "One rank reduces the gradient of scale while another reduces that of shift. Collectives "
        "are matched by their order alone: these two are added to each other.",
        g.patch(
            *(SHIFT, f"    if group.rank % 2 == 0:\n    {SHIFT}"),
            *(SCALE, f"    if group.rank % 2:\n    {SHIFT}{SCALE}"),
        ),
    ),
    g.Mistake(
        "takes the mean of an empty batch",
        "The mean over no examples is NaN, and NaN times 0 is NaN too. Take the sum: that of an "
        "empty batch is 0.",
        g.patch("(error**2).sum()", "(error**2).sum(1).mean() * len(x)"),
        wrong=lambda s: any(part.isnan().any() for y in s.ys for part in y),
        hint=2,
    ),
    g.Mistake(
        "a rank without examples makes other collectives",
        "Every rank makes the same collectives, of the same shapes and dtypes, also with an empty "
        "batch. The sum over no examples is zero by itself, in float64 and of the right shape, so "
        "no branch is needed.",
        [
            g.patch("group.all_reduce(loss) /", "(group.all_reduce(loss) if len(x) else loss) /"),
            g.patch("(loss) /", "(loss if len(x) else torch.zeros(())) /"),
        ],
        hung=lambda s: any(not len(x) for x in s.xs),  # earlier cases have no such rank
        hint=2,
    ),
]

GRADER = g.OnRanks(
    functions=("train_step",),
    cases=cases,
    right=right,
    # Room for any order of hundreds of additions in float64; float32 is a million times less exact.
    same=g.within(512),
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    + ("broadcast", "gather", "scatter", "barrier"),
    world_sizes=(3, 2, 1),
    shown="every rank gets what one process with all examples computes, also where ranks have no "
    "examples; all ranks make the same collectives, at most 4, and no example travels",
)
