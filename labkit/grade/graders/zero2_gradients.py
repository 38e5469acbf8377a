"""Grade zero2_gradients: shards of the mean gradient, memory of two buckets, bytes sent."""

import functools

import torch
from torch import Tensor, nn
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

NUM_LAYERS = 6
LEAVES = ("weight", "bias", "scale")
TOLERANCE = 2.0**16
SMALL = 0.35  # of a bucket: activations, and their gradients


def loss(layers, microbatch) -> Tensor:
    """Squared errors of a stack of layers, which use far more memory than its activations."""
    x, y = microbatch
    for layer in layers:
        x = torch.tanh(linear(x, layer["weight"], layer["bias"])) * layer["scale"]
    return ((x - y) ** 2).mean()


def buckets_of(layers, order) -> list[list[Tensor]]:
    """A bucket per layer, the last layer first."""
    return [[layer[leaf] for leaf in order] for layer in reversed(layers)]


def cases(n: int, draw: Draw) -> list[Case]:
    """One microbatch and several; no n divides a bucket."""
    width = draw.rng.choice((71, 72, 74, 75))
    float64 = {"dtype": torch.float64}

    def layer() -> dict[str, Tensor]:
        return {
            "weight": draw.same(width, width, **float64) / width**0.5,
            "bias": draw.same(width, **float64),
            "scale": draw.same(**float64),
        }

    def case(k: int) -> Case:
        ours = [[(x[:1], x[1:]) for x in draw.normal(k, 2, width, **float64)[0]] for _ in range(n)]
        layers = [layer() for _ in range(NUM_LAYERS)]
        what = f"{NUM_LAYERS} buckets, {k} microbatch{'es' * (k > 1)}"
        return Case(what, layers, draw.rng.sample(LEAVES, 3), ByRank(ours))

    # Dividing by the number of microbatches must differ from dividing by the number of ranks.
    return [case(1), case(draw.rng.choice([k for k in (2, 3) if k != n]))]


def call(watch, args) -> dict[str, object] | None:
    """The shards that a rank returns, and what it leaves in the parameters."""
    layers = [{leaf: nn.Parameter(x) for leaf, x in layer.items()} for layer in args[0]]
    buckets = buckets_of(layers, args[1])
    parameters = [parameter for bucket in buckets for parameter in bucket]

    def on_gradient(_: Tensor) -> None:
        watch.note("gradient")

    for each in parameters:
        each.register_post_accumulate_grad_hook(on_gradient)
    shards = watch.function(buckets, lambda batch: loss(layers, batch), args[2], watch.group)
    if shards is None:
        return None
    return {
        "shards": shards,
        "parameters with a gradient": sum(each.grad is not None for each in parameters),
        "hooks left": sum(len(each._post_accumulate_grad_hooks) - 1 for each in parameters)
        + sum(len(each._backward_hooks or ()) for each in parameters),
        "frozen parameters": sum(not each.requires_grad for each in parameters),
    }


def gradient(layers, order, microbatches) -> list[Tensor]:
    """The gradient of the mean loss over microbatches, as one flat tensor per bucket."""
    layers = [{leaf: x.clone().requires_grad_() for leaf, x in each.items()} for each in layers]
    buckets = buckets_of(layers, order)
    loss(layers, [torch.cat(each) for each in zip(*microbatches, strict=True)]).backward()
    return [torch.cat([x.grad.flatten() for x in bucket]) for bucket in buckets]


def shards(flat: list[Tensor], n: int, rank: int) -> list[Tensor]:
    """A rank's shard of each bucket."""
    return [pad(x, (0, -x.numel() % n)).tensor_split(n)[rank] for x in flat]


def right(layers, order, by_rank: ByRank) -> ByRank:
    """One process, with all microbatches of all ranks in one batch."""
    mean, n = gradient(layers, order, [each for ours in by_rank for each in ours]), len(by_rank)
    nothing = {"parameters with a gradient": 0, "hooks left": 0, "frozen parameters": 0}
    return ByRank({"shards": shards(mean, n, rank), **nothing} for rank in range(n))


def num_microbatches(s: Observed) -> int:
    """Of one rank."""
    return len(s.args[2][0])


def sizes(s: Observed) -> tuple[int, int]:
    """Bytes of one padded bucket, and of a rank's shards; all buckets have the same size."""
    k = s.right[0]["shards"][0].numel()
    return s.n * k * 8, NUM_LAYERS * k * 8


def budget(s: Observed) -> Budget:
    """Shards, two buckets and small tensors; a reduce_scatter per bucket and microbatch."""
    if s.n == 1:
        return Budget()
    bucket, ours = sizes(s)
    sent = num_microbatches(s) * NUM_LAYERS * (s.n - 1) / s.n * bucket
    return Budget(sent_bytes=sent, peak_bytes=ours + (2 + 2 / s.n + SMALL) * bucket)


@functools.cache
def gradients(s: Observed) -> list[list[list[Tensor]]]:
    """By microbatch and rank."""
    return [
        [gradient(*s.args[:2], [ours[i]]) for ours in s.args[2]] for i in range(num_microbatches(s))
    ]


def has_shards(s: Observed, shards_of) -> bool:
    """Whether each rank r has shards_of(r)."""
    return all(close(y["shards"], shards_of(r), steps=TOLERANCE) for r, y in enumerate(s.ys))


def is_times(s: Observed, factor: float) -> bool:
    """Whether the shards are the right ones, times a factor."""
    return factor != 1 and has_shards(s, lambda r: [x * factor for x in s.right[r]["shards"]])


def is_weighted(s: Observed, weight) -> bool:
    """Whether microbatch i counts weight(i) times, with or without the division by k."""
    k = num_microbatches(s)
    flat = [
        sum(weight(i) * x[bucket] for i, xs in enumerate(gradients(s)) for x in xs) / s.n
        for bucket in range(NUM_LAYERS)
    ]
    return any(has_shards(s, lambda r, f=f: shards([x / f for x in flat], s.n, r)) for f in (k, 1))


def all_numbers(ranks) -> Tensor:
    """The numbers in all shards of all ranks, sorted."""
    return torch.cat([x for its in ranks for x in its["shards"]]).sort().values


def excess(s: Observed) -> str:
    """Why a rank has more in memory than the budget, or sends more; empty where none does."""
    if s.sent_bytes(0) > (budget(s).sent_bytes or 0) + 1 and s.operations(0, "all_reduce"):
        return "all-reduce"
    rank = max(range(s.n), key=lambda r: s.ranks[r].peak_bytes)
    seen, bucket = s.ranks[rank], sizes(s)[0]
    needed_bytes = num_microbatches(s) * NUM_LAYERS * bucket
    notes = [e.what for e in seen.events if e.is_note or e.what in GRADER.allowed]
    # The first collective comes after one backward, or after several, and not inside of one.
    if s.n > 1 and notes.index("reduce_scatter") % (NUM_LAYERS * len(LEAVES)) == 0:
        return "backward"
    if s.n > 1 and s.payload_bytes(rank) < 0.75 * needed_bytes:
        return "microbatches"
    if s.n == 1 or seen.peak_bytes <= budget(s).peak_bytes:
        return ""
    return "copies" if seen.peak_bytes <= budget(s).peak_bytes + bucket else "kept"


MISTAKES = [
    Mistake(
        "sums over the ranks instead of averaging",
        'The shards are n times the mean, and n is the number of ranks. op="mean" divides by it.',
        hint=3,
        seen=lambda s: is_times(s, s.n),
        made_by=patch(', op="mean")', ")"),
    ),
    Mistake(
        "forgets to divide by the number of microbatches",
        "The shards are as many times too large as there are microbatches. Each loss is a mean, "
        "and you add up the gradients of several: divide by their number.",
        hint=3,
        seen=lambda s: is_times(s, num_microbatches(s)),
        made_by=patch("(loss_fn(microbatch) / len(microbatches))", "loss_fn(microbatch)"),
    ),
    Mistake(
        "divides twice",
        'Divide once by the number of ranks, which op="mean" does, and once by the number of '
        "microbatches.",
        hint=3,
        seen=lambda s: is_times(s, 1 / s.n) or is_times(s, 1 / num_microbatches(s)),
        made_by=patch("return [shards[i] for", "return [shards[i] / group.size for"),
    ),
    Mistake(
        "only one microbatch is in the shards",
        "Add the shard of each microbatch to the sum of those before: gradients are freed, so "
        "backward has nothing to add to. Count arrivals anew in each microbatch.",
        hint=2,
        seen=lambda s: any(
            is_weighted(s, lambda i, j=j: i == j) for j in range(num_microbatches(s))
        ),
        made_by=patch("shards[i].add_(shard) if i in shards else shard", "shard"),
    ),
    Mistake(
        "reduces earlier microbatches again",
        "The first microbatch is in the shards several times. Its .grad was still there, backward "
        "added to it, and the sum was reduced. Set .grad to None when it is in the flat tensor.",
        hint=2,
        seen=lambda s: is_weighted(s, lambda i: num_microbatches(s) - i),
        made_by=patch(
            "parameter.grad = None",
            "pass",
            "            hook.remove()",
            "            hook.remove()\n        for parameter in bucket_of:\n"
            "            parameter.grad = None",
        ),
    ),
    Mistake(
        "drops the remainder",
        "The last numel % n numbers of a bucket are in no shard. A shard has ceil(numel / n) "
        "numbers: add zeros at the end.",
        hint=3,
        seen=lambda s: all(
            x.numel() == sum(leaf.numel() for leaf in s.xs[0].values()) // s.n
            for x in s.y["shards"]
        ),
        made_by=patch(
            "pad(flat, (0, -flat.numel() % num_ranks))",
            "flat[: flat.numel() // num_ranks * num_ranks]",
        ),
    ),
    Mistake(
        "puts the numbers in another order",
        "All numbers are right, in the wrong places. The order is that of the buckets, and within "
        "a bucket that of its list, in whatever order gradients arrive. Rank r has shard r.",
        hint=2,
        seen=lambda s: (
            close(all_numbers(s.ys), all_numbers(s.right), steps=TOLERANCE)
            and not has_shards(s, lambda r: s.right[r]["shards"])
        ),
        made_by=patch("for parameter in bucket])", "for parameter in reversed(bucket)])"),
    ),
    Mistake(
        "leaves gradients in the parameters",
        "A parameter still has a gradient when the function returns. It takes memory, and the next "
        "backward pass would add to it. Set .grad to None.",
        hint=3,
        seen=lambda s: (
            has_shards(s, lambda r: s.right[r]["shards"])
            and any(y["parameters with a gradient"] for y in s.ys)
        ),
        made_by=patch(
            "        parameter.grad = None\n",
            "        pass\n",
            "        for microbatch in microbatches:\n",
            "        for microbatch in microbatches:\n"
            "            for parameter in bucket_of:\n                parameter.grad = None\n",
        ),
    ),
    Mistake(
        "leaves its hooks behind",
        "In the next step the old hooks would run beside the new ones. Remove each of your hooks.",
        hint=3,
        seen=lambda s: (
            has_shards(s, lambda r: s.right[r]["shards"]) and any(y["hooks left"] > 0 for y in s.ys)
        ),
        made_by=patch("hook.remove()", "pass"),
    ),
    Mistake(
        "takes a gradient that has not arrived",
        "A .grad of the bucket is None. Within a bucket gradients arrive in any order. The last of "
        "the list need not be the last to arrive: count them.",
        hint=2,
        outcome=Outcome.CRASHED,
        seen=lambda s: "None" in s.error,
        made_by=patch("num_arrived[i] == len(buckets[i])", "parameter is buckets[i][0]"),
    ),
    Mistake(
        "adds up microbatches before it reduces",
        "Gradients of several microbatches were added up on each rank. So all gradients were in "
        "memory, as in ZeRO-1. Reduce each microbatch, and add up the shards.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "microbatches",
        made_by=patch(
            "num_arrived[i] == len(buckets[i])",
            "num_arrived[i] == len(buckets[i]) * len(microbatches)",
        ),
    ),
    Mistake(
        "reduces only after backward",
        "The first collective began after the last gradient, so all gradients were in memory. "
        "Reduce a bucket in the hook of the gradient that completes it.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "backward",
        made_by=patch(
            "register_post_accumulate_grad_hook(on_gradient)",
            "register_post_accumulate_grad_hook(lambda _: None)",
            "microbatches)).backward()",
            "microbatches)).backward()\n            for each in bucket_of:\n"
            "                on_gradient(each)",
        ),
    ),
    Mistake(
        "has three buckets in memory at once",
        "Two are allowed: the gradients of one bucket and one flat tensor. The gradients, a "
        "concatenated copy and a padded copy are three. So are these two beside the bucket before, "
        "held by a name or by a collective under way. Shards exist once: divide them in place.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "copies",
        made_by=patch(
            "flat = torch.cat([parameter.grad.flatten() for parameter in bucket])",
            "joined = torch.cat([parameter.grad.flatten() for parameter in bucket])\n"
            "    flat = pad(joined, (0, -joined.numel() % num_ranks))",
            "return pad(flat, (0, -flat.numel() % num_ranks))",
            "return flat",
        ),
    ),
    Mistake(
        "keeps gradients that are reduced already",
        "Memory grows with each bucket that was reduced. Set .grad to None in the hook, for all of "
        "the bucket, and keep no list of flat tensors.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "kept",
        made_by=patch(
            "        parameter.grad = None\n",
            "        pass\n",
            "microbatches)).backward()",
            "microbatches)).backward()\n            for each in bucket_of:\n"
            "                each.grad = None",
        ),
    ),
    Mistake(
        "all-reduces the buckets",
        "An all_reduce gives every rank all means, and each rank drops all but one nth of them. A "
        "reduce_scatter is the half of it that is needed.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: excess(s) == "all-reduce",
        made_by=patch(
            "group.reduce_scatter(_take",
            "group.all_reduce(_take",
            'group.size), op="mean")',
            'group.size), op="mean").tensor_split(group.size)[group.rank].clone()',
        ),
    ),
]

GRADER = OnRanks(
    name="zero2_gradients",
    cases=cases,
    right=right,
    call=call,
    budget=budget,
    same=within(TOLERANCE),
    mistakes=MISTAKES,
    allowed=("all_reduce", "reduce_scatter"),
    closed=("labkit.zero",),
    num_arguments=4,
    watch_memory=True,
    world_sizes=(3, 2, 1),
    shown="each rank has its shards of the mean over all microbatches of all ranks; two buckets of "
    "gradients were in memory at most, and each bucket was sent once per microbatch",
)
