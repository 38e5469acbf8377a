"""The rule by which gradients share buckets, and the rules that are mistaken for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Buckets = list[list[int]]


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of one call of gradient_buckets."""

    numels: tuple[int, ...]
    itemsize: int
    bucket_bytes: int

    def nbytes(self, indices: Sequence[int]) -> int:
        """Of these gradients together."""
        return sum(self.numels[index] for index in indices) * self.itemsize


def right(asked: Asked) -> Buckets:
    """From the last gradient to the first, each into the open bucket or else into a new one."""
    return _filled(asked, range(len(asked.numels) - 1, -1, -1))


def _filled(asked: Asked, order: Sequence[int], *, room_bytes: int = 0) -> Buckets:
    """In this order; a bucket may hold `room_bytes` more than its size."""
    buckets: Buckets = []
    for index in order:
        if not buckets or asked.nbytes([*buckets[-1], index]) > asked.bucket_bytes + room_bytes:
            buckets.append([])
        buckets[-1].append(index)
    return buckets


@dataclass(frozen=True)
class Rule:
    """A mistake, and the buckets that come of it."""

    name: str
    explanation: str
    buckets: Callable[[Asked], Buckets]


def _closed_when_reached(asked: Asked) -> Buckets:
    buckets: Buckets = []
    for index in reversed(range(len(asked.numels))):
        if not buckets or asked.nbytes(buckets[-1]) >= asked.bucket_bytes:
            buckets.append([])
        buckets[-1].append(index)
    return buckets


def _first_fit(asked: Asked) -> Buckets:
    buckets: Buckets = []
    for index in reversed(range(len(asked.numels))):
        fits = (b for b in buckets if asked.nbytes([*b, index]) <= asked.bucket_bytes)
        bucket = next(fits, None)
        if bucket is None:
            buckets.append([index])
        else:
            bucket.append(index)
    return buckets


def _with_empty_ones(asked: Asked) -> Buckets:
    """A bucket is closed before one that does not fit, even if nothing is in it."""
    last = len(asked.numels) - 1
    is_large = last >= 0 and asked.nbytes([last]) > asked.bucket_bytes
    return [[], *right(asked)] if is_large else right(asked)


def _without_large_ones(asked: Asked) -> Buckets:
    fits = [i for i in range(len(asked.numels)) if asked.nbytes([i]) <= asked.bucket_bytes]
    return _filled(asked, fits[::-1])


RULES = (
    Rule(
        "the last bucket is never flushed",
        "a bucket is handed over when the next gradient does not fit, and the last one has no next "
        "gradient: what is in it at the end of the loop is lost, and its parameters are not "
        "averaged",
        lambda asked: right(asked)[:-1],
    ),
    Rule(
        "buckets in forward order",
        "backward finishes the last layer first, so its gradients go into the first bucket: with "
        "the first layer in there, nothing could be sent before backward is through",
        lambda asked: _filled(asked, range(len(asked.numels))),
    ),
    Rule(
        "buckets of forward order, turned around",
        "the buckets are filled from the first gradient, and then reversed. The bounds are others "
        "than when they are filled from the last",
        lambda asked: [b[::-1] for b in reversed(_filled(asked, range(len(asked.numels))))],
    ),
    Rule(
        "buckets of forward order, turned around",
        "the buckets are filled from the first gradient, and then reversed. The bounds are others "
        "than when they are filled from the last",
        lambda asked: _filled(asked, range(len(asked.numels)))[::-1],
    ),
    Rule(
        "indices count from the end",
        "the bounds are right, but index 0 stands for the last gradient. reversed(numels) turns "
        "the numbers around and enumerate counts from 0: go over reversed(range(len(numels)))",
        lambda asked: [[len(asked.numels) - 1 - i for i in bucket] for bucket in right(asked)],
    ),
    Rule(
        "closes a bucket that would be exactly full",
        "a gradient that fills the bucket to its last byte fits: it is too much only if it is more "
        "than bucket_bytes",
        lambda asked: _filled(
            asked, range(len(asked.numels) - 1, -1, -1), room_bytes=-asked.itemsize
        ),
    ),
    Rule(
        "an empty bucket",
        "where the first gradient to go in is larger than a bucket, a bucket with nothing in it is "
        "closed before it: an all-reduce of nothing, which costs its latency",
        _with_empty_ones,
    ),
    Rule(
        "fills a bucket beyond its size",
        "a bucket is closed when it has reached its size, so that the last gradient in it may "
        "stick out by nearly its own length. (torch's DDP does that. Here a bucket holds at most "
        "bucket_bytes, such as a buffer that is there already)",
        _closed_when_reached,
    ),
    Rule(
        "counts numbers instead of bytes",
        "the size of a gradient is its numel times itemsize: without that, buckets of float32 are "
        "four times too large",
        lambda asked: right(Asked(asked.numels, 1, asked.bucket_bytes)),
    ),
    Rule(
        "goes back to buckets that were closed",
        "a gradient goes into the open bucket or into a new one. One that was closed may be under "
        "way already; and its all-reduce would wait for a gradient that backward finishes later",
        _first_fit,
    ),
    Rule(
        "leaves out what is larger than a bucket",
        "a gradient that does not fit into any bucket has one to itself",
        _without_large_ones,
    ),
    Rule(
        "a bucket for every gradient",
        "that is as many messages as without buckets",
        lambda asked: [[index] for index in reversed(range(len(asked.numels)))],
    ),
    Rule(
        "everything in one bucket",
        "the bucket is full only when backward is through, so that nothing can be sent meanwhile",
        lambda asked: [list(reversed(range(len(asked.numels))))] if asked.numels else [],
    ),
    Rule(
        "the order within a bucket is turned around",
        "the bounds are right, but indices ascend within a bucket: gradients lie in it in the "
        "order in which they go in, the last one first",
        lambda asked: [sorted(bucket) for bucket in right(asked)],
    ),
)
