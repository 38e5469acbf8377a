"""Compressed gradients: what is applied, what is owed, and what goes over the wire."""

import gc
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import Group, RankError, run
from labkit.data_parallel import DDP, NaiveDDP
from labkit.data_parallel.bucketed import make_buckets
from labkit.data_parallel.compression import OneBit, PowerSGD, TopK, packed, unpacked

WORLD_SIZE = 3
MAKERS = {
    "top-k": lambda **options: TopK(0.1, **options),
    "one bit": lambda **options: OneBit(**options),
    "power sgd": lambda **options: PowerSGD(1, **options),
}


def module() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 5), nn.Linear(5, 3))
    return made.double()


def backward(model: DDP, step: int) -> None:
    generator = torch.Generator().manual_seed(100 * step + model.group.rank)
    x = torch.randn(4, 12, dtype=torch.float64, generator=generator)
    model.module.zero_grad()
    (model(x) ** 2).mean().backward()


def applied_owed_and_true(world: Group, name: str, feedback: bool = True) -> list[tuple]:
    """By bucket, over 4 steps: the sum of what was applied, what is owed, and the true sum."""
    model = DDP(module(), world, MAKERS[name](error_feedback=feedback), bucket_bytes=400)
    plain = DDP(module(), world, bucket_bytes=400)
    applied = [torch.zeros_like(bucket.flat) for bucket in model.buckets]
    true = [torch.zeros_like(bucket.flat) for bucket in model.buckets]
    for step in range(4):
        backward(model, step)
        backward(plain, step)
        for number in range(len(model.buckets)):
            applied[number] += model.buckets[number].flat
            true[number] += plain.buckets[number].flat
    owed = [world.all_reduce(exchange.owed) for exchange in model._reductions]
    return list(zip(applied, owed, true, strict=True))


@pytest.fixture(scope="module", params=MAKERS)
def compressed(request):
    return run(applied_owed_and_true, WORLD_SIZE, args=(request.param,)).values


def test_applied_updates_and_residuals_add_up_to_all_gradients(compressed):
    assert len(compressed[0]) > 1, "several buckets"
    for applied, owed, true in compressed[0]:
        torch.testing.assert_close(applied + owed, true, rtol=1e-12, atol=1e-12)


def test_compression_leaves_out_part_of_the_gradients(compressed):
    assert any((owed.abs() > 1e-3).any() for _, owed, _ in compressed[0])


def test_applied_updates_are_the_same_bits_on_every_rank(compressed):
    for of_rank in compressed[1:]:
        for (applied, _, _), (first, _, _) in zip(of_rank, compressed[0], strict=True):
            assert torch.equal(applied, first)


@pytest.mark.parametrize("name", MAKERS)
def test_without_error_feedback_the_part_left_out_is_lost(name):
    values = run(applied_owed_and_true, 2, args=(name, False)).values
    assert all(not owed.any() for _, owed, _ in values[0])
    distance = max((applied - true).abs().max() for applied, _, true in values[0])
    assert distance > 1e-2


def exchanged(world: Group, compressor: object, numel: int) -> int:
    """One step over one vector of `numel`."""
    model = DDP(nn.Linear(numel, 1, bias=False), world, compressor)
    model(torch.ones(1, numel)).sum().backward()
    return numel


@pytest.mark.parametrize("numel", [8, 1000, 1003])
@pytest.mark.parametrize("world_size", [2, 3])
def test_one_bit_sends_a_bit_per_entry(world_size, numel):
    gathered = run(exchanged, world_size, args=(OneBit(), numel)).traffic[0]
    sent = (world_size - 1) * (math.ceil(numel / 8) + 4)
    assert gathered.by_operation["all_gather"].sent_bytes == sent


@pytest.mark.parametrize(("ratio", "k"), [(0.01, 11), (1e-9, 1), (1.0, 1003)])
def test_top_k_sends_an_index_and_a_value_per_entry(ratio, k):
    gathered = run(exchanged, 3, args=(TopK(ratio), 1003)).traffic[0]
    assert gathered.by_operation["all_gather"].sent_bytes == 2 * k * (8 + 4)


def test_the_bytes_of_power_sgd_are_those_of_two_thin_matrices():
    def one_step(world, rank):
        model = DDP(nn.Linear(40, 30), world, PowerSGD(rank))
        model(torch.ones(1, 40)).sum().backward()

    for rank in (1, 4):
        reduced = run(one_step, 2, args=(rank,)).traffic[0].by_operation["all_reduce"]
        assert reduced.count == 2
        assert reduced.payload_bytes == 4 * (rank * (40 + 30) + 30), "the bias travels whole"


def test_a_gradient_of_low_rank_survives_power_sgd_whole():
    def one_step(world):
        torch.manual_seed(0)
        model = DDP(nn.Linear(40, 30, bias=False), world, PowerSGD(2))
        for _ in range(2):
            model.module.zero_grad()
            (model(two_rows * (1 + world.rank)) * factors).sum().backward()
        return model.module.weight.grad

    two_rows = torch.stack([torch.ones(40), torch.arange(40.0)])
    factors = torch.stack([torch.arange(30.0), torch.ones(30)])
    expected = factors.T @ two_rows * 1.5  # rank 2's expected product
    torch.testing.assert_close(run(one_step, 2).values[0], expected, rtol=1e-4, atol=1e-3)


def test_power_sgd_converges_to_the_largest_singular_vectors():
    def ten_steps(world):
        (bucket,) = make_buckets({"w": nn.Parameter(torch.zeros(8, 6))})
        exchange = PowerSGD(1, error_feedback=False).for_bucket(bucket)
        for _ in range(10):
            found = exchange(matrix.flatten().clone(), world)
        return found.view(8, 6)

    matrix = torch.zeros(8, 6)
    matrix[0, 0], matrix[1, 1] = 4, 1
    expected = torch.zeros(8, 6)
    expected[0, 0] = 4
    torch.testing.assert_close(run(ten_steps, 1).values[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MAKERS)
def test_an_overflow_on_one_rank_does_not_affect_later_steps(name):
    def overflows_once(world):
        model = DDP(module(), world, MAKERS[name](), bucket_bytes=400)
        finite = []
        for step in range(4):
            model.module.zero_grad()
            factor = float("inf") if step == 1 and world.rank == 1 else 1.0
            (model(torch.ones(1, 12, dtype=torch.float64)).sum() * factor).backward()
            finite.append(all(bool(p.grad.isfinite().all()) for p in model.module.parameters()))
        return finite

    for finite in run(overflows_once, 2).values:
        assert finite == [True, False, True, True]


def test_signs_are_scaled_by_each_parameters_own_magnitude():
    def one_step(world):
        net = nn.Sequential(nn.Linear(50, 1, bias=False), nn.Linear(1, 1, bias=False))
        net[0].weight.data.fill_(1.0)
        net[1].weight.data.fill_(1e-3)  # the first layer's gradients are a thousandth of 1
        model = DDP(net, world, OneBit())
        model(torch.ones(1, 50)).sum().backward()
        return net[0].weight.grad[0, 0].item(), net[1].weight.grad.item()

    assert run(one_step, 2).values[0] == pytest.approx((1e-3, 50.0))


def test_packed_bits_unpack_to_the_same_bits():
    for numel in (0, 1, 7, 8, 9, 64, 1001):
        bits = torch.rand(numel) < 0.5
        assert torch.equal(unpacked(packed(bits), numel), bits)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TopK(0), "ratio=0"),
        (lambda: TopK(1.5), "ratio=1.5"),
        (lambda: PowerSGD(0), "rank=0"),
    ],
)
def test_ratios_and_ranks_out_of_range_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


class NumbersRead(TorchDispatchMode):
    """Counts what makes the host wait for a GPU: a tensor read as a number."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += str(function) == "aten._local_scalar_dense.default"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MAKERS)
def test_compression_never_makes_the_host_wait_for_the_gpu(name):
    def numbers_read(world):
        (bucket,) = make_buckets(dict(module().named_parameters()))
        exchange = MAKERS[name]().for_bucket(bucket)
        with NumbersRead() as read:
            for _ in range(2):
                exchange(torch.ones_like(bucket.flat), world)
        return read.count

    assert run(numbers_read, 2).values == [0, 0]


def test_power_sgd_frees_the_state_of_a_freed_bucket():
    def buckets_remembered(world):
        compressor = PowerSGD(1)
        for _ in range(3):
            model = DDP(nn.Linear(8, 8), world, compressor)
            model(torch.ones(1, 8)).sum().backward()
            del model
            gc.collect()
        return len(compressor._last_qs)

    assert run(buckets_remembered, 1).values == [0]


def test_naive_ddp_has_no_buckets_to_compress():
    def one_step(world):
        model = NaiveDDP(nn.Linear(2, 2), world, TopK(0.5))
        model(torch.ones(1, 2)).sum().backward()
        model.reduce_gradients()

    with pytest.raises(RankError, match="TopK.* works on buckets.* BucketedDDP or DDP"):
        run(one_step, 1)


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
