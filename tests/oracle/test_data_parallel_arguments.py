"""What data parallelism cannot work with is refused on every rank, before anything is sent."""

import math

import pytest
import torch
from torch import nn

from labkit import RankError, run
from labkit.collectives import ring_all_reduce
from labkit.data_parallel import DDP, BucketedDDP, InBackground, NaiveDDP, train
from labkit.data_parallel.compression import OneBit, PowerSGD, TopK
from labkit.data_parallel.local_sgd import LocalSGD, Outer
from labkit.data_parallel.local_sgd import train as train_locally
from labkit.model import GPTConfig
from labkit.train import TrainConfig

RUNGS = {"naive": NaiveDDP, "bucketed": BucketedDDP, "overlapped": DDP}
SIZES = [math.nan, math.inf, "25MB", 0, -1, 2.5, True, None]


def refusals(world, calls):
    """What each call says."""
    said = []
    for call in calls:
        try:
            call(world)
            said.append("")
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def refused_by_all(*calls):
    """The words of each refusal: the same on both ranks, and nothing is sent."""
    result = run(refusals, 2, (calls,))
    assert result.values[0] == result.values[1]
    assert [timeline.operations for timeline in result.timeline] == [[], []]
    return result.values[0]


@pytest.mark.parametrize("rung", ["bucketed", "overlapped"])
def test_a_size_of_buckets_is_a_whole_number_of_bytes(rung):
    wrap = RUNGS[rung]
    calls = [lambda world, n=n: wrap(nn.Linear(2, 1), world, bucket_bytes=n) for n in SIZES]
    for value, said in zip(SIZES, refused_by_all(*calls), strict=True):
        assert f"bucket_bytes={value!r}: " in said
        assert "25 * 2**20 is usual" in said


@pytest.mark.parametrize("rung", RUNGS)
def test_an_all_reduce_is_a_function_or_a_compressor(rung):
    wrap = RUNGS[rung]
    values = ["ring", None, 3, TopK]
    calls = [lambda world, x=x: wrap(nn.Linear(2, 1), world, x) for x in values]
    name, none, number, unmade = refused_by_all(*calls)
    assert "all_reduce='ring': give a function (x, group)" in name
    assert "all_reduce=None: give a function (x, group)" in none
    assert "labkit.collectives.ring_all_reduce" in number
    assert "all_reduce=TopK is a class; give one that is made, such as TopK(0.01)" in unmade


def test_without_parameters_an_all_reduce_is_asked_for_too():
    said = refused_by_all(
        *(lambda world, wrap=wrap: wrap(nn.ReLU(), world, 1) for wrap in RUNGS.values())
    )
    assert all("all_reduce=1: give a function" in each for each in said)


@pytest.mark.parametrize("rung", [*RUNGS, "local"])
def test_what_is_wrapped_is_a_module(rung):
    wrap = {**RUNGS, "local": LocalSGD}[rung]
    for said in refused_by_all(*(lambda world, x=x: wrap(x, world) for x in (None, "gpt"))):
        assert "give a module that is not wrapped yet" in said


def test_what_goes_to_the_background_is_an_all_reduce_and_its_group_a_group():
    none, name, group = refused_by_all(
        lambda world: InBackground(None, world),
        lambda world: InBackground("ring"),
        lambda world: InBackground(ring_all_reduce, "world"),
    )
    assert "all_reduce=None: give a function" in none
    assert "all_reduce='ring': give a function" in name
    assert "group='world' is no Group" in group


@pytest.mark.parametrize("value", ["1%", 0, 1.5, math.nan, -0.1, True, None])
def test_top_k_keeps_a_part_of_the_entries(value):
    with pytest.raises((TypeError, ValueError), match=f"ratio={value!r}: .*such as 0.01"):
        TopK(value)


@pytest.mark.parametrize("value", [math.nan, 1.5, 0, "2", True, None])
def test_a_rank_of_matrices_is_whole(value):
    with pytest.raises((TypeError, ValueError), match=f"rank={value!r}: .*; 2 is usual"):
        PowerSGD(value)


def test_complex_gradients_have_no_signs_to_send():
    def wraps(world):
        DDP(nn.Linear(2, 2, dtype=torch.complex64), world, OneBit())

    (said,) = refused_by_all(wraps)
    assert "bucket 0: bias to weight has gradients of torch.complex64" in said
    assert "take TopK or PowerSGD" in said


@pytest.mark.parametrize("make", [lambda: TopK(0.3), lambda: PowerSGD(1)])
def test_complex_gradients_arrive_late_and_do_arrive(make):
    def distance_after_some_steps(world):
        torch.manual_seed(0)
        compressed = DDP(nn.Linear(12, 9, dtype=torch.complex128), world, make())
        plain = DDP(nn.Linear(12, 9, dtype=torch.complex128), world)
        plain.module.load_state_dict(compressed.module.state_dict())
        distance = torch.zeros_like(plain.buckets[0].flat)
        for step in range(10):
            generator = torch.Generator().manual_seed(10 * step + world.rank)
            x = torch.randn(4, 12, dtype=torch.complex128, generator=generator)
            for model in (compressed, plain):
                model.module.zero_grad()
                (model(x).abs() ** 2).mean().backward()
            distance += plain.buckets[0].flat - compressed.buckets[0].flat
        owed = world.all_reduce(compressed._reductions[0].owed)
        return distance.abs().max().item(), (distance - owed).abs().max().item()

    for left_out, forgotten in run(distance_after_some_steps, 2).values:
        assert left_out > 1e-3
        assert forgotten < 1e-12


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, "x", True, None])
def test_an_outer_step_has_a_rate_and_a_momentum(value):
    with pytest.raises((TypeError, ValueError), match=f"learning_rate={value!r}: "):
        Outer(learning_rate=value)
    with pytest.raises((TypeError, ValueError), match=f"momentum={value!r}: "):
        Outer(momentum=value)


def test_local_sgd_is_told_its_outer_step_and_its_inner_ones():
    config, settings = GPTConfig(), TrainConfig(num_steps=4)
    *outer, steps = refused_by_all(
        lambda world: LocalSGD(nn.Linear(2, 1), world, outer=None),
        lambda world: LocalSGD(nn.Linear(2, 1), world, outer=0.7),
        lambda world: train_locally(world, config, settings, outer=None),
        lambda world: train_locally(world, config, settings, inner_steps="4"),
    )
    assert all("give an outer step, such as Outer(learning_rate=0.7" in each for each in outer)
    assert "inner_steps='4': give a whole number" in steps


def test_training_is_told_its_strategy():
    (said,) = refused_by_all(
        lambda world: train(world, GPTConfig(), TrainConfig(num_steps=1), strategy="naive")
    )
    assert "strategy='naive': give NaiveDDP" in said


def test_parameters_in_another_memory_format_on_one_rank_are_found():
    def wraps(world):
        module = nn.Conv2d(3, 4, 3)
        if world.rank == 1:
            module.to(memory_format=torch.channels_last)
        DDP(module, world)

    with pytest.raises(RankError, match="rank 1 has .*strides.* differ from rank 0"):
        run(wraps, 2)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_sparse_gradient_is_refused_with_its_cure(rung):
    def passes(world):
        model = RUNGS[rung](nn.Embedding(4, 2, sparse=True), world)
        model(torch.tensor([1])).sum().backward()
        model.reduce_gradients()

    with pytest.raises(RankError, match="gradient of weight is sparse.* sparse=False to the emb"):
        run(passes, 2)
