"""Grade accumulate_without_sync: the mean over all microbatches, sent once; memory of one."""

from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

EXAMPLES = 200
"""Examples in a microbatch: so many that activations need far more memory than gradients."""


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Several microbatches, one, and two. 5 is no number of ranks, nor its square."""
    double = torch.float64
    parameters = [draw.same(*shape, dtype=double) for shape in ((4, 2), (4,), (1, 4), (1,))]
    listed = []
    for k in (5, 1, 2):
        drawn = [draw.normal(k, EXAMPLES, width, dtype=double) for width in (2, 1)]
        microbatches = g.ByRank(list(zip(xs, ys)) for xs, ys in zip(*drawn))
        listed.append(g.Case(f"{k} microbatch{'es' * (k > 1)}", parameters, microbatches))
    return listed


def model(parameters: list[Tensor]) -> nn.Module:
    """Return a network of two layers."""
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    module.load_state_dict(dict(zip(module.state_dict(), parameters)))
    return module


def mean_loss(module: nn.Module, microbatch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean of the squared errors."""
    x, y = microbatch
    return ((module(x) - y) ** 2).mean()


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Note each forward, and with it the memory in use."""
    parameters, microbatches = args
    module = model(parameters)

    def loss_fn(module: nn.Module, microbatch: tuple[Tensor, Tensor]) -> Tensor:
        watch.note("forward")
        return mean_loss(module, microbatch)

    watch.function(module, loss_fn, microbatches, watch.group)
    is_changed = not all(torch.equal(x, y) for x, y in zip(module.parameters(), parameters))
    return {name: x.grad for name, x in module.named_parameters()} | {"changed": is_changed}


def right(parameters: list[Tensor], microbatches: g.ByRank) -> dict[str, Any]:
    """One process with all microbatches of all ranks in one batch."""
    module = model(parameters)
    mean_loss(module, tuple(map(torch.cat, zip(*sum(microbatches, []))))).backward()
    return {name: x.grad for name, x in module.named_parameters()} | {"changed": False}


def budget(s: g.Observed) -> g.Budget:
    """Each gradient once."""
    return g.Budget(collectives=len(s.args[0]), payload_bytes=sum(x.nbytes for x in s.args[0]))


def keeps_activations(s: g.Observed) -> bool:
    """Return whether earlier activations are alive at the start of a forward: 4 numbers per
    example."""
    return any(e.live_bytes > 8 * 4 * EXAMPLES for rank in s.ranks for e in rank.notes)


FOR = "    for microbatch in microbatches:\n"
LOOP = "    for parameter in module.parameters():\n        group"
INNER = "        for parameter in module.parameters():\n            group"
PER_K, MEAN = " / len(microbatches)", 'op="mean", '
MISTAKES = [
    g.Mistake(
        "does not divide by the number of microbatches",
        "backward adds to the gradient that is there, so k microbatches leave the sum of k "
        "gradients. Divide each loss, or the sum of the gradients, by k. Dividing by the number of "
        "ranks is another division.",
        [g.patch(PER_K, ""), g.patch(PER_K, "", MEAN, "")],
        hint=2,
    ),
    g.Mistake(
        "does not divide by the number of ranks",
        'all_reduce returns the sum over the ranks. Divide it by n, or pass op="mean".',
        g.patch(MEAN, ""),
        hint=2,
    ),
    g.Mistake(
        "does not average over the ranks",
        "Each rank has the mean over its own microbatches only. all_reduce leaves its argument "
        "alone: pass out=, or assign what it returns to parameter.grad.",
        g.patch(", out=parameter.grad)", ")"),
        hint=3,
    ),
    g.Mistake(
        "zeroes the gradients between microbatches",
        "Only the last microbatch counts: the gradients were cleared or replaced before each "
        "backward. Gradients accumulate because backward adds; clear them once per step.",
        [
            g.patch(FOR, f"{FOR}        module.zero_grad()\n"),
            g.patch(FOR, f"{FOR}        module.zero_grad()\n", PER_K, ""),
        ],
        hint=3,
    ),
    g.Mistake(
        "sums what is already a sum",
        "An all-reduce in the loop sends the accumulated gradient. The other ranks' earlier "
        "gradients are in it, so they are added again. Communicate once, after the loop.",
        g.patch(LOOP, INNER, MEAN, "", PER_K, f"{PER_K} / group.size"),
        hint=2,
    ),
    g.Mistake(
        "communicates for every microbatch",
        "The mean of sums is the sum of means, so one all-reduce of the accumulated gradient is "
        "enough. Communicate once, after the last microbatch.",
        g.patch(LOOP, INNER),
        over_budget=lambda s: s.num_collectives(0) > len(s.args[0]),
    ),
    g.Mistake(
        "keeps the activations of several microbatches",
        "Activations stay in memory until backward has used them; retain_graph=True keeps them "
        "even longer. Call loss_fn with one microbatch at a time, and backward() on its loss "
        "before the next forward.",
        [
            g.patch(
                FOR,
                "    losses = [loss_fn(module, microbatch) for microbatch in microbatches]\n"
                "    for loss in losses:\n",
                "loss_fn(module, microbatch) / len",
                "loss / len",
            ),
            g.patch(
                "in microbatches:",
                "in [tuple(map(torch.cat, zip(*microbatches)))]:",
                PER_K,
                "",
            ),
        ],
        over_budget=keeps_activations,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    same=g.within(2**16),  # the gradient of a bias may cancel to a small number
    call=call,
    budget=budget,
    watch_memory=True,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.data_parallel",),
    shown="the gradients are those of the mean over all microbatches of all ranks; they travel "
    "once, and the activations of one microbatch are in memory at a time",
)
