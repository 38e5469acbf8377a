"""Grade zero2_gradients: shards of the mean gradient, memory of two buckets, bytes sent."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from labkit.grade import grader as g

NUM_LAYERS = 6
LEAVES = ("weight", "bias", "scale")
Layers = list[dict[str, Tensor]]


def loss(layers: Layers, microbatch: tuple[Tensor, Tensor]) -> Tensor:
    """Squared errors of a stack of layers, which use far more memory than its activations."""
    x, y = microbatch
    for layer in layers:
        x = torch.tanh(linear(x, layer["weight"], layer["bias"])) * layer["scale"]
    return ((x - y) ** 2).mean()


def buckets_of(layers: Layers, order: list[str]) -> list[list[Tensor]]:
    """A bucket per layer, the last layer first."""
    return [[layer[leaf] for leaf in order] for layer in reversed(layers)]


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """One microbatch and several; no n divides a bucket."""
    width, double = draw.rng.choice((71, 72, 74, 75)), torch.float64

    def case(k: int) -> g.Case:
        drawn = draw.normal(k, 2, 1, width, dtype=double)
        microbatches = g.ByRank([tuple(pair) for pair in pairs] for pairs in drawn)
        layers = [
            {
                "weight": draw.same(width, width, dtype=double) / width**0.5,
                "bias": draw.same(width, dtype=double),
                "scale": draw.same(dtype=double),
            }
            for _ in range(NUM_LAYERS)
        ]
        label = f"{NUM_LAYERS} buckets, {k} microbatch{'es' * (k > 1)}"
        return g.Case(label, layers, draw.rng.sample(LEAVES, 3), microbatches)

    # Dividing by the number of microbatches must differ from dividing by the number of ranks.
    return [case(1), case(draw.rng.choice([k for k in (2, 3) if k != n]))]


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """The shards that a rank returns, and what it leaves in the parameters."""
    layers = [{leaf: nn.Parameter(x) for leaf, x in layer.items()} for layer in args[0]]
    buckets = buckets_of(layers, args[1])
    parameters = sum(buckets, [])
    for each in parameters:
        each.register_post_accumulate_grad_hook(lambda _: watch.note("gradient"))
    shards = watch.function(buckets, lambda batch: loss(layers, batch), args[2], watch.group)
    return {
        "shards": shards,
        "gradients left": any(each.grad is not None for each in parameters),
        "hooks left": any(
            len(each._post_accumulate_grad_hooks) > 1 or each._backward_hooks for each in parameters
        ),
        "frozen": not all(each.requires_grad for each in parameters),
    }


def right(layers: Layers, order: list[str], by_rank: g.ByRank) -> g.ByRank:
    """One process, with all microbatches of all ranks in one batch."""
    n, left = len(by_rank), dict.fromkeys(("gradients left", "hooks left", "frozen"), False)
    layers = [{leaf: x.clone().requires_grad_() for leaf, x in each.items()} for each in layers]
    loss(layers, tuple(map(torch.cat, zip(*sum(by_rank, []))))).backward()
    flat = [torch.cat([x.grad.flatten() for x in each]) for each in buckets_of(layers, order)]
    shards = zip(*(pad(x, (0, -x.numel() % n)).tensor_split(n) for x in flat))
    return g.ByRank({"shards": list(each), **left} for each in shards)


def bucket_bytes(s: g.Observed) -> int:
    """Bytes of one padded bucket; all have the same size."""
    return s.n * s.right[0]["shards"][0].nbytes


def budget(s: g.Observed) -> g.Budget:
    """Shards, two buckets, two shards and activations; a reduce_scatter for each bucket."""
    if s.n == 1:
        return g.Budget()
    sent = len(s.args[2][0]) * NUM_LAYERS * (s.n - 1) / s.n * bucket_bytes(s)
    num_buckets = NUM_LAYERS / s.n + 2 + 2 / s.n + 0.35
    return g.Budget(sent_bytes=sent, peak_bytes=num_buckets * bucket_bytes(s))


def excess(s: g.Observed) -> str:
    """What a rank has too much of, or does too late; empty where it keeps to the budget."""
    if s.n == 1:
        return ""
    if s.sent_bytes(0) > budget(s).sent_bytes + 1:
        return "all-reduce" if s.operations(0, "all_reduce") else ""
    peak = max(rank.peak_bytes for rank in s.ranks) - budget(s).peak_bytes
    if peak <= 0:
        return ""
    what = [e.what for e in s.ranks[0].events if e.what in ("gradient", "reduce_scatter")]
    if what.index("reduce_scatter") >= NUM_LAYERS * len(LEAVES):
        return "late"
    return "copies" if peak <= bucket_bytes(s) else "kept"


SHARD = "shards[i].add_(shard) if i in shards else shard"
PER_K, MEAN = " / len(microbatches)", ', op="mean")'
FREE, REMOVE = "        parameter.grad = None\n", "            hook.remove()\n"
FOR, BACKWARD = "        for microbatch in microbatches:\n", f"{PER_K}).backward()\n"
FREE_ALL = "[setattr(each, 'grad', None) for each in bucket_of]\n"
MISTAKES = [
    g.Mistake(
        "does not divide once by ranks and once by microbatches",
        'Divide once by the number of ranks, which op="mean" does. And divide once by the number '
        "of microbatches: each loss is a mean, and the gradients of several are added up.",
        [
            g.patch(MEAN, ")"),
            g.patch(PER_K, ""),
        ],
        hint=3,
    ),
    g.Mistake(
        "does not count each microbatch once",
        "Add the shard of each microbatch to the sum of those before: gradients are freed, so "
        "backward has nothing to add to. And set .grad to None when it is in the flat tensor: "
        "otherwise backward adds to it, and earlier microbatches are reduced again. Count arrivals "
        "anew in each microbatch.",
        [
            g.patch(SHARD, "shard"),
            g.patch(FREE, "        pass\n", REMOVE, f"{REMOVE}        {FREE_ALL}"),
        ],
        hint=2,
    ),
    g.Mistake(
        "puts the numbers in another order",
        "All numbers are right, in the wrong places. The order is that of the buckets, and within "
        "a bucket that of its list, in whatever order gradients arrive. Rank r has shard r.",
        [
            g.patch("for i in range(len(buckets))]", "for i in reversed(range(len(buckets)))]"),
            g.patch(  # in the order of arrival
                "num_arrived[i] += 1\n",
                "num_arrived[i] += 1\n        arrived.append(parameter)\n",
                "_take_gradients(buckets[i], ",
                "_take_gradients([arrived.pop(0) for _ in buckets[i]], ",
                "    bucket_of = {",
                "    arrived = []\n    bucket_of = {",
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "takes a gradient that has not arrived",
        "A .grad of the bucket is None. Within a bucket gradients arrive in any order. The last of "
        "the list need not be the last to arrive: count them.",
        g.patch("num_arrived[i] == len(buckets[i])", "parameter is buckets[i][0]"),
        crashed=lambda s: "'NoneType' object has no attribute" in s.error,
        hint=2,
    ),
    g.Mistake(
        "holds all gradients until backward has ended",
        "The first collective began after the last gradient, or microbatches were added up before "
        "they were reduced. So all gradients were in memory, as in ZeRO-1. Reduce a bucket in the "
        "hook of the gradient that completes it, and add up the shards.",
        [
            g.patch(
                "num_arrived[i] == len(buckets[i])",
                "num_arrived[i] == len(buckets[i]) * len(microbatches)",
            ),
        ],
        over_budget=lambda s: excess(s) == "late",
    ),
    g.Mistake(
        "has three buckets in memory at once",
        "Two are allowed: the gradients of one bucket and one flat tensor. The gradients, a "
        "concatenated copy and a padded copy are three. So are these two beside the bucket before, "
        "held by a name or by a collective under way. Shards exist once: divide them in place.",
        g.patch(
            "flat = torch.cat([parameter.grad.flatten() for parameter in bucket])",
            "joined = torch.cat([parameter.grad.flatten() for parameter in bucket])\n"
            "    flat = pad(joined, (0, -joined.numel() % num_ranks))",
        ),
        over_budget=lambda s: excess(s) == "copies",
        hint=2,
    ),
    g.Mistake(
        "keeps gradients that are reduced already",
        "Memory grows with each bucket that was reduced. Set .grad to None in the hook, for all of "
        "the bucket, and keep no list of flat tensors.",
        g.patch(FREE, "        pass\n", BACKWARD, f"{BACKWARD}            {FREE_ALL}"),
        over_budget=lambda s: excess(s) == "kept",
        hint=2,
    ),
    g.Mistake(
        "all-reduces the buckets",
        "An all_reduce gives every rank all means, and each rank drops all but one nth of them. A "
        "reduce_scatter is the half of it that is needed.",
        g.patch(
            "group.reduce_scatter(_take",
            "group.all_reduce(_take",
            MEAN,
            f"{MEAN}.tensor_split(group.size)[group.rank].clone()",
        ),
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
    allowed=("all_reduce", "reduce_scatter"),
    closed=("labkit.zero",),
    watch_memory=True,
    world_sizes=(3, 2, 1),
    shown="each rank has its shards of the mean over all microbatches of all ranks; two buckets of "
    "gradients were in memory at most, and each bucket was sent once per microbatch",
)
