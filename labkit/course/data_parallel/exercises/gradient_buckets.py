"""Grade gradient_buckets: which gradients share a bucket; then means, one all-reduce per bucket."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g


def questions(draw: g.Draw) -> list[g.Case]:
    """Sizes: mixed, buckets that are exactly full, gradients larger than a bucket, one, none."""
    rng = draw.rng
    large, exact = rng.randrange(30, 60), rng.randrange(2, 9)
    plain = [3, 9, 11, 2, 14, 1, 7, 2]
    drawn = [[rng.randrange(1, 16) for _ in range(rng.randrange(5, 30))] for _ in range(6)]
    asked = [
        (plain, 4, 64),
        ([exact, 10 - exact, 5, 5, 12, exact, 10 - exact], 4, 40),
        ([large, *plain, large, large, *plain], 4, 80),
        ([*plain, large], 4, 80),
        ([7], 2, 64),
        ([], 4, 64),
        *((numels, rng.choice((2, 4, 8)), rng.choice((64, 80, 96))) for numels in drawn),
    ]
    return [g.Case(f"gradient_buckets{each}", *each) for each in asked]


def right(numels: Sequence[int], itemsize: int, most: int) -> list[list[int]]:
    """Return buckets of as many of the last gradients as fit, at least one, and so on."""
    if not numels:
        return []
    starts = range(len(numels) - 1)
    start = next((i for i in starts if sum(numels[i:]) * itemsize <= most), len(numels) - 1)
    bucket = list(reversed(range(start, len(numels))))
    return [bucket, *right(numels[:start], itemsize, most)]


END = "return buckets"
FITS_NOT = "filled_bytes + nbytes > bucket_bytes"
FORWARD = "reversed(range(len(numels)))", "range(len(numels))"
BOUNDS = [
    g.Mistake(
        "fills the buckets in forward order",
        "Backward finishes the last layer's gradients first, so they go into the first bucket. "
        "Filling from the front and reversing afterwards makes other buckets.",
        [g.patch(*FORWARD), g.patch(*FORWARD, END, f"{END}[::-1]")],
    ),
    g.Mistake(
        "closes a bucket too early or too late",
        "A gradient that fills the bucket to its last byte fits; a larger one does not. (DDP in "
        "torch closes a bucket after it has reached its size; here it holds at most bucket_bytes.)",
        g.patches(FITS_NOT, FITS_NOT.replace(">", ">="), "filled_bytes >= bucket_bytes"),
        hint=3,
    ),
    g.Mistake(
        "makes an empty bucket",
        "If the first gradient is larger than a bucket, the open bucket is still empty. Do not "
        "close it: an all-reduce of nothing costs its latency.",
        g.patch("buckets: list[list[int]] = []", "buckets = [[]] if numels else []"),
        hint=3,
    ),
    g.Mistake(
        "loses the last bucket",
        "The loop stores a bucket when the next gradient does not fit. After the last bucket comes "
        "no gradient: store it after the loop.",
        g.patch(END, f"{END}[:-1]"),
        hint=3,
    ),
    g.Mistake(
        "puts a gradient into a closed bucket",
        "A gradient that does not fit closes the open bucket, also one that is larger than any "
        "bucket, and nothing goes into a closed one, even if there is room. Otherwise earlier "
        "gradients wait for later ones.",
        [
            g.patch(  # the first bucket with room
                f"if not buckets or {FITS_NOT}:",
                "room = [b for b in buckets if nbytes <= bucket_bytes - itemsize * "
                "sum(numels[i] for i in b)]\n        if not room:",
                "buckets[-1].append(index)",
                "(room or buckets[-1:])[0].append(index)",
            ),
            g.patch(  # a large one goes first, and the open bucket stays open
                f"if not buckets or {FITS_NOT}:",
                "if nbytes > bucket_bytes:\n"
                "            buckets.insert(max(len(buckets) - 1, 0), [index])\n"
                "            continue\n"
                f"        if not buckets or {FITS_NOT}:",
            ),
        ],
        hint=2,
    ),
]


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Several buckets, one bucket, another dtype; matrices are transposed, so not contiguous."""
    shapes = [(), (3,), (3, 2), (9, 4), (2,), (2, 5), (4, 3), (7,), (6,)]
    listed = []
    for dtype, most in ((torch.float32, 80), (torch.float64, 10_000), (torch.bfloat16, 40)):
        drawn = [draw(*shape, dtype=dtype) for shape in shapes]
        gradients = g.ByRank([n * xs[rank].t() for xs in drawn] for rank in range(n))
        listed.append(g.Case(f"9 gradients, buckets of {most} bytes", gradients, most))
    return listed


def call(watch: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return what is in the gradients' own memory afterwards; `x.data = ...` does not move it."""
    memory = [gradient.view_as(gradient) for gradient in args[0]]
    watch.function(*args, watch.group)
    return memory


def means(gradients: g.ByRank, bucket_bytes: int) -> list[Tensor]:
    """Return the mean over the ranks of each gradient."""
    return [sum(xs) / len(gradients) for xs in zip(*gradients)]


def sends_buckets(s: g.Observed) -> bool:
    """Return whether rank 0's all-reduces are the buckets in order; one rank may leave them out."""
    xs, sent = s.right[0], [e.nbytes for e in s.operations(0)]
    buckets = right([x.numel() for x in xs], xs[0].element_size(), s.args[1])
    expected = [sum(xs[i].nbytes for i in bucket) for bucket in buckets]
    return sent == expected or (s.n == 1 and not sent)


COPY = "gradients[index].copy_(part.view_as(gradients[index]))"
REDUCTION = [
    g.Mistake(
        "the means do not reach the gradients",
        "torch.cat copies, and so does flatten() or reshape(-1) of a gradient that is not "
        "contiguous. Bring each part of the reduced tensor to its gradient's shape, and copy_ it "
        "into the gradient. Assigning to gradients[index] or to .data does not do that.",
        g.patches(COPY, "pass", "gradients[index].reshape(-1).copy_(part)"),
        hint=3,
    ),
    g.Mistake(
        "sums instead of averaging",
        "Each gradient is replaced by its mean over the ranks. The sum is n times as large.",
        g.patch('op="mean", ', ""),
        hint=3,
    ),
    g.Mistake(
        "all-reduces other tensors than the buckets",
        "Make one all-reduce per bucket of gradient_buckets, in the order of the buckets, with the "
        "bytes of its gradients and no padding. One per gradient costs the latency of each; one "
        "large all-reduce could start only when backward has ended.",
        g.patch(
            "in gradient_buckets(numels, gradients[0].element_size(), bucket_bytes):",
            "in [[index] for index in range(len(numels))]:",
        ),
        over_budget=lambda s: not sends_buckets(s),
    ),
]

GRADER = [
    g.Questions(
        cases=questions,
        right=right,
        mistakes=BOUNDS,
        closed=("labkit.data_parallel",),
        shown="the buckets hold what they should, to the byte",
    ),
    g.OnRanks(
        functions=("reduce_buckets",),
        cases=cases,
        right=means,
        call=call,
        mistakes=REDUCTION,
        allowed=("all_reduce",),
        closed=("labkit.data_parallel",),
        keeps_arguments=False,
        new_result=False,
        shown="each bucket is one all-reduce, which leaves the means in the gradients",
    ),
]
