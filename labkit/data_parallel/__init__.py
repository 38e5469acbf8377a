"""Data parallelism: every rank has the whole model, and computes on its share of the batch.

Read in this order. Each class adds one idea to the one before:

    naive.py        NaiveDDP         equal modules on all ranks; one all-reduce per parameter
    bucketed.py     BucketedDDP      one all-reduce for many parameters
    overlapped.py   OverlappedDDP    all-reduces start while backward computes

Beside them:

    ddp.py          DDP              OverlappedDDP with accumulation, parameters that are left out,
                                     and buckets in the order of arrival (ddp.py)
    reduction.py    `all_reduce=`    start(x, group) -> handle: a function, compression/,
                                     background.py on a background.py,
                                     symmetric_buckets.py
    replica.py, replica.py            what is checked about a module; hooks that end with their owner
    local_sgd.py, parameter_server/  strategies that do without an all-reduce in each step
    train_dp.py                      the serial training loop on many ranks
"""

from labkit.data_parallel.background import InBackground
from labkit.data_parallel.bucketed import BucketedDDP
from labkit.data_parallel.ddp import DDP
from labkit.data_parallel.naive import NaiveDDP
from labkit.data_parallel.overlapped import OverlappedDDP
from labkit.data_parallel.reduction import AllReduce, library_all_reduce
from labkit.data_parallel.symmetric_buckets import SymmetricBuckets
from labkit.data_parallel.train_dp import train, train_step

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
