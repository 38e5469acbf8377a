"""Grade zero1_step: parameters as of one process, 2k numbers of states, an all-reduce's bytes."""

from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g

STEPS = 3


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
            shapes = [tuple(x.shape) for x in (weights, gradients, mean)]
            raise ValueError(
                f"optimizer.step: weights, gradients and states have the shapes {shapes}. Pass the "
                "same shard of both, in every step"
            )
        self.num_steps += 1
        mean.lerp_(gradients, 1 - 0.9)
        square.lerp_(gradients**2, 1 - 0.99)
        root = (square / (1 - 0.99**self.num_steps)).sqrt()
        weights -= 0.1 * mean / (1 - 0.9**self.num_steps) / (root + 0.1)


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Return a size that n divides, one less, fewer parameters than ranks, one more."""
    k, double = draw.rng.randrange(4, 9), torch.float64
    return [
        g.Case(
            f"{numel} parameter{'s' * (numel > 1)}, {STEPS} steps",
            draw.same(numel, dtype=double),
            draw.normal(STEPS, numel, dtype=double),
        )
        for numel in (n * k, n * k - 1, max(1, n - 1), n * k + 1)
    ]


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Tensor]:
    """Perform a rank's steps; return the parameters that the model's layers see after each."""
    weights, adam, after = args[0].clone(), Adam(), {}
    view_of_layers = weights.view(-1)
    for number, gradients in enumerate(args[1], start=1):
        watch.function(weights, gradients.clone(), adam, watch.group)
        after[f"parameters after step {number}"] = view_of_layers.clone()
    watch.note("numbers of states", sum(state.numel() for state in adam.states))
    return after


def right(parameters: Tensor, gradients: g.ByRank) -> dict[str, Tensor]:
    """Train in one process with the whole batch."""
    weights, adam, after = parameters.clone(), Adam(), {}
    for number, mean in enumerate(sum(gradients) / len(gradients), start=1):
        adam.step(weights, mean)
        after[f"parameters after step {number}"] = weights.clone()
    return after


def shard_numel(s: g.Observed) -> int:
    """Return k = ceil(numel / n), the elements of a shard."""
    return -(-s.xs.numel() // s.n)


def budget(s: g.Observed) -> g.Budget:
    """Allow 1/n of the parameters to each other rank, twice per step."""
    return g.Budget(sent_bytes=STEPS * 2 * (s.n - 1) * shard_numel(s) * 8)


def too_many_states(s: g.Observed) -> str:
    """Say which ranks have more states than 2k; "" if none has."""
    kept, most = [rank.notes[0].value for rank in s.ranks], 2 * shard_numel(s)
    words = f"the ranks keep {kept} numbers of states; the budget is {most} each"
    return words if max(kept) > most else ""


STEP = "optimizer.step(shard, gradient)"
GATHER = "    parameters.copy_(group.all_gather(shard)[: parameters.numel()])"
REDUCE = "group.reduce_scatter(pad(gradients, padding)"
MINE = ".tensor_split(group.size)[group.rank]"
MISTAKES = [
    g.Mistake(
        "sums instead of averaging",
        "The step used the sum over the ranks, n times the mean. Adam divides by the gradient's "
        "size and hides most of the factor. Clipping, eps and other optimizers do not.",
        g.patch(', op="mean"', ""),
        hint=3,
    ),
    g.Mistake(
        "steps with the gradients of one rank",
        "The block that reduce_scatter returns is the gradient to step with. Averaging parameters "
        "after steps with own gradients is not the same: a step of Adam is not linear.",
        [
            g.patch(STEP, f"optimizer.step(shard, pad(gradients, padding){MINE})"),
            g.patch(
                *(STEP, "optimizer.step(parameters, gradients)"),
                *(GATHER, '    parameters.copy_(group.all_reduce(parameters, op="mean"))'),
            ),
        ],
    ),
    g.Mistake(
        "the parameters stay as they were",
        "The caller's parameters did not change. Copy the result into `parameters`, for example "
        "with copy_. Assigning to the name or to .data does not change what layers use.",
        g.patch("parameters.copy_(group", "parameters = (group"),
        hint=3,
    ),
    g.Mistake(
        "forgets the remainder",
        "The last numel % n parameters are in no shard and are never updated. Pad with zeros until "
        "n divides the size.",
        g.patch(
            "-parameters.numel() % group.size)",
            "-(parameters.numel() % group.size))",
            GATHER,
            "    whole = group.all_gather(shard)\n    parameters[: whole.numel()] = whole",
        ),
        hint=2,
    ),
    g.Mistake(
        "keeps the states of all parameters",
        "The optimizer creates states for every weight that it gets, also where the gradient is "
        "zero. Pass only this rank's shard: k numbers.",
        g.patch(
            *(REDUCE, "group.all_reduce(gradients"),
            *(STEP, "optimizer.step(parameters, gradient)"),
            *(GATHER, ""),
        ),
        over_budget=too_many_states,
    ),
    g.Mistake(
        "all-reduces where half of it is enough",
        "An all_reduce is a reduce_scatter and an all_gather. Each rank steps with one nth of the "
        "mean gradients, so a reduce_scatter is enough; then it has one nth of the parameters, and "
        "an all_gather of these shards is enough.",
        g.patch(
            *(REDUCE, REDUCE.replace("reduce_scatter", "all_reduce")),
            *(STEP, f"optimizer.step(shard, gradient{MINE})"),
        ),
        over_budget=lambda s: (
            s.operations(0, "all_reduce") and s.sent_bytes(0) > budget(s).sent_bytes
        ),
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    budget=budget,
    same=g.within(2**16),
    mistakes=MISTAKES,
    allowed=("all_reduce", "reduce_scatter", "all_gather"),
    closed=("labkit.zero",),
    shown="the parameters are those of one process with the whole batch, for any size; each rank "
    "keeps an nth of the states and sends no more than an all-reduce does",
)
