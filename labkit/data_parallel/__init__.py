"""Data parallelism: every rank has the whole model, and computes on its share of the batch.

Read in this order. Each rung adds one idea to the one before:

    plain.py        start here       the idea: one all-reduce per gradient
    naive.py        NaiveDDP         a wrapped module, and checks that replicas stay equal
    bucketed.py     BucketedDDP      one all-reduce for many parameters
    overlapped.py   OverlappedDDP    all-reduces start while backward computes
    ddp.py          DDP              accumulation, parameters that are left out, and buckets in the
                                     order of arrival; the serial training loop on many ranks

Beside them:

    replica.py             Replica, the base class of all wrappers: checks, hooks, buffers
    reduction.py           the interface Reduction, and many tensors as one message. A wrapper's
                           `all_reduce=` takes a function (x, group), or one of these Reductions:
    compression.py           error feedback, one bit, top-k, PowerSGD
    background.py            on the group's communication thread
    symmetric_buckets.py     in shared memory
    unequal_shares.py      shares of the batch in proportion to measured speed
    local_sgd.py           steps without an all-reduce
    parameter_server.py    one rank has the parameters

examples/one_file/ddp.py is DDP in plain torch.distributed, without labkit.
"""

from labkit.data_parallel.background import BackgroundAllReduce
from labkit.data_parallel.bucketed import BucketedDDP
from labkit.data_parallel.ddp import DDP, train, train_step
from labkit.data_parallel.naive import NaiveDDP
from labkit.data_parallel.overlapped import OverlappedDDP
from labkit.data_parallel.reduction import AllReduce, library_all_reduce
from labkit.data_parallel.symmetric_buckets import SymmetricBuckets

__all__ = [
    "DDP",
    "AllReduce",
    "BucketedDDP",
    "BackgroundAllReduce",
    "NaiveDDP",
    "OverlappedDDP",
    "SymmetricBuckets",
    "library_all_reduce",
    "train",
    "train_step",
]
