"""Grade accumulate_without_sync: the mean over all microbatches, sent once; memory of one."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    patch,
    within,
)

Microbatch = tuple[Tensor, Tensor]
CHANGED = "parameters changed"


def cases(n: int, draw: Draw) -> list[Case]:
    """Several microbatches of 3 examples, one, and two. 5 is no number of ranks, nor its square."""
    double = torch.float64
    shapes = [(4, 2), (4,), (1, 4), (1,)]
    parameters = [draw.same(*shape, dtype=double) for shape in shapes]
    listed = []
    for k in (5, 1, 2):
        drawn = [
            (draw.normal(3, 2, dtype=double), draw.normal(3, 1, dtype=double)) for _ in range(k)
        ]
        microbatches = ByRank([(xs[rank], ys[rank]) for xs, ys in drawn] for rank in range(n))
        listed.append(Case(f"{k} microbatch{'es' * (k > 1)}", parameters, microbatches))
    return listed


def model(parameters: list[Tensor]) -> nn.Module:
    """A network of two layers."""
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), parameters):
            parameter.copy_(value)
    return module


def mean_loss(module: nn.Module, microbatch: Microbatch) -> Tensor:
    """The mean of the squared errors."""
    x, y = microbatch
    return ((module(x) - y) ** 2).mean()


class Saved:
    """A tensor that autograd keeps for backward, and drops after it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Note at each forward its examples, and how many tensors of earlier ones are still kept."""
    parameters, microbatches = args
    module = model(parameters)
    kept: weakref.WeakSet[Saved] = weakref.WeakSet()

    def keep(tensor: Tensor) -> Saved:
        saved = Saved(tensor)
        kept.add(saved)
        return saved

    def loss_fn(module: nn.Module, microbatch: Microbatch) -> Tensor:
        watch.note("forward", (len(microbatch[0]), len(kept)))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved.tensor):
            return mean_loss(module, microbatch)

    watch.function(module, loss_fn, microbatches, watch.group)
    is_changed = not all(torch.equal(x, y) for x, y in zip(module.parameters(), parameters))
    return {name: x.grad for name, x in module.named_parameters()} | {CHANGED: is_changed}


def gradients(parameters: list[Tensor], *microbatches: Microbatch) -> dict[str, Any]:
    """Of the mean loss over all examples of some microbatches."""
    module = model(parameters)
    mean_loss(module, tuple(map(torch.cat, zip(*microbatches)))).backward()
    return {name: x.grad for name, x in module.named_parameters()} | {CHANGED: False}


@functools.lru_cache(64)
def of_each(case: Case) -> list[list[dict[str, Any]]]:
    """The gradients of each microbatch, by rank."""
    parameters, by_rank = case.args
    return [[gradients(parameters, microbatch) for microbatch in its] for its in by_rank]


def right(parameters: list[Tensor], microbatches: ByRank) -> dict[str, Any]:
    """One process with all microbatches of all ranks in one batch."""
    return gradients(parameters, *(each for its in microbatches for each in its))


def budget(s: Observed) -> Budget:
    """Each gradient once."""
    return Budget(collectives=len(s.args[0]), payload_bytes=sum(x.nbytes for x in s.args[0]))


def k(s: Observed) -> int:
    """The number of microbatches."""
    return len(s.args[1][0])


Weight = Callable[[int, int, bool, int], float]
"""(ranks, microbatches, whether the gradient is the rank's own, which microbatch) -> a factor."""


def combines(*weights: Weight) -> Callable[[Observed], bool]:
    """A predicate: every result is the sum of all gradients, each times one of `weights`."""

    def on(s: Observed, me: int, weight: Weight) -> dict[str, Any]:
        result: dict[str, Any] = {CHANGED: False}
        for rank, its in enumerate(of_each(s.case)):
            for i, its_gradients in enumerate(its):
                factor = weight(s.n, k(s), rank == me, i)
                for name, x in its_gradients.items():
                    if name != CHANGED:
                        result[name] = result.get(name, 0) + factor * x
        return result

    return lambda s: any(s.is_answer([on(s, me, w) for me in range(s.n)]) for w in weights)


def forwards(s: Observed) -> list[Any]:
    """(examples, tensors kept of earlier microbatches) of each forward, of all ranks."""
    return [note.value for rank in s.ranks for note in rank.notes]


LOOP = "    for parameter in module.parameters():\n        group"
MISTAKES = [
    Mistake(
        "does not divide by the number of microbatches",
        "backward adds to the gradient that is there, so k microbatches leave the sum of k "
        "gradients. Divide each loss, or the sum of the gradients, by k.",
        hint=2,
        seen=combines(lambda n, k, own, i: 1 / n),
        made_by=patch(" / len(microbatches)", ""),
    ),
    Mistake(
        "does not divide by the number of ranks",
        'all_reduce returns the sum over the ranks. Divide it by n, or pass op="mean".',
        hint=2,
        seen=combines(lambda n, k, own, i: 1 / k),
        made_by=patch('op="mean", ', ""),
    ),
    Mistake(
        "divides by nothing",
        "The gradients are the sum over all microbatches and all ranks. Divide by the number of "
        "microbatches once, and by the number of ranks once.",
        hint=2,
        seen=combines(lambda n, k, own, i: 1),
        made_by=patch(" / len(microbatches)", "", 'op="mean", ', ""),
    ),
    Mistake(
        "divides twice",
        "Divide by the number of microbatches once (each loss, or the sum of the gradients) and by "
        'the number of ranks once (op="mean", or a division).',
        hint=2,
        seen=combines(
            lambda n, k, own, i: 1 / (n * n * k),
            lambda n, k, own, i: 1 / (n * k * k),
            lambda n, k, own, i: 1 / (n * k) ** 2,
        ),
        made_by=patch("out=parameter.grad)", "out=parameter.grad).div_(group.size)"),
    ),
    Mistake(
        "does not average over the ranks",
        "Each rank has the mean over its own microbatches only. all_reduce leaves its argument "
        "alone: pass out=, or assign what it returns to parameter.grad.",
        hint=3,
        seen=combines(lambda n, k, own, i: own / k),
        made_by=patch(", out=parameter.grad", ""),
    ),
    Mistake(
        "communicates before the last backward",
        "The last microbatch's gradient is each rank's own: it was added after the all-reduce. "
        "Communicate after the last backward.",
        hint=2,
        seen=combines(lambda n, k, own, i: 1 / (n * k) if i < k - 1 else own / k),
        made_by=patch(
            LOOP,
            "        if microbatch is not microbatches[-2]:\n            continue\n"
            "        for parameter in module.parameters():\n            group",
        ),
    ),
    Mistake(
        "zeroes the gradients between microbatches",
        "Only the last microbatch counts: the gradients were cleared or replaced before each "
        "backward. Gradients accumulate because backward adds; clear them once per step.",
        hint=3,
        seen=combines(
            lambda n, k, own, i: (i == k - 1) / (n * k), lambda n, k, own, i: (i == k - 1) / n
        ),
        made_by=patch(
            "for microbatch in microbatches:\n",
            "for microbatch in microbatches:\n        module.zero_grad()\n",
        ),
    ),
    Mistake(
        "sums what is already a sum",
        "An all-reduce in the loop sends the accumulated gradient. The other ranks' earlier "
        "gradients are in it, so they are added again. Communicate once, after the loop.",
        hint=2,
        seen=combines(
            lambda n, k, own, i: n ** (k - 1 - i) / k,
            lambda n, k, own, i: n ** (k - 1 - i) / (n * k),
        ),
        made_by=patch(
            LOOP,
            "        for parameter in module.parameters():\n            group",
            'op="mean", ',
            "",
        ),
    ),
    Mistake(
        "communicates for every microbatch",
        "The mean of sums is the sum of means, so one all-reduce of the accumulated gradient is "
        "enough. Communicate once, after the last microbatch.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: k(s) > 1 and s.payload_bytes(0) == k(s) * budget(s).payload_bytes,
        made_by=patch(
            LOOP,
            "        for parameter in module.parameters():\n            group",
        ),
    ),
    Mistake(
        "keeps the activations of several microbatches",
        "Activations stay in memory until backward has used them; retain_graph=True keeps them "
        "even longer. Call backward() on each loss before the next forward.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: any(num_kept for _, num_kept in forwards(s)),
        made_by=patch(
            "    for microbatch in microbatches:\n",
            "    losses = [loss_fn(module, microbatch) for microbatch in microbatches]\n"
            "    for loss in losses:\n",
            "loss_fn(module, microbatch) / len",
            "loss / len",
        ),
    ),
    Mistake(
        "puts microbatches together",
        "Joined microbatches are the large batch that does not fit into memory. Call loss_fn with "
        "one microbatch at a time.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: any(examples > 3 for examples, _ in forwards(s)),
        made_by=patch(
            "    for microbatch in microbatches:\n",
            "    joined = tuple(torch.cat(each) for each in zip(*microbatches))\n"
            "    for microbatch in [joined]:\n",
            " / len(microbatches)",
            "",
        ),
    ),
]

GRADER = OnRanks(
    name="accumulate_without_sync",
    cases=cases,
    right=right,
    same=within(2**16),  # the gradient of a bias may cancel to a small number
    call=call,
    num_arguments=4,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.data_parallel",),
    shown="the gradients are those of the mean over all microbatches of all ranks; they travel "
    "once, and the activations of one microbatch are in memory at a time",
)
