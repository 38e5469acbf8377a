"""Grade accumulate_without_sync: the mean over all microbatches, sent once; memory of one."""

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

CHANGED = "parameters changed"


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Several microbatches of 3 examples, one, and two. 5 is no number of ranks, nor its square."""
    double = torch.float64
    parameters = [draw.same(*shape, dtype=double) for shape in ((4, 2), (4,), (1, 4), (1,))]
    listed = []
    for k in (5, 1, 2):
        drawn = draw.normal(k, 3, 2, dtype=double), draw.normal(k, 3, 1, dtype=double)
        microbatches = g.ByRank(list(zip(xs, ys)) for xs, ys in zip(*drawn))
        listed.append(g.Case(f"{k} microbatch{'es' * (k > 1)}", parameters, microbatches))
    return listed


def model(parameters: list[Tensor]) -> nn.Module:
    """A network of two layers."""
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    module.load_state_dict(dict(zip(module.state_dict(), parameters)))
    return module


def mean_loss(module: nn.Module, microbatch: tuple[Tensor, Tensor]) -> Tensor:
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
        kept.add(saved := Saved(tensor))
        return saved

    def loss_fn(module: nn.Module, microbatch: tuple[Tensor, Tensor]) -> Tensor:
        watch.note("forward", (len(microbatch[0]), len(kept)))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved.tensor):
            return mean_loss(module, microbatch)

    watch.function(module, loss_fn, microbatches, watch.group)
    is_changed = not all(torch.equal(x, y) for x, y in zip(module.parameters(), parameters))
    return {name: x.grad for name, x in module.named_parameters()} | {CHANGED: is_changed}


def right(parameters: list[Tensor], microbatches: g.ByRank) -> dict[str, Any]:
    """One process with all microbatches of all ranks in one batch."""
    module = model(parameters)
    mean_loss(module, tuple(map(torch.cat, zip(*sum(microbatches, []))))).backward()
    return {name: x.grad for name, x in module.named_parameters()} | {CHANGED: False}


def budget(s: g.Observed) -> g.Budget:
    """Each gradient once."""
    return g.Budget(collectives=len(s.args[0]), payload_bytes=sum(x.nbytes for x in s.args[0]))


def forwards(s: g.Observed) -> list[Any]:
    """(examples, tensors kept of earlier microbatches) of each forward, of all ranks."""
    return [note.value for rank in s.ranks for note in rank.notes]


FOR = "    for microbatch in microbatches:\n"
LOOP = "    for parameter in module.parameters():\n        group"
INNER = "        for parameter in module.parameters():\n            group"
PER_K, MEAN = " / len(microbatches)", 'op="mean", '
OUT = ", out=parameter.grad)"
MISTAKES = [
    g.Mistake(
        "does not divide by the number of microbatches",
        "backward adds to the gradient that is there, so k microbatches leave the sum of k "
        "gradients. Divide each loss, or the sum of the gradients, by k.",
        g.patch(PER_K, ""),
        hint=2,
    ),
    g.Mistake(
        "does not divide by the number of ranks",
        'all_reduce returns the sum over the ranks. Divide it by n, or pass op="mean".',
        [g.patch(MEAN, ""), g.patch(MEAN, "", PER_K, "")],
        hint=2,
    ),
    g.Mistake(
        "divides twice",
        "Divide by the number of microbatches once (each loss, or the sum of the gradients) and by "
        'the number of ranks once (op="mean", or a division).',
        [g.patch(OUT, f"{OUT}.div_({k})") for k in ("group.size", "len(microbatches)")],
        hint=2,
    ),
    g.Mistake(
        "does not average over the ranks",
        "Each rank has the mean over its own microbatches only. all_reduce leaves its argument "
        "alone: pass out=, or assign what it returns to parameter.grad.",
        g.patch(OUT, ")"),
        hint=3,
    ),
    g.Mistake(
        "communicates before the last backward",
        "The last microbatch's gradient is each rank's own: it was added after the all-reduce. "
        "Communicate after the last backward.",
        g.patch(
            LOOP, f"        if microbatch is not microbatches[-2]:\n            continue\n{INNER}"
        ),
        hint=2,
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
        g.patch(LOOP, INNER, MEAN, ""),
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
        "even longer. Call backward() on each loss before the next forward.",
        g.patch(
            FOR,
            "    losses = [loss_fn(module, microbatch) for microbatch in microbatches]\n"
            "    for loss in losses:\n",
            "loss_fn(module, microbatch) / len",
            "loss / len",
        ),
        over_budget=lambda s: any(num_kept for _, num_kept in forwards(s)),
    ),
    g.Mistake(
        "puts microbatches together",
        "Joined microbatches are the large batch that does not fit into memory. Call loss_fn with "
        "one microbatch at a time.",
        g.patch(
            "microbatch in microbatches:",
            "microbatch in [tuple(map(torch.cat, zip(*microbatches)))]:",
            PER_K,
            "",
        ),
        over_budget=lambda s: any(examples > 3 for examples, _ in forwards(s)),
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    same=g.within(2**16),  # the gradient of a bias may cancel to a small number
    call=call,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.data_parallel",),
    shown="the gradients are those of the mean over all microbatches of all ranks; they travel "
    "once, and the activations of one microbatch are in memory at a time",
)
