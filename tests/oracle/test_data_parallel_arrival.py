"""Buckets cut by the order in which gradients arrive: earlier all-reduces, and the same numbers."""

from functools import partial

import pytest
import torch
from torch import nn

from labkit import run
from labkit.data_parallel import DDP, BackgroundAllReduce, BucketedDDP, SymmetricBuckets
from labkit.data_parallel.bucketed import make_buckets
from labkit.data_parallel.compression import PowerSGD, TopK
from labkit.data_parallel.ddp import rebuild_buckets
from labkit.memory import Meter
from labkit.optimizer import SGD

NUM_LAYERS = 5
ORDER = "the order in which gradients arrive"


class Backwards(nn.Module):
    """Layers that are used in the order opposite to the one in which they are made."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Linear(6, 6, bias=False, dtype=torch.float64) for _ in range(NUM_LAYERS)
        )

    def forward(self, x):
        for layer in reversed(self.layers):
            x = torch.tanh(layer(x))
        return x


def batch(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(7, 6, dtype=torch.float64, generator=generator)


def losses_of(world, module, model, steps=4):
    """Return the losses of the global batch, by step. Regions mark passes and last gradients."""
    optimizer, losses = SGD(module.parameters(), 0.1, momentum=0.9), []
    for step in range(steps):
        share = batch(step).tensor_split(world.size)[world.rank]
        optimizer.zero_grad()
        with world.region("pass"):
            value = (model(share) ** 2).sum()
            (value * (world.size / 7)).backward()
            model.reduce_gradients()
        optimizer.step()
        losses.append(world.all_reduce(value.detach()).item() / 7)
    return losses


def trained(world, wrap=DDP, **options):
    module = Backwards()

    def mark(parameter):
        with world.region("last gradient"):
            pass

    # The first that is used. Hooks are called in order: this one before the wrapper's.
    module.layers[-1].weight.register_post_accumulate_grad_hook(mark)
    model = wrap(module, world, bucket_bytes=1, **options)
    return losses_of(world, module, model)


def started_before_the_last_gradient(timeline):
    """By pass: how many buckets."""
    buckets = [each for each in timeline.operations if (each.label or "").startswith("bucket")]
    passes = [region for region in timeline.regions if region.name == "pass"]
    last = [region.start_s for region in timeline.regions if region.name == "last gradient"]
    return [
        sum(each.start_s < bucket.posted_s < last_s for bucket in buckets)
        for each, last_s in zip(passes, last, strict=True)
    ]


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def overlapped(request):
    return run(trained, request.param, timeout=600)


@pytest.fixture(scope="module")
def alone():
    return run(partial(trained, wrap=BucketedDDP), 1, timeout=600).values[0]


def test_losses_with_rebuilt_buckets_are_those_of_one_process(overlapped, alone):
    for losses in overlapped.values:
        assert losses == pytest.approx(alone, rel=1e-12)


def test_from_the_second_pass_on_all_reduces_begin_before_the_last_gradient(overlapped):
    for timeline in overlapped.timeline:
        first, *others = started_before_the_last_gradient(timeline)
        assert first == 0, "the first bucket waits for the last gradient, and the others for it"
        assert others == [NUM_LAYERS - 1] * 3


def test_the_order_is_agreed_on_once(overlapped):
    for timeline in overlapped.timeline:
        (agreed,) = [each for each in timeline.operations if each.label == ORDER]
        assert (agreed.kind, agreed.peer, agreed.shape) == ("broadcast", 0, (NUM_LAYERS,))


class InAnyOrder(nn.Module):
    """Three layers, used in the order that each call names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in "abc"})

    def forward(self, x, order):
        for name in order:
            x = self.layers[name](x)
        return x


def names_of(world, **options):
    """Names by bucket, before and after a pass in which rank 1 sees another order."""
    model = DDP(InAnyOrder(), world, bucket_bytes=1, **options)
    before = [bucket.names[0].split(".")[1] for bucket in model.buckets]
    model(torch.ones(1, 2), "bca" if world.rank == 1 else "acb").sum().backward()
    after = [bucket.names[0].split(".")[1] for bucket in model.buckets]
    views = all(
        parameter.grad.data_ptr() == view.data_ptr()
        for bucket in model.buckets
        for parameter, view in zip(bucket.parameters, bucket.views, strict=True)
    )
    return before, after, views


def test_all_ranks_take_rank_0s_order_and_gradients_stay_in_their_buckets():
    for before, after, are_views in run(names_of, 3).values:
        assert before == ["c", "b", "a"]
        assert after == ["b", "c", "a"]
        assert are_views


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"all_reduce": TopK(0.5)}])
def test_buckets_are_not_rebuilt_with_find_unused_parameters_or_a_compressor(options):
    result = run(partial(names_of, **options), 2)
    for before, after, _ in result.values:
        assert before == after
    assert all(each.label != ORDER for each in result.timeline[0].operations)


def test_a_gradient_that_is_kept_moves_into_its_new_bucket():
    parameters = {name: nn.Parameter(torch.ones(2)) for name in "ab"}
    buckets = make_buckets(parameters, 1)
    for bucket in buckets:
        bucket.parameters[0].grad = bucket.views[0].fill_(ord(bucket.names[0]))
    assert rebuild_buckets(["b", "a"], buckets, 1) is buckets, "nothing changes"
    new = rebuild_buckets(["a", "b"], buckets, 1)
    assert [bucket.names for bucket in new] == [("a",), ("b",)]
    for bucket in new:
        assert bucket.flat.tolist() == [ord(bucket.names[0])] * 2
        assert bucket.parameters[0].grad.data_ptr() == bucket.flat.data_ptr()


def test_buckets_that_would_not_change_are_not_allocated_again():
    parameters = {name: nn.Parameter(torch.ones(1000)) for name in "abc"}
    buckets = make_buckets(parameters, 4000)
    with Meter() as meter:
        rebuild_buckets(["c", "b", "a"], buckets, 4000)
    assert meter.usage.peak_bytes == 0


def in_symmetric_buckets(world):
    return trained(world, partial(DDP, all_reduce=SymmetricBuckets(world)))


def test_buckets_in_shared_memory_are_rebuilt_in_shared_memory(alone):
    for losses in run(in_symmetric_buckets, 3).values:
        assert losses == pytest.approx(alone, rel=1e-12)


def compressed(world, make, in_background):
    module, compressor = Backwards(), make()
    all_reduce = BackgroundAllReduce(compressor, world) if in_background else compressor
    return losses_of(world, module, DDP(module, world, all_reduce, bucket_bytes=600), steps=6)


@pytest.mark.parametrize("make", [lambda: TopK(0.1), lambda: PowerSGD(1)])
def test_a_compressor_in_the_background_gives_the_same_parameters(make):
    blocking = run(compressed, 3, args=(make, False)).values
    assert run(compressed, 3, args=(make, True)).values == blocking


def test_a_compressor_in_the_background_lets_backward_go_on():
    def one_pass(world):
        module = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
        model = DDP(module, world, BackgroundAllReduce(TopK(0.5), world), bucket_bytes=1)
        model(torch.ones(1, 6)).sum().backward()

    (labels,) = {
        tuple(
            each.label for each in timeline.operations if each.kind == "all_gather" and each.label
        )
        for timeline in run(one_pass, 2).timeline
    }
    assert len(labels) == 2 * 8
    assert all(label.startswith("bucket ") for label in labels)
