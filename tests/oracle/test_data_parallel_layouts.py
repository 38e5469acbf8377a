"""Parameters that are not contiguous: gradients are right, and lie in memory as they do."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit import run
from labkit.collectives import ring_all_reduce
from labkit.data_parallel import DDP, BucketedDDP, NaiveDDP
from labkit.data_parallel.bucketed import make_buckets
from labkit.data_parallel.compression import PowerSGD, TopK


class Torchs(DistributedDataParallel):
    """torch's own, with the call that it does not need."""

    def __init__(self, module, group):
        super().__init__(module)
        self.group = group

    def reduce_gradients(self):
        pass


RUNGS = {
    "naive": NaiveDDP,
    "naive, round a ring": partial(NaiveDDP, all_reduce=ring_all_reduce),
    "bucketed": partial(BucketedDDP, bucket_bytes=300),
    "bucketed, round a ring": partial(BucketedDDP, all_reduce=ring_all_reduce),
    "overlapped": partial(DDP, bucket_bytes=300),
    "all entries, compressed": partial(DDP, all_reduce=TopK(1.0)),
    "torch": Torchs,
}


class Module(nn.Module):
    """Convolutions in channels_last, and a matrix that is stored by its columns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3, dtype=torch.float64)
        self.second = nn.Conv2d(4, 2, 2, dtype=torch.float64)
        self.head = nn.Parameter(torch.randn(5, 2, dtype=torch.float64).t())
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).mean((2, 3)) @ self.head


def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 3, 6, 6, dtype=torch.float64, generator=generator)
    return x.to(memory_format=torch.channels_last)


def twice(world, rung):
    """Gradients after the second pass, and whether each has its parameter's strides."""
    module = Module()
    model = RUNGS[rung](module, world)
    for _ in range(2):
        module.zero_grad()
        share = images().tensor_split(world.size)[world.rank]
        ((model(share) ** 2).sum() * world.size).backward()
        model.reduce_gradients()
    have_strides = {name: p.grad.stride() == p.stride() for name, p in module.named_parameters()}
    return {name: p.grad.clone() for name, p in module.named_parameters()}, have_strides


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("rung", RUNGS)
def test_gradients_equal_the_serial_ones_and_have_the_strides_of_their_parameters(rung, world_size):
    module = Module()
    assert not module.first.weight.is_contiguous() and not module.head.is_contiguous()
    (module(images()) ** 2).sum().backward()
    for found, have_strides in run(twice, world_size, args=(rung,)).values:
        assert all(have_strides.values()), have_strides
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-12, atol=1e-12)


def test_a_matrix_of_low_rank_survives_power_sgd_however_it_is_stored():
    def one_step(world):
        module = nn.Linear(40, 30, bias=False)
        module.weight = nn.Parameter(module.weight.detach().t().contiguous().t())
        model = DDP(module, world, PowerSGD(1))
        x = torch.ones(1, 40) * (1 + world.rank)
        for _ in range(2):
            module.zero_grad()
            (model(x) * torch.arange(30.0)).sum().backward()
        return module.weight.grad

    expected = torch.outer(torch.arange(30.0), torch.ones(40)) * 1.5
    torch.testing.assert_close(run(one_step, 2).values[0], expected, rtol=1e-4, atol=1e-4)


def test_a_parameter_with_gaps_in_its_memory_has_none_in_its_bucket():
    gappy = nn.Parameter(torch.randn(4, 6)[:, ::2])
    (bucket,) = make_buckets({"gappy": gappy})
    assert bucket.flat.shape == (12,)
    assert bucket.views[0].shape == (4, 3)
    bucket.views[0].copy_(torch.arange(12.0).view(4, 3))
    assert bucket.flat.sort().values.tolist() == list(range(12))
