"""Unequal shares of the batch, and unequal shards of the states: equal to the serial step."""

import gc
import random
import weakref
from itertools import product

import pytest
import torch
from torch import nn

from labkit import calc, run
from labkit.data_parallel import DDP, BucketedDDP
from labkit.data_parallel.unequal_shares import SpeedBalancer, shares_by_speed, train
from labkit.inject import SlowRank, faults
from labkit.model import GPTConfig
from labkit.optimizer import AdamW
from labkit.train import TrainConfig, train_serial
from labkit.zero.unequal_shards import shards_by_memory, unequal_zero1_step
from tests.serial_runs import one_thread  # noqa: F401

CONFIG = GPTConfig(context=16, num_layers=1, hidden=16, num_heads=2)
# SGD: AdamW hides a gradient that is too large by a factor.
SETTINGS = TrainConfig(
    num_sequences=7, num_steps=3, optimizer="sgd", learning_rate=0.1, dtype=torch.float64
)
SHARES = {1: [[7]], 2: [[6, 1], [0, 7]], 3: [[4, 0, 3]], 4: [[3, 0, 3, 1], [0, 0, 7, 0]]}
TOLERANCE = 1e-12
NUMEL, NUM_STEPS = 23, 3
SHARDS = {1: [23], 2: [23, 0], 3: [11, 1, 11], 4: [9, 0, 13, 1]}


class LocalAdamW:
    """AdamW with the states of one shard, as the plain rung of ZeRO-1 takes it."""

    def __init__(self, numel):
        self.shard = nn.Parameter(torch.zeros(numel, dtype=torch.float64))
        self.optimizer = AdamW([self.shard], 1e-2)

    def step(self, weights, gradients):
        self.shard.data.copy_(weights)
        self.shard.grad = gradients
        self.optimizer.step()
        weights.copy_(self.shard.data)


def gradient(step, rank):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(NUMEL, generator=generator, dtype=torch.float64)


def zero1_of_unequal_shards(world):
    shards = SHARDS[world.size]
    flat = torch.linspace(-1, 1, NUMEL, dtype=torch.float64)
    optimizer = LocalAdamW(shards[world.rank])
    for step in range(NUM_STEPS):
        unequal_zero1_step(flat, gradient(step, world.rank), optimizer, world, shards)
    return flat


def everything(world):
    given = [train(world, CONFIG, SETTINGS, shares=each)[0] for each in SHARES[world.size]]
    with faults(world, SlowRank(rank=0, share=3.0)):
        by_speed = [
            train(world, CONFIG, SETTINGS, strategy=rung, every=1) for rung in (DDP, BucketedDDP)
        ]
    return given, by_speed


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request):
    return run(everything, request.param).values


@pytest.fixture(scope="module")
def serial():
    return train_serial(CONFIG, SETTINGS)


def test_given_shares_zero_too_follow_the_serial_run(ranks, serial):
    for given, _ in ranks:
        for trained in given:
            assert trained.largest_difference(serial) < TOLERANCE
            assert trained.losses == pytest.approx(serial.losses, abs=TOLERANCE)


def test_shares_by_speed_follow_the_serial_run_whatever_they_are(ranks, serial):
    for _, by_speed in ranks:
        for trained, history in by_speed:
            assert trained.largest_difference(serial) < TOLERANCE
            assert all(sum(shares) == 7 and min(shares) >= 1 for shares in history)
    for rung in (0, 1):  # all ranks computed the same shares
        assert len({str(by_speed[rung][1]) for _, by_speed in ranks}) == 1


def balanced(world, row_s, **settings):
    model = DDP(nn.Linear(3, 2), world)
    balancer = SpeedBalancer(model, rows=16, **settings)
    at_first = balancer.shares
    balancer.balance(row_s[world.rank])
    return at_first, balancer.shares


def test_shares_change_by_the_measured_seconds_of_a_row_if_that_saves_enough():
    def both(world):
        much = balanced(world, [1.0, 1.0, 1.0, 3.0])
        little = balanced(world, [1.0, 1.0, 1.0, 1.3], gain=0.2)
        return much, little

    for much, little in run(both, 4).values:
        assert much == ([4, 4, 4, 4], [5, 5, 5, 1])
        assert little == ([4, 4, 4, 4], [4, 4, 4, 4])  # 5 rows for one saves 4%


def test_a_balancing_gathers_eight_bytes_and_nothing_else():
    def once(world):
        balanced(world, [1.0, 2.0])

    result = run(once, 2)
    gathered = result.traffic[0].by_operation["all_gather"]
    assert (gathered.count, gathered.payload_bytes) == (1, 8)


def test_the_model_is_freed_with_its_balancer():
    def freed(world):
        model = DDP(nn.Linear(3, 2), world)
        balancer = SpeedBalancer(model, rows=4)
        gone = weakref.ref(balancer)
        del balancer
        gc.collect()
        return gone() is None

    assert run(freed, 1).values == [True]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_unequal_shards_follow_the_serial_optimizer_and_send_what_calc_says(world_size):
    result = run(zero1_of_unequal_shards, world_size)
    whole = torch.linspace(-1, 1, NUMEL, dtype=torch.float64)
    optimizer = LocalAdamW(NUMEL)
    for step in range(NUM_STEPS):
        mean = sum(gradient(step, rank) for rank in range(world_size)) / world_size
        optimizer.step(whole, mean)
    for rank, flat in enumerate(result.values):
        assert torch.allclose(flat, whole, atol=TOLERANCE, rtol=0)
        predicted = calc.unequal_zero1_traffic_bytes(SHARDS[world_size], rank, itemsize=8)
        assert result.traffic[rank].sent_bytes == NUM_STEPS * float(predicted)


def test_no_other_shares_finish_earlier():
    draw = random.Random(0)
    for _ in range(60):
        speeds = [draw.choice([0, 1, 1.5, 2, 7]) for _ in range(draw.randint(1, 3))] + [1]
        rows, least = draw.randint(0, 7), 0

        def slowest(shares, speeds=speeds):
            return max(
                (s / v if v else (float("inf") if s else 0))
                for s, v in zip(shares, speeds, strict=True)
            )

        every = (s for s in product(range(rows + 1), repeat=len(speeds)) if sum(s) == rows)
        found = shares_by_speed(rows, speeds, least)
        assert sum(found) == rows
        assert slowest(found) == min(map(slowest, every))


def test_shards_follow_the_memory_and_never_exceed_it():
    draw = random.Random(0)
    for _ in range(200):
        free = [draw.randint(0, 200) for _ in range(draw.randint(1, 5))]
        room = [each // 12 for each in free]
        numel = draw.randint(0, sum(room))
        shards = shards_by_memory(numel, free, 12)
        assert sum(shards) == numel
        assert all(0 <= shard <= most for shard, most in zip(shards, room, strict=True))
    assert shards_by_memory(8, [480, 240, 240], 12) == [4, 2, 2]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: shares_by_speed(8, [1, -1]), r"speeds\[1\]=-1"),
        (lambda: shares_by_speed(8, [0, 0]), "speeds=.0, 0.: give one rank a speed above 0"),
        (lambda: shares_by_speed(3, [1, 1, 1, 1], least=1), "rows=3 are fewer than 1 on each of 4"),
        (lambda: shards_by_memory(9, [48, 48], 12), "hold the states of 8 numbers .* there are 9"),
        (lambda: calc.unequal_zero1_traffic_bytes([3, 4], 2), "rank=2"),
    ],
)
def test_impossible_shares_are_named(call, reason):
    with pytest.raises(ValueError, match=reason):
        call()
