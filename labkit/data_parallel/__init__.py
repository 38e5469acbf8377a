"""Data parallelism: every rank has the whole model, and computes on its share of the batch.

The ladder: NaiveDDP -> BucketedDDP -> OverlappedDDP, which DDP names.
"""

from labkit.data_parallel.background import InBackground
from labkit.data_parallel.bucketed import BucketedDDP
from labkit.data_parallel.naive import NaiveDDP
from labkit.data_parallel.overlapped import DDP, OverlappedDDP
from labkit.data_parallel.reduction import AllReduce, library_all_reduce
from labkit.data_parallel.symmetric_buckets import SymmetricBuckets
from labkit.data_parallel.training import train, train_step

__all__ = [
    "DDP",
    "AllReduce",
    "BucketedDDP",
    "InBackground",
    "NaiveDDP",
    "OverlappedDDP",
    "SymmetricBuckets",
    "library_all_reduce",
    "train",
    "train_step",
]
