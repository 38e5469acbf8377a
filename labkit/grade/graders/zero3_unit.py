"""Grade zero3_unit: gradients of shards, two units' weights in memory, 3(n-1)k numbers sent."""

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

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

EXAMPLES = 1
TOLERANCE = 2.0**16


def layer(weights: Tensor, x: Tensor) -> Tensor:
    """tanh(linear(x)): the weights are a matrix and a bias, flat."""
    num_in = x.shape[-1]
    num_out = weights.numel() // (num_in + 1)
    matrix, bias = weights.split([num_out * num_in, num_out])
    return torch.tanh(linear(x, matrix.view(num_out, num_in), bias))


class Unit:
    """A unit that notes its uses. Memory that it needs meanwhile is not counted."""

    def __init__(self, watch, index: int, shard: Tensor, numel: int) -> None:
        """watch: the rank's watched.Watch."""
        self.shard, self.numel, self._watch, self._index = shard, numel, watch, index

    def forward(self, weights: Tensor, x: Tensor) -> Tensor:
        """Its output."""
        self._require("weights", weights, (self.numel,))
        self._watch.note(f"forward {self._index}")
        with self._watch.opened():
            y = layer(weights, x)
        self._watch.follow(y)
        self._x_shape, self._y_shape = x.shape, y.shape
        return y

    def backward(self, weights: Tensor, x: Tensor, y_gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of its input and of its weights."""
        self._require("weights", weights, (self.numel,))
        self._require("x", x, self._x_shape)
        self._require("y_gradient", y_gradient, self._y_shape)
        self._watch.note(f"backward {self._index}")
        with self._watch.opened(), torch.enable_grad():
            inputs = [each.detach().requires_grad_() for each in (x, weights)]
            gradients = torch.autograd.grad(layer(*inputs[::-1]), inputs, y_gradient)
        for each in gradients:
            self._watch.follow(each)
        return gradients

    def _require(self, what: str, x: Tensor, shape: tuple[int, ...]) -> None:
        if x.shape != shape:
            raise ValueError(
                f"unit {self._index} got {what} of shape {tuple(x.shape)}; it should be "
                f"{tuple(shape)}"
            )


def cases(n: int, draw: Draw) -> list[Case]:
    """One unit, several, many; all widths differ, so that what belongs to another unit fits not."""

    def case(num_units: int) -> Case:
        widths = draw.rng.sample(range(40, 51), num_units + 1)
        whole = [
            draw.same(num_out * (num_in + 1), dtype=torch.float64) / num_in**0.5
            for num_in, num_out in zip(widths, widths[1:], strict=False)
        ]
        return Case(
            f"{num_units} unit{'s' * (num_units > 1)}",
            ByRank(shards(whole, n, rank) for rank in range(n)),
            [each.numel() for each in whole],
            draw.normal(EXAMPLES, widths[0], dtype=torch.float64),
            draw.normal(EXAMPLES, widths[-1], dtype=torch.float64),
        )

    return [case(1), case(draw.rng.randrange(5, 7)), case(draw.rng.randrange(8, 10))]


def shards(whole: list[Tensor], n: int, rank: int) -> list[Tensor]:
    """A rank's shard of each tensor."""
    return [pad(x, (0, -x.numel() % n)).tensor_split(n)[rank].clone() for x in whole]


def call(watch, args) -> dict[str, object] | None:
    """What a rank returns, and how it used its units."""
    own, numels, x, target = args
    units = [Unit(watch, i, *each) for i, each in enumerate(zip(own, numels, strict=True))]
    gradients = watch.function(units, x, lambda y: 2 * (y - target) / y.numel(), watch.group)
    if gradients is None:
        return None
    return {
        "gradients of shards": gradients,
        "uses": [event.what for event in watch.events if event.is_note],
        "units with another shard": sum(u.shard is not x for u, x in zip(units, own, strict=True)),
    }


def serial(own: ByRank, numels, xs, targets) -> list[Tensor]:
    """The gradients of all weights, for the mean loss over these ranks' batches."""
    whole = [
        torch.cat(each)[:numel].requires_grad_()
        for each, numel in zip(zip(*own, strict=True), numels, strict=True)
    ]
    y = torch.cat(list(xs))
    for weights in whole:
        y = layer(weights, y)
    ((y - torch.cat(list(targets))) ** 2).mean().backward()
    return [weights.grad for weights in whole]


def right(own: ByRank, numels, xs, targets) -> ByRank:
    """One process with all weights and the whole batch."""
    whole, n, units = serial(own, numels, xs, targets), len(own), range(len(numels))
    uses = [f"forward {i}" for i in units] + [f"backward {i}" for i in reversed(units)]
    return ByRank(
        {
            "gradients of shards": shards(whole, n, rank),
            "uses": uses,
            "units with another shard": 0,
        }
        for rank in range(n)
    )


def budget(s: Observed) -> Budget:
    """Two all-gathers and a reduce-scatter per unit."""
    return Budget(sent_bytes=3 * (s.n - 1) * sum(shard_bytes(s)))


def shard_bytes(s: Observed) -> list[int]:
    """By unit."""
    return [shard.nbytes for shard in s.xs[0]]


def allowed_bytes(s: Observed, use: str) -> int:
    """The most that may be alive when a unit is used."""
    kind, i = use.split()[0], int(use.split()[1])
    k = [0, *shard_bytes(s), 0, 0]
    weights = k[i + 1] + max(k[i : i + 3])
    gradients = k[i + 2] + max(k[i + 2], k[i + 3]) if kind == "backward" else 0
    of_shards = sum(k[i + 2 :])
    # Activations and their gradients, each of them twice: they are small.
    activations = 2 * (len(k) + 3) * EXAMPLES * 50 * 8
    return s.n * (weights + gradients) + of_shards + activations


def excess(s: Observed) -> str:
    """Which part of the budget is used up; empty where none is."""
    k = shard_bytes(s)
    if s.n == 1:
        return ""
    if s.sent_bytes(0) > budget(s).sent_bytes + 1:
        return "all-reduce" if s.operations(0, "all_reduce") else "sent"
    gathered = sum(e.nbytes for e in s.operations(0, "all_gather"))
    events, in_advance, reduced = s.ranks[0].events, 0, 0
    for event in events:
        if event.what == "all_gather":
            in_advance += event.nbytes
        elif event.what == "wait" and events[event.began].what == "reduce_scatter":
            reduced += events[event.began].nbytes
        elif event.is_note:
            i = int(event.what.split()[1])
            in_advance -= k[i]
            if in_advance > max(k):
                return "advance"
            if event.what.startswith("backward") and reduced < s.n * sum(k[i + 3 :]):
                return "gradients"
            if event.live_bytes > allowed_bytes(s, event.what):
                return "kept" if gathered < 2 * sum(k) - max(k) else "released"
    return "kept" if gathered < 2 * sum(k) else ""


def are(s: Observed, gradients_of) -> bool:
    """Whether each rank r returned gradients_of(r)."""
    return all(
        close(y["gradients of shards"], gradients_of(r), steps=TOLERANCE)
        for r, y in enumerate(s.ys)
    )


def is_times(s: Observed, factor: float) -> bool:
    """Whether the gradients are the right ones, times a factor."""
    return are(s, lambda r: [x * factor for x in s.right[r]["gradients of shards"]])


def own_gradients(s: Observed, rank: int) -> list[Tensor]:
    """A rank's shard of the gradients of its own batch."""
    return shards(serial(*s.args[:2], *([each[rank]] for each in s.args[2:])), s.n, rank)


MISTAKES = [
    Mistake(
        "sums instead of averaging",
        'The gradients are n times the mean over the ranks. op="mean" divides by n.',
        hint=3,
        seen=lambda s: is_times(s, s.n),
        made_by=patch(', op="mean"', ""),
    ),
    Mistake(
        "divides by the number of ranks twice",
        'The gradients are the mean, divided by n once more. op="mean" divides already.',
        hint=3,
        seen=lambda s: is_times(s, 1 / s.n),
        made_by=patch("pad(whole, padding)", "pad(whole / group.size, padding)"),
    ),
    Mistake(
        "does not average over the ranks",
        "Each rank has its shard of its own gradients, and nothing of the other ranks' batches. "
        "Weights were gathered, and their gradients have to go back: reduce-scatter them.",
        seen=lambda s: are(s, lambda r: own_gradients(s, r)),
        made_by=patch(
            'group.reduce_scatter(pad(whole, padding), op="mean")',
            "pad(whole, padding).tensor_split(group.size)[group.rank].clone()",
        ),
    ),
    Mistake(
        "returns the gradients in the order of backward",
        "Backward goes from the last unit to the first. Reverse the list before you return it.",
        hint=3,
        seen=lambda s: are(s, lambda r: s.right[r]["gradients of shards"][::-1]),
        made_by=patch("shard_gradients[::-1]", "shard_gradients"),
    ),
    Mistake(
        "returns whole gradients",
        "A rank keeps the gradients of its shard only, as it keeps only that of the parameters.",
        seen=lambda s: all(
            x.numel() >= numel
            for x, numel in zip(s.y["gradients of shards"], s.args[1], strict=True)
        ),
        made_by=patch("group.reduce_scatter(", "group.all_reduce("),
    ),
    Mistake(
        "uses weights before they arrive",
        "The gradients have NaN. A check fills a buffer given as out= with NaN until wait() "
        "returns. Either weights were used before wait(), or the next unit was gathered into the "
        "buffer of the unit in use: take a second buffer.",
        hint=3,
        seen=lambda s: any(x.isnan().any() for y in s.ys for x in y["gradients of shards"]),
        made_by=patch(
            "        x = unit.forward(group.all_gather(unit.shard)[: unit.numel], x)",
            "        weights = x.new_empty(group.size * unit.shard.numel())\n"
            "        pending = group.all_gather(unit.shard, out=weights, wait=False)\n"
            "        x = unit.forward(weights[: unit.numel], x)\n"
            "        pending.wait()",
        ),
    ),
    Mistake(
        "loses digits",
        "Every number is nearly right, and float64 holds more digits. Something was converted to "
        "a smaller dtype before it was sent.",
        hint=2,
        seen=lambda s: all(close(y, r, steps=2.0**34) for y, r in zip(s.ys, s.right, strict=True)),
        made_by=patch(
            "(group.all_gather(unit.shard)[", "(group.all_gather(unit.shard.float()).double()["
        ),
    ),
    Mistake(
        "passes other weights than the unit's own",
        "A unit takes all of its weights and no padding: all_gather(unit.shard)[: unit.numel].",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: "got weights of shape" in s.error,
        made_by=patch("[: unit.numel], x)", ", x)"),
    ),
    Mistake(
        "gives backward another x than forward",
        "backward takes the unit's input: the output of the unit before. Store x before you "
        "replace it by the output.",
        hint=2,
        outcome=Outcome.CRASHED,
        seen=lambda s: "got x of shape" in s.error,
        made_by=patch(
            "        inputs.append(x)\n",
            "",
            "unit.numel], x)\n",
            "unit.numel], x)\n        inputs.append(x)\n",
        ),
    ),
    Mistake(
        "goes backward in the order of forward",
        "The gradient of a unit's output comes from the unit behind it. So the last unit goes "
        "backward first.",
        hint=2,
        outcome=Outcome.CRASHED,
        seen=lambda s: "got y_gradient of shape" in s.error,
        made_by=patch("zip(reversed(units), reversed(inputs))", "zip(units, inputs)"),
    ),
    Mistake(
        "gathers too many units in advance",
        "More than one unit was gathered before its use. One is enough to hide the gather behind "
        "the unit in use.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "advance",
        made_by=patch(
            "    for unit in units:\n",
            "    gathered = [group.all_gather(unit.shard) for unit in units]\n"
            "    for unit in units:\n",
            "unit.forward(group.all_gather(unit.shard)[",
            "unit.forward(gathered.pop(0)[",
        ),
    ),
    Mistake(
        "keeps the weights from forward to backward",
        "Weights were gathered for forward and kept for backward. That is the memory of ZeRO-2. "
        "Release them after forward, and gather them again.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "kept",
        made_by=patch(
            "        x = unit.forward(group.all_gather(unit.shard)[: unit.numel], x)",
            "        inputs[-1] = (x, group.all_gather(unit.shard)[: unit.numel])\n"
            "        x = unit.forward(inputs[-1][1], x)",
            "for unit, x in zip",
            "for unit, (x, weights) in zip",
            "        weights = group.all_gather(unit.shard)[: unit.numel]\n",
            "",
        ),
    ),
    Mistake(
        "does not release what was used",
        "Weights or whole gradients of units that were used before are still in memory. A list, a "
        "name or a view refers to them.",
        hint=3,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "released",
        made_by=patch(
            "inputs = []",
            "inputs, gathered = [], []",
            "(group.all_gather(unit.shard)[: unit.numel], x)",
            "(gathered.append(group.all_gather(unit.shard)) or gathered[-1][: unit.numel], x)",
        ),
    ),
    Mistake(
        "keeps whole gradients",
        "More than two whole gradients waited for the end of their reduction. Reduce-scatter each "
        "gradient right after the unit's backward, and keep only the gradient of the shard.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "gradients",
        made_by=patch(
            'shard_gradients.append(group.reduce_scatter(pad(whole, padding), op="mean"))',
            "shard_gradients.append(pad(whole, padding))",
            "return shard_gradients[::-1]",
            'return [group.reduce_scatter(x, op="mean") for x in shard_gradients[::-1]]',
        ),
    ),
    Mistake(
        "all-reduces the gradients",
        "An all_reduce gives whole gradients to all ranks, and each rank keeps one nth. A "
        "reduce_scatter is the half of it that is needed.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "all-reduce",
        made_by=patch(
            'group.reduce_scatter(pad(whole, padding), op="mean")',
            'group.all_reduce(pad(whole, padding), op="mean")'
            ".tensor_split(group.size)[group.rank].clone()",
        ),
    ),
]

GRADER = OnRanks(
    name="zero3_unit",
    cases=cases,
    right=right,
    call=call,
    budget=budget,
    same=within(TOLERANCE),
    mistakes=MISTAKES,
    allowed=("all_gather", "reduce_scatter", "all_reduce"),
    closed=("labkit.zero",),
    num_arguments=4,
    watch_memory=True,
    world_sizes=(3, 2, 1),
    shown="each rank has the mean gradients of its shards; whenever a unit was used, two units' "
    "weights at most were in memory, and a step sent three times (n-1)/n of the parameters",
)
