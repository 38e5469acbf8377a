"""Small formulas: the slowest rank, and what an expert's buffer takes; units of both."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit import calc
from labkit.calc.reliability import asynchronous_samples_per_s, synchronous_samples_per_s
from labkit.moe.routing import expert_capacity as capacity_of_the_layer
from labkit.moe.routing import within_capacity

TIMES = [0.4, 0.4, 0.5, 0.8]


def test_all_wait_for_the_slowest_and_some_for_fewer():
    assert synchronous_samples_per_s(TIMES, 32) == 4 * 32 / 0.8
    assert synchronous_samples_per_s(TIMES, 32, wait_for=3) == 3 * 32 / 0.5
    assert synchronous_samples_per_s(TIMES, 32, wait_for=1) == 32 / 0.4
    assert float(asynchronous_samples_per_s(TIMES, 32)) == pytest.approx(80 + 80 + 64 + 40)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=9), st.integers(1, 64))
def test_nobody_is_faster_than_who_never_waits(times, batch):
    ahead = float(asynchronous_samples_per_s(times, batch)) * (1 + 1e-9)
    for wait_for in range(1, len(times) + 1):
        assert float(synchronous_samples_per_s(times, batch, wait_for)) <= ahead


@pytest.mark.parametrize(
    ("times", "wait_for", "match"),
    [([], None, "is empty"), ([0.0], None, "takes time"), ([1.0], 2, "wait_for=2 of 1 ranks")],
)
def test_ranks_that_cannot_be_are_refused(times, wait_for, match):
    with pytest.raises(ValueError, match=match):
        synchronous_samples_per_s(times, 8, wait_for)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(1, 50))
def test_as_many_are_dropped_as_the_layer_drops(loads, capacity):
    experts = torch.repeat_interleave(torch.arange(len(loads)), torch.tensor(loads))
    kept = within_capacity(experts.unsqueeze(1), len(loads), capacity)
    assert calc.dropped_choices(loads, capacity) == int((~kept).sum())


@given(
    st.integers(1, 5000),
    st.integers(1, 128),
    st.integers(1, 8),
    st.sampled_from((0.5, 1.0, 1.1, 1.25, 2)),
)
def test_a_capacity_is_the_layers(tokens, experts, k, factor):
    k = min(k, experts)  # the layer has no token go to more experts than there are
    assert calc.expert_capacity(tokens, experts, k, factor) == capacity_of_the_layer(
        tokens, experts, k, factor
    )


def test_capacities_and_loads_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="a buffer of no rows"):
        calc.expert_capacity(100, 8, 2, 0)
    with pytest.raises(ValueError, match="loads=-1"):
        calc.dropped_choices([3, -1], 2)


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("3.1e23 FLOP", 3.1e23, "FLOP"),
        ("400 TFLOP/s", 4e14, "FLOP/s"),
        ("1.5 EFLOP", 1.5e18, "FLOP"),
        ("7 billion", 7e9, ""),
        ("2 trillion", 2e12, ""),
        ("20 hours", 72_000, "seconds"),
        ("8 microbatches", 8, ""),
        ("1,000 GPUs", 1000, ""),
        ("1000 TFLOPs", 1e15, "FLOP"),
        ("989 TFLOPS", 989e12, "FLOP/s"),
        ("400 Gbps", 50e9, "bytes/s"),
        ("16 GBytes", 16e9, "bytes"),
        ("3 msec", 0.003, "seconds"),
        ("2 weeks", 1_209_600, "seconds"),
        ("3 hops", 3, ""),
    ],
)
def test_operations_and_large_counts_are_read(text, value, dimension):
    assert calc.units.parse_quantity(text) == pytest.approx((value, dimension))


def test_counts_are_read_as_people_write_them():
    read = calc.units.read_count
    assert [read("15T"), read("1.5e12"), read("2048"), read("8k")] == [15e12, 1.5e12, 2048, 8000]
    assert read("8k", k=1024) == 8192
    with pytest.raises(ValueError, match="many"):
        read("many")


def test_numbers_in_another_unit_are_refused():
    setup = calc.TrainingSetup(model="llama3-8b", dp=8)
    wrong = {
        "capacity=80": lambda: calc.changes_that_fit(setup, 80),
        "num_params=405": lambda: calc.training_days(15.6e12, 405, 16384, 400e12),
        "active_parameters": lambda: calc.training_days(
            14.8e12, calc.num_parameters("deepseek-v3"), 2048, 400e12
        ),
    }
    for named, call in wrong.items():
        with pytest.raises(ValueError, match=named):
            call()
    calc.training_days(14.8e12, calc.active_parameters("deepseek-v3"), 2048, 400e12)
    assert calc.collective("all_reduce", "ring", 8, calc.amount("1 GiB")).nbytes == 2**30


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [(3.143e23, "FLOP", "314 ZFLOP"), (4e14, "FLOP/s", "400 TFLOP/s"), (5e9, "bytes/s", "5 GB/s")],
)
def test_operations_are_written(value, dimension, text):
    assert calc.units.quantity_text(value, dimension) == text
