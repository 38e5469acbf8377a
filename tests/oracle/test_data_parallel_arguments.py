"""Data parallelism refuses bad arguments on every rank, before anything is sent."""

import pytest
import torch
from torch import nn

from labkit import RankError, run
from labkit.collectives import ring_all_reduce
from labkit.data_parallel import DDP, BackgroundAllReduce, BucketedDDP, NaiveDDP
from labkit.data_parallel.compression import TopK
from labkit.data_parallel.local_sgd import LocalSGD, OuterOptimizer
from tests.refused import assert_refused

RUNGS = [NaiveDDP, BucketedDDP, DDP]


def layer():
    return nn.Linear(2, 1)


def test_wrong_arguments_of_a_wrapper_are_refused():
    assert_refused(
        *(
            (lambda w, wrap=wrap: wrap(None, w), TypeError, "module=None: give a module")
            for wrap in (*RUNGS, LocalSGD)
        ),
        *((lambda w, wrap=wrap: wrap(layer(), w, "ring"), TypeError, "'ring'") for wrap in RUNGS),
        *(
            (
                lambda w, wrap=wrap: wrap(layer(), w, TopK),
                TypeError,
                "TopK is a class; give an instance",
            )
            for wrap in RUNGS
        ),
        *(
            (
                lambda w, wrap=wrap: wrap(layer(), w, bucket_bytes=0),
                ValueError,
                r"bucket_bytes=0: .*25 \* 2\*\*20 is usual",
            )
            for wrap in RUNGS[1:]
        ),
        (lambda w: BackgroundAllReduce(None, w), TypeError, "None"),
        (
            lambda w: BackgroundAllReduce(ring_all_reduce, "world"),
            TypeError,
            "group='world' is no Group",
        ),
        (lambda w: OuterOptimizer(learning_rate=-1), ValueError, "learning_rate=-1"),
        (lambda w: OuterOptimizer(momentum=1), ValueError, "momentum=1"),
    )


def test_parameters_in_another_memory_format_on_one_rank_are_found():
    def wraps(world):
        module = nn.Conv2d(3, 4, 3)
        if world.rank == 1:
            module.to(memory_format=torch.channels_last)
        DDP(module, world)

    with pytest.raises(RankError, match="rank 1 has .*strides.* differ from rank 0"):
        run(wraps, 2)


@pytest.mark.parametrize("wrap", RUNGS)
def test_a_sparse_gradient_is_refused_and_the_error_says_what_to_do(wrap):
    def passes(world):
        model = wrap(nn.Embedding(4, 2, sparse=True), world)
        model(torch.tensor([1])).sum().backward()
        model.reduce_gradients()

    with pytest.raises(RankError, match="gradient of weight is sparse.* sparse=False to the emb"):
        run(passes, 2)
