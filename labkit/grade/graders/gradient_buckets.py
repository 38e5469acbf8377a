"""Grade gradient_buckets: which gradients share a bucket; then means, one all-reduce per bucket."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.grade.grader import (
    ByRank,
    Case,
    Draw,
    InParts,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    Questions,
    close,
    patch,
)

Buckets = list[list[int]]


def questions(draw: Draw) -> list[Case]:
    """Sizes: mixed, buckets that are exactly full, gradients larger than a bucket, one, none."""
    rng = draw.rng
    large, exact = rng.randrange(30, 60), rng.randrange(2, 9)
    plain = [3, 9, 11, 2, 14, 1, 7, 2]
    drawn = [[rng.randrange(1, 16) for _ in range(rng.randrange(5, 30))] for _ in range(6)]
    asked = [
        (plain, 4, 64),
        ([exact, 10 - exact, 5, 5, 12, exact, 10 - exact], 4, 40),
        *((numels, 4, 80) for numels in ([*plain, large], [large, *plain], [large, large])),
        ([*plain[:3], large, *plain[3:]], 4, 80),
        ([7], 2, 64),
        ([], 4, 64),
        *((numels, rng.choice((2, 4, 8)), rng.choice((64, 80, 96))) for numels in drawn),
    ]
    return [Case(f"gradient_buckets{each}", *each) for each in asked]


def cut(order: Iterable[int], fit: Callable[[list[int]], bool]) -> Buckets:
    """Cut an order into buckets, each with as many of the next indices as fit, at least one."""
    rest, buckets = list(order), []
    while rest:
        count = max(k for k in range(1, len(rest) + 1) if k == 1 or fit(rest[:k]))
        buckets.append(rest[:count])
        rest = rest[count:]
    return buckets


def right(numels: Sequence[int], itemsize: int, most: int) -> Buckets:
    """Buckets filled from the last gradient to the first."""
    return cut(range(len(numels))[::-1], lambda b: sum(numels[i] for i in b) * itemsize <= most)


def forward(numels: Sequence[int], itemsize: int, most: int) -> Buckets:
    """Buckets filled from the first gradient to the last."""
    return cut(range(len(numels)), lambda b: sum(numels[i] for i in b) * itemsize <= most)


def past_large(numels: Sequence[int], itemsize: int, most: int) -> Buckets:
    """A gradient larger than a bucket gets its own at once, and the open bucket stays open."""
    small = [i for i in range(len(numels))[::-1] if numels[i] * itemsize <= most]
    buckets = cut(small, lambda b: sum(numels[i] for i in b) * itemsize <= most)
    closed_at = [bucket[0] for bucket in buckets[1:]] + [-1]
    large = [(i, [i]) for i in range(len(numels)) if i not in small]
    return [bucket for _, bucket in sorted([*zip(closed_at, buckets), *large], reverse=True)]


def first_fit(numels: Sequence[int], itemsize: int, most: int) -> Buckets:
    """Each gradient goes into the first bucket that has room for it."""
    buckets: Buckets = []
    for i in range(len(numels))[::-1]:
        room = (b for b in buckets if sum(numels[j] for j in [*b, i]) * itemsize <= most)
        bucket = next(room, None)
        if bucket is None:
            buckets.append(bucket := [])
        bucket.append(i)
    return buckets


BOUNDS = [
    Mistake(
        "loses the last bucket",
        "The loop stores a bucket when the next gradient does not fit. After the last bucket comes "
        "no gradient: store it after the loop.",
        hint=3,
        formula=lambda *args: right(*args)[:-1],
        made_by=patch("return buckets", "return buckets[:-1]"),
    ),
    Mistake(
        "fills the buckets in forward order",
        "Backward finishes the last layer's gradients first, so they go into the first bucket. "
        "Filling from the front and reversing afterwards makes other buckets.",
        formula=[
            forward,
            lambda *args: forward(*args)[::-1],
            lambda *args: [bucket[::-1] for bucket in forward(*args)[::-1]],
        ],
        made_by=patch("in reversed(range(len(numels)))", "in range(len(numels))"),
    ),
    Mistake(
        "counts indices from the end",
        "The bounds are right, but index 0 stands for the last gradient, as enumerate counts in "
        "reversed(numels). Loop over reversed(range(len(numels))).",
        hint=3,
        formula=lambda numels, *args: [
            [len(numels) - 1 - i for i in bucket] for bucket in right(numels, *args)
        ],
        made_by=patch("append(index)", "append(len(numels) - 1 - index)"),
    ),
    Mistake(
        "sorts the indices of a bucket",
        "The bounds are right. Indices are in the order in which the gradients were put in, the "
        "last gradient first.",
        hint=3,
        formula=lambda *args: [sorted(bucket) for bucket in right(*args)],
        made_by=patch("return buckets", "return [sorted(bucket) for bucket in buckets]"),
    ),
    Mistake(
        "closes a bucket that would be exactly full",
        "A gradient that fills the bucket to its last byte fits.",
        hint=3,
        formula=lambda numels, itemsize, most: right(numels, itemsize, most - 1),
        made_by=patch("filled_bytes + nbytes > bucket", "filled_bytes + nbytes >= bucket"),
    ),
    Mistake(
        "makes an empty bucket",
        "If the first gradient is larger than a bucket, the open bucket is still empty. Do not "
        "close it: an all-reduce of nothing costs its latency.",
        hint=3,
        formula=[
            lambda numels, itemsize, most: (
                [[]] * (sum(numels[-1:]) * itemsize > most) + right(numels, itemsize, most)
            ),
            lambda numels, itemsize, most: (
                [[]] * (sum(numels[-1:]) * itemsize > most) + right(numels, itemsize, most) or [[]]
            ),
        ],
        made_by=patch(
            "buckets: list[list[int]] = []", "buckets: list[list[int]] = [[]] if numels else []"
        ),
    ),
    Mistake(
        "fills a bucket beyond its size",
        "Close the bucket before a gradient that does not fit. (DDP in torch closes a bucket after "
        "it has reached its size; here it holds at most bucket_bytes.)",
        formula=lambda numels, itemsize, most: cut(
            range(len(numels))[::-1], lambda b: sum(numels[i] for i in b[:-1]) * itemsize < most
        ),
        made_by=patch("filled_bytes + nbytes > bucket", "filled_bytes >= bucket"),
    ),
    Mistake(
        "counts elements instead of bytes",
        "A gradient has numel * itemsize bytes. Without itemsize, a bucket of float32 gradients "
        "becomes four times too large.",
        hint=3,
        formula=lambda numels, itemsize, most: right(numels, 1, most),
        made_by=patch("numels[index] * itemsize", "numels[index]"),
    ),
    Mistake(
        "puts a gradient into a closed bucket",
        "A gradient that does not fit closes the open bucket, also if it is larger than a bucket, "
        "and nothing goes into a closed one. Otherwise earlier gradients wait for later ones.",
        hint=2,
        formula=[past_large, first_fit],
        made_by=patch(
            "buckets: list[list[int]] = []",
            "buckets = [[]]",
            "if not buckets or filled_bytes",
            "if nbytes > bucket_bytes:\n            buckets.insert(-1, [index])\n"
            "        elif filled_bytes",
            "        buckets[-1].append(index)\n        filled_bytes += nbytes",
            "        if nbytes <= bucket_bytes:\n            buckets[-1].append(index)\n"
            "            filled_bytes += nbytes",
            "return buckets",
            "return [bucket for bucket in buckets if bucket]",
        ),
    ),
]


def cases(n: int, draw: Draw) -> list[Case]:
    """Several buckets, one bucket, another dtype; matrices are transposed, so not contiguous."""
    return [
        Case("9 float32 gradients, buckets of 80 bytes", gradients(n, draw, torch.float32), 80),
        Case("9 float64 gradients in one bucket", gradients(n, draw, torch.float64), 10_000),
        Case("9 bfloat16 gradients, buckets of 40 bytes", gradients(n, draw, torch.bfloat16), 40),
    ]


def gradients(n: int, draw: Draw, dtype: torch.dtype) -> ByRank:
    """Make a list of gradients for each rank; multiples of n, so that their means are exact."""
    shapes = [(), (3,), (3, 2), (9, 4), (2,), (2, 5), (4, 3), (7,), (6,)]
    drawn = [draw(*shape, dtype=dtype) for shape in shapes]
    return ByRank([n * xs[rank].t() for xs in drawn] for rank in range(n))


def call(watch: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return what is in the gradients' own memory afterwards; `x.data = ...` does not move it."""
    memory = [gradient.view_as(gradient) for gradient in args[0]]
    watch.function(*args, watch.group)
    return memory


def mean(given: ByRank, bucket_bytes: int) -> list[Tensor]:
    """The mean over the ranks of each gradient."""
    return [sum(xs[1:], xs[0]) / len(given) for xs in zip(*given)]


def buckets_of(s: Observed) -> Buckets:
    """The right buckets of a case."""
    xs = s.right[0]
    return right([x.numel() for x in xs], xs[0].element_size(), s.args[1])


def all_reduces(s: Observed) -> str:
    """How rank 0's all-reduces differ from the buckets; empty where they do not."""
    expected = [sum(s.right[0][i].nbytes for i in bucket) for bucket in buckets_of(s)]
    got = [e.nbytes for e in s.operations(0)]
    if got == expected or (s.n == 1 and not got):
        return ""
    if sorted(got) == sorted(x.nbytes for x in s.right[0]):
        return "one per gradient"
    return "other order" if sorted(got) == sorted(expected) else "other sizes"


def wrong(s: Observed) -> list[tuple[int, int]]:
    """(rank, index) of every gradient that is not the mean."""
    return [
        (rank, i)
        for rank in range(s.n)
        for i, x in enumerate(s.right[rank])
        if not close(s.ys[rank][i], x)
    ]


def is_own(s: Observed) -> bool:
    """Whether all wrong gradients are what they were before the call."""
    return all(close(s.ys[rank][i], s.xs[rank][i]) for rank, i in wrong(s))


def is_moved(s: Observed) -> bool:
    """Whether each bucket has the right numbers, in wrong places."""
    return all(
        torch.equal(*(torch.cat([x[i].flatten() for i in b]).sort()[0] for x in (y, s.right[0])))
        for y in s.ys
        for b in buckets_of(s)
    )


BUCKETS = "gradient_buckets(numels, gradients[0].element_size(), bucket_bytes)"
REDUCTION = [
    Mistake(
        "the means do not reach the gradients",
        "torch.cat copies, so the reduced tensor is a copy. Copy its parts back into the memory of "
        "the gradients with copy_. Assigning to gradients[index] or to .data does not do that.",
        hint=3,
        seen=lambda s: is_own(s) and len({i for _, i in wrong(s)}) == len(s.xs[0]),
        made_by=patch("gradients[index].copy_(", "gradients[index].data = ("),
    ),
    Mistake(
        "writes into a copy of a gradient",
        "The gradients that are not contiguous are unchanged: their flatten() or reshape(-1) is a "
        "copy. Bring the reduced part to the gradient's shape, and copy_ it into the gradient.",
        hint=3,
        seen=lambda s: is_own(s) and not any(s.xs[r][i].is_contiguous() for r, i in wrong(s)),
        made_by=patch(
            "gradients[index].copy_(part.view_as(gradients[index]))",
            "gradients[index].reshape(-1).copy_(part)",
        ),
    ),
    Mistake(
        "crashes where a gradient is not contiguous",
        "view(-1) needs elements that lie in memory in their order. flatten() and reshape(-1) work "
        "for a transposed gradient too.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: "view" in s.error and not all(x.is_contiguous() for x in s.xs[0]),
        made_by=patch("gradients[index].flatten()", "gradients[index].view(-1)"),
    ),
    Mistake(
        "puts the means into wrong places",
        "The parts lie in the flat tensor in the order of the bucket's indices, each with its own "
        "numel, and row by row. Take them out in the same order.",
        hint=2,
        seen=is_moved,
        made_by=patch(
            "part.view_as(gradients[index])", "part.view(gradients[index].t().shape).t()"
        ),
    ),
    Mistake(
        "sums instead of averaging",
        "Each gradient is replaced by its mean over the ranks. The sum is n times as large.",
        seen=lambda s: s.is_answer([[x * s.n for x in each] for each in s.right]),
        made_by=patch('op="mean", ', ""),
    ),
    Mistake(
        "one all-reduce for every gradient",
        "Each gradient travels alone and costs its latency. Put a bucket's gradients into one flat "
        "tensor, and reduce that.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: all_reduces(s) == "one per gradient",
        made_by=patch(BUCKETS, "[[i] for i in range(len(numels))]"),
    ),
    Mistake(
        "reduces the buckets in another order",
        "Backward finishes the first bucket first, so its all-reduce is the first one.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: all_reduces(s) == "other order",
        made_by=patch(BUCKETS, f"{BUCKETS}[::-1]"),
    ),
    Mistake(
        "all-reduces other tensors than the buckets",
        "Make one all-reduce per bucket of gradient_buckets, with the bytes of its gradients. One "
        "large all-reduce could start only when backward has ended.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: all_reduces(s) == "other sizes",
        made_by=patch(BUCKETS, "[list(range(len(numels)))]"),
    ),
]

GRADER = InParts(
    "gradient_buckets",
    (
        Questions(
            name="gradient_buckets",
            cases=questions,
            right=right,
            mistakes=BOUNDS,
            closed=("labkit.data_parallel",),
            shown="the buckets hold what they should, to the byte",
        ),
        OnRanks(
            name="gradient_buckets",
            functions=("reduce_buckets",),
            cases=cases,
            right=mean,
            call=call,
            mistakes=REDUCTION,
            allowed=("all_reduce",),
            closed=("labkit.data_parallel",),
            keeps_arguments=False,
            new_result=False,
            shown="each bucket is one all-reduce, which leaves the means in the gradients",
        ),
    ),
)
