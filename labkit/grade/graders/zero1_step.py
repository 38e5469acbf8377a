"""Grade zero1_step: parameters as of one process, 2k numbers of states, an all-reduce's bytes."""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

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

STEPS = 3
STEP_1 = "parameters after step 1"
EPS = 0.1  # Adam divides by the gradient's size, which hides a factor; a large eps shows it
TOLERANCE = 2.0**16


class Adam:
    """Adam on a flat tensor. The first step creates the states."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []
        self.num_steps = 0

    @torch.no_grad()
    def step(self, weights: Tensor, gradients: Tensor) -> None:
        """Update `weights` in place. ValueError for tensors that do not go together."""
        self.states = self.states or [torch.zeros_like(weights), torch.zeros_like(weights)]
        mean, square = self.states
        if not weights.shape == gradients.shape == mean.shape:
            raise ValueError(
                f"optimizer.step got weights of shape {tuple(weights.shape)} and gradients of "
                f"shape {tuple(gradients.shape)}, and has states of shape {tuple(mean.shape)}: "
                "pass the same shard of both, in every step"
            )
        self.num_steps += 1
        mean.lerp_(gradients, 1 - 0.9)
        square.lerp_(gradients**2, 1 - 0.99)
        root = (square / (1 - 0.99**self.num_steps)).sqrt()
        weights -= 0.1 * mean / (1 - 0.9**self.num_steps) / (root + EPS)


def cases(n: int, draw: Draw) -> list[Case]:
    """A size that n divides, one less, fewer parameters than ranks, one more."""
    k = draw.rng.randrange(4, 9)
    return [
        Case(
            f"{numel} parameter{'s' * (numel > 1)}, {STEPS} steps",
            draw.same(numel, dtype=torch.float64),
            draw.normal(STEPS, numel, dtype=torch.float64),
        )
        for numel in (n * k, n * k - 1, max(1, n - 1), n * k + 1)
    ]


def call(watch, args) -> dict[str, Tensor]:
    """The steps of one rank: the parameters after each of them, as the model's layers see them."""
    weights, adam, after = args[0].clone(), Adam(), {}
    view_of_layers = weights.view(-1)
    for number, gradients in enumerate(args[1], start=1):
        watch.function(weights, gradients.clone(), adam, watch.group)
        after[f"parameters after step {number}"] = view_of_layers.clone()
    watch.note("numbers of states", sum(state.numel() for state in adam.states))
    return after


def right(parameters: Tensor, gradients: ByRank) -> dict[str, Tensor]:
    """One process with the whole batch."""
    weights, adam, after = parameters.clone(), Adam(), {}
    for number in range(STEPS):
        adam.step(weights, sum(each[number] for each in gradients) / len(gradients))
        after[f"parameters after step {number + 1}"] = weights.clone()
    return after


def budget(s: Observed) -> Budget:
    """One nth of the parameters to each other rank, twice per step."""
    return Budget(sent_bytes=STEPS * 2 * (s.n - 1) * shard_numel(s) * 8)


def shard_numel(s: Observed) -> int:
    """k = ceil(numel / n)."""
    return -(-s.xs.numel() // s.n)


def stepped(weights: Tensor, gradients: Tensor) -> Tensor:
    """The weights after a first step of Adam."""
    after = weights.clone()
    Adam().step(after, gradients)
    return after


def mean(s: Observed) -> Tensor:
    """The gradients of the first step."""
    return sum(each[0] for each in s.args[1]) / s.n


def alone(s: Observed) -> Tensor:
    """The parameters after a step with one rank's gradients, for each rank."""
    return torch.stack([stepped(s.xs, each[0]) for each in s.args[1]])


def index(s: Observed) -> Tensor:
    """The positions of the parameters; divided by k, the ranks that own them."""
    return torch.arange(s.xs.numel())


def is_after(s: Observed, *parameters: Tensor) -> bool:
    """Whether the ranks have these parameters after the first step: one for all, or by rank."""
    by_rank = parameters if len(parameters) == s.n else parameters * s.n
    return all(
        close(y[STEP_1], each, steps=TOLERANCE) for y, each in zip(s.ys, by_rank, strict=True)
    )


def only(s: Observed, is_updated: Tensor) -> Tensor:
    """The parameters after the first step, if only some of them were updated."""
    return torch.where(is_updated, s.right[0][STEP_1], s.xs)


def mixed(s: Observed) -> Iterator[Tensor]:
    """After the first step, where weights and gradients are of other shards: shifted, or one."""
    padding, shape = (0, -s.xs.numel() % s.n), (s.n, shard_numel(s))
    weights, gradients = (pad(x, padding).view(shape) for x in (s.xs, mean(s)))
    places = [torch.arange(s.n).roll(i) for i in range(s.n)]
    places += [torch.full((s.n,), i) for i in range(s.n)]
    for one, other in itertools.product(places, places):
        yield stepped(weights[one], gradients[other]).flatten()[: s.xs.numel()]


MISTAKES = [
    Mistake(
        "sums instead of averaging",
        "The step used the sum over the ranks, n times the mean. Adam divides by the gradient's "
        "size and hides most of the factor. Clipping, eps and other optimizers do not.",
        hint=3,
        seen=lambda s: is_after(s, stepped(s.xs, mean(s) * s.n)),
        made_by=patch(', op="mean"', ""),
    ),
    Mistake(
        "divides by the number of ranks twice",
        'The step used the mean divided by n once more. op="mean" divides already.',
        hint=3,
        seen=lambda s: is_after(s, stepped(s.xs, mean(s) / s.n)),
        made_by=patch("(shard, gradient)", "(shard, gradient / group.size)"),
    ),
    Mistake(
        "steps with one rank's gradients only",
        "Each rank used its own gradients, and nothing was averaged. The block that reduce_scatter "
        "returns is the gradient to step with.",
        seen=lambda s: (
            is_after(s, *alone(s)) or is_after(s, alone(s)[index(s) // shard_numel(s), index(s)])
        ),
        made_by=patch(
            'group.reduce_scatter(pad(gradients, padding), op="mean")',
            "pad(gradients, padding).tensor_split(group.size)[group.rank]",
        ),
    ),
    Mistake(
        "averages parameters instead of gradients",
        "Each rank stepped with its own gradients, and then the parameters were averaged. A step "
        "of Adam is not linear in the gradient, so the result is another one.",
        seen=lambda s: is_after(s, alone(s).mean(0)),
        made_by=patch(
            "optimizer.step(shard, gradient)",
            "optimizer.step(parameters, gradients)",
            "group.all_gather(shard)[: parameters.numel()]",
            'group.all_reduce(parameters, op="mean")',
        ),
    ),
    Mistake(
        "the parameters stay as they were",
        "The caller's parameters did not change. Copy the result into `parameters`, for example "
        "with copy_. Assigning to the name or to .data does not change what layers use.",
        hint=3,
        seen=lambda s: is_after(s, s.xs),
        made_by=patch("parameters.copy_(group", "parameters = (group"),
    ),
    Mistake(
        "the updated shards are not gathered",
        "Each rank has its own shard updated and the other shards as they were. From now on every "
        "rank has another model.",
        seen=lambda s: is_after(s, *(only(s, index(s) // shard_numel(s) == r) for r in range(s.n))),
        made_by=patch(
            "parameters.copy_(group.all_gather(shard)[: parameters.numel()])",
            "mine = parameters[group.rank * len(shard) : (group.rank + 1) * len(shard)]\n"
            "    mine.copy_(shard[: len(mine)])",
        ),
    ),
    Mistake(
        "forgets the remainder",
        "The last numel % n parameters are in no shard and are never updated. Pad with zeros until "
        "n divides the size.",
        hint=2,
        seen=lambda s: is_after(s, only(s, index(s) < s.xs.numel() // s.n * s.n)),
        made_by=patch(
            "-parameters.numel() % group.size)",
            "-(parameters.numel() % group.size))",
            "parameters.copy_(group.all_gather(shard)[: parameters.numel()])",
            "whole = group.all_gather(shard)\n    parameters[: whole.numel()] = whole",
        ),
    ),
    Mistake(
        "mixes up the shards",
        "reduce_scatter leaves block r of the gradients on rank r, and all_gather concatenates in "
        "rank order. So rank r must step shard r of the parameters.",
        hint=2,
        seen=lambda s: any(is_after(s, each) for each in mixed(s)),
        made_by=patch("[group.rank]", "[(group.rank + 1) % group.size]"),
    ),
    Mistake(
        "crashes where n does not divide the size",
        "reduce_scatter cuts its argument into n equal blocks. Append zeros to gradients and "
        "parameters until n divides their size.",
        hint=2,
        outcome=Outcome.CRASHED,
        seen=lambda s: s.xs.numel() % s.n > 0,
        made_by=patch("-parameters.numel() % group.size", "0"),
    ),
    Mistake(
        "keeps the states of all parameters",
        "The optimizer creates states for every weight that it gets, also where the gradient is "
        "zero. Pass only this rank's shard: k numbers.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: any(rank.notes[0].value > 2 * shard_numel(s) for rank in s.ranks),
        made_by=patch(
            "optimizer.step(shard, gradient)",
            'optimizer.step(parameters, group.all_reduce(gradients, op="mean"))',
            "parameters.copy_(group.all_gather(shard)[: parameters.numel()])",
            "",
        ),
    ),
    Mistake(
        "all-reduces the parameters",
        "An all_reduce of shards in a tensor of zeros sends twice what an all_gather of the shards "
        "sends.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            s.sent_bytes(0) > budget(s).sent_bytes
            and bool(s.operations(0, "all_reduce"))
            and bool(s.operations(0, "reduce_scatter"))
            and all(rank.notes[0].value <= 2 * shard_numel(s) for rank in s.ranks)
        ),
        made_by=patch(
            "parameters.copy_(group.all_gather(shard)[: parameters.numel()])",
            "whole = torch.zeros(group.size, len(shard), dtype=shard.dtype)\n"
            "    whole[group.rank] = shard\n"
            "    parameters.copy_(group.all_reduce(whole).flatten()[: parameters.numel()])",
        ),
    ),
    Mistake(
        "all-reduces the gradients",
        "An all_reduce gives every rank all mean gradients, and each rank uses one nth of them. A "
        "reduce_scatter gives each rank just this nth, for half of the bytes.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            s.sent_bytes(0) > budget(s).sent_bytes
            and bool(s.operations(0, "all_reduce"))
            and not s.operations(0, "reduce_scatter")
        ),
        made_by=patch(
            'group.reduce_scatter(pad(gradients, padding), op="mean")',
            'group.all_reduce(pad(gradients, padding), op="mean")\n'
            "    gradient = gradient.tensor_split(group.size)[group.rank]",
        ),
    ),
]

GRADER = OnRanks(
    name="zero1_step",
    cases=cases,
    right=right,
    call=call,
    budget=budget,
    same=within(TOLERANCE),
    mistakes=MISTAKES,
    allowed=("all_reduce", "reduce_scatter", "all_gather"),
    closed=("labkit.zero",),
    num_arguments=4,
    shown="the parameters are those of one process with the whole batch, for any size; each rank "
    "keeps an nth of the states and sends no more than an all-reduce does",
)
