"""Grade zero3_unit: gradients of shards, two units' weights in memory, 3(n-1)k numbers sent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from labkit.grade import grader as g


def layer(weights: Tensor, x: Tensor) -> Tensor:
    """Return tanh(linear(x) + bias). The flat weights are a square matrix and one bias."""
    width = x.shape[-1]
    if weights.shape != (width**2 + 1,):
        got = f"a unit got weights of shape {tuple(weights.shape)}"
        raise ValueError(f"{got}; it has {width**2 + 1}, without padding")
    return torch.tanh(linear(x, weights[:-1].view(width, width)) + weights[-1])


@dataclass(eq=False)
class Unit:
    """A unit that records its forward and backward calls as notes."""

    watch: Any
    index: int
    shard: Tensor
    numel: int

    def forward(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return the output of the unit."""
        self.watch.note(f"forward {self.index}")
        return layer(weights, x)

    def backward(self, weights: Tensor, x: Tensor, y_gradient: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of its input and of its weights."""
        self.watch.note(f"backward {self.index}")
        x, weights = (each.detach().requires_grad_() for each in (x, weights))
        with torch.enable_grad():
            y = layer(weights, x)
        return torch.autograd.grad(y, (x, weights), y_gradient)


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Return cases with one unit and with several. 2 and 3 do not divide width² + 1."""
    width, double = draw.rng.randrange(60, 70, 2), torch.float64

    def case(num_units: int) -> g.Case:
        whole = [draw.same(width**2 + 1, dtype=double) / width**0.5 for _ in range(num_units)]
        x, target = (draw.normal(1, width, dtype=double) for _ in range(2))
        label = f"{num_units} unit{'s' * (num_units > 1)}"
        return g.Case(label, shards(whole, n), width**2 + 1, x, target)

    return [case(1), case(draw.rng.randrange(5, 9))]


def shards(whole: Sequence[Tensor], n: int) -> g.ByRank:
    """Return a list for each rank, with its shard of each tensor."""
    padded = [pad(x, (0, -x.numel() % n)).view(n, -1) for x in whole]
    return g.ByRank([x[rank].clone() for x in padded] for rank in range(n))


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return a rank's results, and the uses of its units."""
    own, numel, x, target = args
    units = [Unit(watch, i, shard, numel) for i, shard in enumerate(own)]
    gradients = watch.function(units, x, lambda y: 2 * (y - target) / y.numel(), watch.group)
    return {
        "uses": [event.what for event in watch.events if event.is_note],
        "units with another shard": sum(u.shard is not x for u, x in zip(units, own)),
        "gradients of shards": gradients,
    }


def right(own: g.ByRank, numel: int, xs: g.ByRank, targets: g.ByRank) -> g.ByRank:
    """Compute the gradients in one process with all weights and the whole batch."""
    whole = [torch.cat(each)[:numel].requires_grad_() for each in zip(*own)]
    y = torch.cat(xs)
    for weights in whole:
        y = layer(weights, y)
    ((y - torch.cat(targets)) ** 2).mean().backward()
    order = range(len(whole))
    uses = [f"forward {i}" for i in order] + [f"backward {i}" for i in reversed(order)]
    return g.ByRank(
        {"uses": uses, "units with another shard": 0, "gradients of shards": each}
        for each in shards([weights.grad for weights in whole], len(own))
    )


def budget(s: g.Observed) -> g.Budget:
    """Allow two all-gathers and a reduce-scatter per unit."""
    return g.Budget(sent_bytes=3 * (s.n - 1) * sum(shard.nbytes for shard in s.xs[0]))


def excess(s: g.Observed) -> str:
    """Say what rank 0 sends or keeps beyond the budget; "" if nothing."""
    if s.n == 1:
        return ""
    if s.operations(0, "all_reduce"):
        return "all-reduce"
    num_units, shard, events = len(s.xs[0]), s.xs[0][0].nbytes, s.ranks[0].events
    # Activations and their gradients, each of them twice: they are small.
    small = 2 * (num_units + 3) * s.args[2][0].nbytes
    num_gathered = num_reduced = num_forward = num_backward = 0
    for event in events:
        if event.what == "all_gather":
            num_gathered += event.nbytes / shard
        elif event.what == "wait" and events[event.began].what == "reduce_scatter":
            num_reduced += events[event.began].nbytes / (s.n * shard)
        elif event.is_note:
            num_forward += event.what.startswith("forward")
            num_backward += event.what.startswith("backward")
            if num_reduced < num_backward - 2:
                return "gradients"
            most = (4 if num_backward else 2) * s.n * shard + num_backward * shard + small
            if num_gathered > num_forward + num_backward + 1 or event.live_bytes > most:
                return "weights"
    return "weights" if num_gathered < 2 * num_units else ""


GATHER = "group.all_gather(unit.shard)[: unit.numel]"
FORWARD = f"        x = unit.forward({GATHER}, x)"
REDUCE = 'group.reduce_scatter(pad(whole, padding), op="mean")'
MINE = ".tensor_split(group.size)[group.rank].clone()"
MISTAKES = [
    g.Mistake(
        "sums instead of averaging",
        'The gradients are n times the mean over the ranks. op="mean" divides by n.',
        g.patch(', op="mean"', ""),
        hint=3,
    ),
    g.Mistake(
        "does not average over the ranks",
        "Each rank has its shard of its own gradients, and nothing of the other ranks' batches. "
        "Weights were gathered, and their gradients have to go back: reduce-scatter them.",
        g.patch(REDUCE, f"pad(whole, padding){MINE}"),
    ),
    g.Mistake(
        "returns the gradients in the order of backward",
        "Backward goes from the last unit to the first. Reverse the list before you return it.",
        g.patch("shard_gradients[::-1]", "shard_gradients"),
        hint=3,
    ),
    g.Mistake(
        "gives backward the output of the unit instead of its input",
        "backward recomputes the unit from the x that its forward got: store x before you replace "
        "it with the output.",
        g.patch("        inputs.append(x)\n", "", FORWARD, f"{FORWARD}\n        inputs.append(x)"),
        hint=2,
    ),
    g.Mistake(
        "holds weights for longer than it may",
        "Gather at most one unit in advance. Release weights after forward, and gather them again "
        "for backward, those of the last unit too: keeping them takes the memory of ZeRO-2. A "
        "list, a name or a view that refers to weights or to a whole gradient keeps it in memory.",
        g.patch(
            FORWARD,
            f"        held = [*(held if inputs[1:] else ()), {GATHER}]\n"
            "        x = unit.forward(held[-1], x)",
        ),
        over_budget=lambda s: excess(s) == "weights",
    ),
    g.Mistake(
        "keeps whole gradients",
        "More than two whole gradients waited for the end of their reduction. Reduce-scatter each "
        "gradient right after the unit's backward, and keep only the gradient of the shard.",
        g.patch(
            REDUCE,
            "pad(whole, padding)",
            "return shard_gradients[::-1]",
            'return [group.reduce_scatter(x, op="mean") for x in shard_gradients[::-1]]',
        ),
        over_budget=lambda s: excess(s) == "gradients",
        hint=2,
    ),
    g.Mistake(
        "all-reduces the gradients",
        "An all_reduce gives whole gradients to all ranks, and each rank keeps one nth. A "
        "reduce_scatter is the half of it that is needed.",
        g.patch(REDUCE, f'group.all_reduce(pad(whole, padding), op="mean"){MINE}'),
        over_budget=lambda s: excess(s) == "all-reduce",
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    budget=budget,
    same=g.within(2**16),
    mistakes=MISTAKES,
    allowed=("all_gather", "reduce_scatter", "all_reduce"),
    closed=("labkit.zero",),
    watch_memory=True,
    world_sizes=(3, 2, 1),
    shown="each rank has the mean gradients of its shards; whenever a unit was used, two units' "
    "weights at most were in memory, and a step sent three times (n-1)/n of the parameters",
)
