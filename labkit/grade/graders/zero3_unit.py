"""Grade zero3_unit: gradients of shards, two units' weights in memory, 3(n-1)k numbers sent."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from labkit.grade import grader as g


def layer(weights: Tensor, x: Tensor) -> Tensor:
    """tanh(linear(x)): the weights are a matrix and a bias, flat."""
    num_in = x.shape[-1]
    num_out = weights.numel() // (num_in + 1)
    matrix, bias = weights.split([num_out * num_in, num_out])
    return torch.tanh(linear(x, matrix.view(num_out, num_in), bias))


class Unit:
    """A unit that notes its uses. Memory that it needs meanwhile is not counted."""

    def __init__(self, watch: Any, index: int, shard: Tensor, numel: int) -> None:
        """watch: the rank's watched.Watch."""
        self.shard, self.numel, self._watch, self._index = shard, numel, watch, index

    def forward(self, weights: Tensor, x: Tensor) -> Tensor:
        """Its output."""
        self._require("weights", weights, (self.numel,))
        self._watch.note("forward", self._index)
        with self._watch.opened():
            y = layer(weights, x)
        self._watch.follow(y)
        self._x_shape, self._y_shape = x.shape, y.shape
        return y

    def backward(self, weights: Tensor, x: Tensor, y_gradient: Tensor) -> tuple[Tensor, ...]:
        """The gradients of its input and of its weights."""
        self._require("weights", weights, (self.numel,))
        self._require("x", x, self._x_shape)
        self._require("y_gradient", y_gradient, self._y_shape)
        self._watch.note("backward", self._index)
        with self._watch.opened(), torch.enable_grad():
            inputs = [each.detach().requires_grad_() for each in (x, weights)]
            gradients = torch.autograd.grad(layer(*inputs[::-1]), inputs, y_gradient)
        for each in gradients:
            self._watch.follow(each)
        return gradients

    def _require(self, what: str, x: Tensor, shape: tuple[int, ...]) -> None:
        if x.shape != shape:
            got = f"unit {self._index} got {what} of shape {tuple(x.shape)}"
            raise ValueError(f"{got}; it should be {tuple(shape)}")


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """One unit, several, many; all widths differ, so that tensors of another unit do not fit."""

    def case(num_units: int) -> g.Case:
        widths = draw.rng.sample(range(40, 51), num_units + 1)
        whole = [
            draw.same(num_out * (num_in + 1), dtype=torch.float64) / num_in**0.5
            for num_in, num_out in zip(widths, widths[1:])
        ]
        return g.Case(
            f"{num_units} unit{'s' * (num_units > 1)}",
            shards(whole, n),
            [each.numel() for each in whole],
            draw.normal(1, widths[0], dtype=torch.float64),
            draw.normal(1, widths[-1], dtype=torch.float64),
        )

    return [case(1), case(draw.rng.randrange(5, 7)), case(draw.rng.randrange(8, 10))]


def shards(whole: Sequence[Tensor], n: int) -> g.ByRank:
    """A list for each rank, with its shard of each tensor."""
    padded = [pad(x, (0, -x.numel() % n)).view(n, -1) for x in whole]
    return g.ByRank([x[rank].clone() for x in padded] for rank in range(n))


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """What a rank returns, and how it used its units."""
    own, numels, x, target = args
    units = [Unit(watch, i, *each) for i, each in enumerate(zip(own, numels))]
    gradients = watch.function(units, x, lambda y: 2 * (y - target) / y.numel(), watch.group)
    return {
        "gradients of shards": gradients,
        "uses": [f"{event.what} {event.value}" for event in watch.events if event.is_note],
        "units with another shard": sum(u.shard is not x for u, x in zip(units, own)),
    }


def right(own: g.ByRank, numels: list[int], xs: g.ByRank, targets: g.ByRank) -> g.ByRank:
    """One process with all weights and the whole batch."""
    whole = [torch.cat(each)[:numel].requires_grad_() for each, numel in zip(zip(*own), numels)]
    y, units = torch.cat(xs), range(len(numels))
    for weights in whole:
        y = layer(weights, y)
    ((y - torch.cat(targets)) ** 2).mean().backward()
    uses = [f"forward {i}" for i in units] + [f"backward {i}" for i in reversed(units)]
    return g.ByRank(
        {"gradients of shards": each, "uses": uses, "units with another shard": 0}
        for each in shards([weights.grad for weights in whole], len(own))
    )


def shard_bytes(s: g.Observed) -> list[int]:
    """By unit."""
    return [shard.nbytes for shard in s.xs[0]]


def budget(s: g.Observed) -> g.Budget:
    """Two all-gathers and a reduce-scatter per unit."""
    return g.Budget(sent_bytes=3 * (s.n - 1) * sum(shard_bytes(s)))


def allowed_bytes(s: g.Observed, kind: str, i: int) -> int:
    """The most that may be alive when unit i is used."""
    k = [0, *shard_bytes(s), 0, 0]
    weights = k[i + 1] + max(k[i : i + 3])
    gradients = k[i + 2] + max(k[i + 2], k[i + 3]) if kind == "backward" else 0
    # Activations and their gradients, each of them twice: they are small.
    activations = 2 * (len(k) + 3) * 50 * 8
    return s.n * (weights + gradients) + sum(k[i + 2 :]) + activations


def excess(s: g.Observed) -> str:
    """What rank 0 sends or keeps too much of; empty where it keeps to the budget."""
    if s.n == 1:
        return ""
    if s.sent_bytes(0) > budget(s).sent_bytes + 1:
        return "all-reduce" if s.operations(0, "all_reduce") else "sent"
    k, events = shard_bytes(s), s.ranks[0].events
    in_advance = reduced = 0
    for event in events:
        if event.what == "all_gather":
            in_advance += event.nbytes
        elif event.what == "wait" and events[event.began].what == "reduce_scatter":
            reduced += events[event.began].nbytes
        elif event.is_note:
            i = event.value
            if event.what == "backward" and reduced < s.n * sum(k[i + 3 :]):
                return "gradients"
            in_advance -= k[i]
            if in_advance > max(k) or event.live_bytes > allowed_bytes(s, event.what, i):
                return "weights"
    gathered = sum(event.nbytes for event in s.operations(0, "all_gather"))
    return "weights" if gathered < 2 * sum(k) else ""


GATHER = "group.all_gather(unit.shard)[: unit.numel]"
FORWARD = f"        x = unit.forward({GATHER}, x)"
REDUCE, FOR = 'group.reduce_scatter(pad(whole, padding), op="mean")', "    for unit in units:\n"
MINE = ".tensor_split(group.size)[group.rank].clone()"
MISTAKES = [
    g.Mistake(
        "sums instead of averaging, or divides twice",
        'A step takes the mean over the ranks. op="mean" divides the sum by n, once.',
        [
            g.patch(', op="mean"', ""),
            g.patch("pad(whole, padding)", "pad(whole / group.size, padding)"),
        ],
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
        "gives a unit other tensors than its own",
        "A unit takes all of its weights and no padding: all_gather(unit.shard)[: unit.numel]. "
        "backward takes the x that its forward got, so store x before you replace it, and the "
        "gradient that the backward of the unit behind returns, so the last unit goes first.",
        [
            g.patch("[: unit.numel], x)", ", x)"),
            g.patch(
                "        inputs.append(x)\n", "", FORWARD, f"{FORWARD}\n        inputs.append(x)"
            ),
            g.patch("zip(reversed(units), reversed(inputs))", "zip(units, inputs)"),
        ],
        crashed=lambda s: "it should be" in s.error,
        hint=2,
    ),
    g.Mistake(
        "holds more than two units in memory",
        "Gather at most one unit in advance. Release weights after forward, and gather them again "
        "for backward: keeping them takes the memory of ZeRO-2. A list, a name or a view that "
        "refers to weights or to a whole gradient keeps it in memory.",
        [
            g.patch(  # gathers all in advance
                FOR,
                f"    gathered = [group.all_gather(unit.shard) for unit in units]\n{FOR}",
                "unit.forward(group.all_gather(unit.shard)[",
                "unit.forward(gathered.pop(0)[",
            ),
            g.patch(  # keeps weights for backward
                FORWARD,
                f"        inputs[-1] = x, {GATHER}\n        x = unit.forward(inputs[-1][1], x)",
                "for unit, x in zip",
                "for unit, (x, weights) in zip",
                f"        weights = {GATHER}\n",
                "",
            ),
        ],
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
