"""Ranks that share a GPU: every operation through the host, with the same results.

There may be no GPU here, so gloo is kept from seeing *any* tensor of the caller: each is copied to
another buffer and back, as it would be from a GPU. That the copies cross a bus is all that is not
tested.
"""

import pytest
import torch

from labkit import run
from labkit.comm import staging
from labkit.comm.staging import ThroughHost, through_host


def everything(world):
    """The result of each operation, by name."""
    rank, size = world.rank, world.size
    x = torch.arange(2.0 * size) + 10 * rank
    out = x.clone()
    results = {
        "all_reduce": world.all_reduce(x),
        "mean": world.all_reduce(x, "mean"),
        "bfloat16": world.all_reduce(x.bfloat16(), "max"),
        "complex": world.all_reduce(x + 1j),
        "in place": (world.all_reduce(out, out=out), out),
        "transposed": world.all_reduce(x.view(2, size).t(), out=torch.empty(2, size).t()),
        "reduce_scatter": world.reduce_scatter(x),
        "all_gather": world.all_gather(x > 3),
        "all_to_all": world.all_to_all(x),
        "broadcast": world.broadcast(x, root=size - 1),
        "gather": world.gather(x, root=0),
        "scatter": world.scatter(x if rank == 0 else None, torch.empty(2), root=0),
    }
    world.barrier()
    pending = [world.all_reduce(x + step, wait=False) for step in range(3)]
    results["in flight"] = [each.wait() for each in reversed(pending)]
    buffer = torch.empty(2, 2).t()
    receiving = world.irecv(buffer, src=(rank - 1) % size)
    world.isend(x[:4].view(2, 2), dst=(rank + 1) % size).wait()
    results["ring"] = (receiving.wait(), buffer)
    half = world.split(rank % 2)
    results["half"] = half.all_reduce(x)
    return results, x


class Gloo:
    """The backend, which must see nothing but the buffers that staging has made."""

    def __init__(self, process_group, buffers):
        self._process_group, self._buffers = process_group, buffers

    def __getattr__(self, name):
        method = getattr(self._process_group, name)
        if name in ("rank", "size", "name", "barrier"):
            return method

        def guarded(*arguments):
            given = [part for part in flattened(arguments) if isinstance(part, torch.Tensor)]
            assert given, f"{name} was given no tensor"
            assert {x.data_ptr() for x in given} <= self._buffers, f"{name} saw the caller's tensor"
            return method(*arguments)

        return guarded


def staged(world):
    buffers, on_host = set(), staging._on_host

    def remembered(x, *, filled):
        host = on_host(x, filled=filled)
        buffers.add(host.data_ptr())
        return host

    staging._on_host = remembered
    gloo = Gloo(world._process_group, buffers)
    world._process_group = ThroughHost(gloo, is_elsewhere=lambda x: True)
    return everything(world)


def flattened(value):
    if isinstance(value, (list, tuple)):
        return [part for each in value for part in flattened(each)]
    return [value]


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_operation_gives_the_same_through_the_host(world_size):
    direct = run(everything, world_size).values
    for rank, (results, x) in enumerate(run(staged, world_size).values):
        expected, same_x = direct[rank]
        assert torch.equal(x, same_x), "an argument was changed"
        for name, value in results.items():
            for got, wanted in zip(flattened(value), flattened(expected[name]), strict=True):
                same = got is wanted if wanted is None else torch.equal(got, wanted)
                assert same, f"{name} on rank {rank}: {got} instead of {wanted}"


def test_only_gloo_with_a_gpu_is_staged():
    def kinds(world):
        gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
        group = world._process_group
        return type(through_host(group, gpu)).__name__, through_host(group, cpu) is group

    assert run(kinds, 1, device="cpu").values == [("ThroughHost", True)]
