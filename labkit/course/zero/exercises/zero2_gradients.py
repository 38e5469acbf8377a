"""Grade zero2_gradients: shards of the mean gradient, memory of two buckets, bytes sent."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from labkit.grade import grader as g

NUM_LAYERS = 6
Layers = list[list[Any]]


def loss(layers: Layers, microbatch: Tensor) -> Tensor:
    """Return the mean squared error of a stack of layers that are far larger than activations."""
    x, y = microbatch
    for weight, scale in layers:
        x = torch.tanh(linear(x, weight)) * scale
    return ((x - y) ** 2).mean()


def buckets_of(layers: Layers) -> Layers:
    """Return a bucket per layer, the last layer first. Every second one begins with the scale."""
    return [each[::-1] if i % 2 else each for i, each in enumerate(reversed(layers))]


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Return cases with one microbatch and with several. 2 and 3 do not divide width² + 1."""
    width, double = draw.rng.randrange(70, 78, 2), torch.float64
    layers = [
        [draw.same(width, width, dtype=double) / width**0.5, draw.same(dtype=double)]
        for _ in range(NUM_LAYERS)
    ]

    def case(k: int) -> g.Case:
        by_rank = g.ByRank(map(list, draw.normal(k, 2, 1, width, dtype=double)))
        return g.Case(f"{NUM_LAYERS} buckets, microbatches: {k}", layers, by_rank)

    # Dividing by the number of microbatches must differ from dividing by the number of ranks.
    return [case(1), case(2 if n == 3 else 3)]


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the shards that a rank returns, and what it leaves in the parameters."""
    layers = [[nn.Parameter(x) for x in layer] for layer in args[0]]
    shards = watch.function(
        buckets_of(layers), lambda batch: loss(layers, batch), args[1], watch.group
    )
    parameters = sum(layers, [])
    hooks = [(each._post_accumulate_grad_hooks, each._backward_hooks) for each in parameters]
    return {
        "gradients left": sum(each.grad is not None for each in parameters),
        "hooks left": sum(len(each or ()) for each in sum(hooks, ())),
        "frozen": sum(not each.requires_grad for each in parameters),
        "shards": shards,
    }


def right(layers: Layers, by_rank: g.ByRank) -> g.ByRank:
    """Compute the gradients in one process, with all microbatches of all ranks in one batch."""
    n, left = len(by_rank), dict.fromkeys(("gradients left", "hooks left", "frozen"), 0)
    layers = [[x.clone().requires_grad_() for x in layer] for layer in layers]
    loss(layers, torch.cat(sum(by_rank, []), dim=1)).backward()
    flat = [torch.cat([x.grad.flatten() for x in each]) for each in buckets_of(layers)]
    shards = zip(*(pad(x, (0, -x.numel() % n)).tensor_split(n) for x in flat))
    return g.ByRank({**left, "shards": list(each)} for each in shards)


def bucket_bytes(s: g.Observed) -> int:
    """Return the bytes of one padded bucket; all have the same size."""
    return s.n * s.right[0]["shards"][0].nbytes


def budget(s: g.Observed) -> g.Budget:
    """Allow all shards, two buckets, two more shards and activations; one reduce_scatter each."""
    if s.n == 1:
        return g.Budget()
    sent = len(s.args[1][0]) * NUM_LAYERS * (s.n - 1) / s.n * bucket_bytes(s)
    num_buckets = NUM_LAYERS / s.n + 2 + 2 / s.n + 0.35
    return g.Budget(sent_bytes=sent, peak_bytes=num_buckets * bucket_bytes(s))


def all_reduces(s: g.Observed) -> bool:
    """Return whether several ranks use all_reduce."""
    return s.n > 1 and bool(s.operations(0, "all_reduce"))


def buckets_too_many(s: g.Observed) -> float:
    """Return by how many buckets peak memory exceeds the budget; 0 if all_reduce is used."""
    if s.n == 1 or all_reduces(s):
        return 0
    peak = max(rank.peak_bytes for rank in s.ranks)
    return (peak - budget(s).peak_bytes) / bucket_bytes(s)


FREE, BACKWARD = "        parameter.grad = None\n", " / len(microbatches)).backward()\n"
KEEP, FREE_ALL = (FREE, "        pass\n"), "for each in bucket_of: each.grad = None\n"
MEAN, RETURN = ', op="mean")', "    return [shards[i]"
MISTAKES = [
    g.Mistake(
        "does not divide once by ranks and once by microbatches",
        'Divide once by the number of ranks, which op="mean" does. And divide once by the number '
        "of microbatches: each loss is a mean, and the gradients of several are added up.",
        [g.patch(MEAN, ")"), g.patch(" / len(microbatches)", "")],
        hint=3,
    ),
    g.Mistake(
        "does not count each microbatch once",
        "Add the shard of each microbatch to the sum of those before: gradients are freed, so "
        "backward has nothing to add to. The next backward adds to a gradient that is not freed, "
        "and earlier microbatches are reduced again.",
        [
            g.patch("shards[i].add_(shard) if i in shards else shard", "shard"),
            g.patch(*KEEP, RETURN, f"    {FREE_ALL}{RETURN}"),
        ],
        hint=2,
    ),
    g.Mistake(
        "puts the numbers in the order of arrival",
        "All numbers are right, in the wrong places. Within a bucket the order is that of its "
        "list, in whatever order gradients arrive.",
        # The gradient of the scale, one number, arrives first.
        g.patch("for parameter in bucket])", "for parameter in sorted(bucket, key=torch.numel)])"),
        hint=2,
    ),
    g.Mistake(
        "leaves gradients or hooks",
        "Set .grad to None: zeros take memory as well. A hook that is left runs in the next step.",
        [
            g.patch(FREE, "        parameter.grad.zero_()\n"),
            g.patch("            hook.remove()", "            pass"),
        ],
        hint=3,
    ),
    g.Mistake(
        "holds the gradients of several buckets",
        "Memory grows with each bucket, as in ZeRO-1. Reduce a bucket in the hook of the gradient "
        "that completes it, in every microbatch, and set .grad to None there, for all of the "
        "bucket. Add up shards, and keep no list of flat tensors.",
        g.patch(*KEEP, BACKWARD, f"{BACKWARD}            {FREE_ALL}"),
        over_budget=lambda s: buckets_too_many(s) > 1,
    ),
    g.Mistake(
        "holds a third bucket, or shards twice",
        "Two are allowed: the gradients of one bucket and one flat tensor. A padded copy is a "
        "third. So is the bucket before, held by a name or by a collective under way. Shards exist "
        "once: divide them in place, and add those of the next microbatch to them at once.",
        g.patch(
            "flat = torch.cat([parameter.grad.flatten() for parameter in bucket])",
            "joined = torch.cat([parameter.grad.flatten() for parameter in bucket])\n"
            "    flat = pad(joined, (0, -joined.numel() % num_ranks))",
        ),
        over_budget=lambda s: 0 < buckets_too_many(s) <= 1,
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
        over_budget=all_reduces,
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
