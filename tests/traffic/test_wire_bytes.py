"""Bytes that the journal lists as sent equal those that the kernel counted on the sockets."""

import sys

import pytest
import torch

from labkit import run
from labkit.collectives import ring_all_reduce
from labkit.comm import connect

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is Linux's")

NUMEL = 240_000  # 960 kB: divisible by 2, 3 and 4, and headers are below a thousandth of it
CALLS = {
    "all_reduce": lambda world, x: world.all_reduce(x),
    "reduce_scatter": lambda world, x: world.reduce_scatter(x),
    "all_gather": lambda world, x: world.all_gather(x),
    "all_to_all": lambda world, x: world.all_to_all(x),
    "broadcast": lambda world, x: world.broadcast(x, root=1),
    "gather": lambda world, x: world.gather(x, root=1),
    "scatter": lambda world, x: world.scatter(
        torch.cat([x] * world.size) if world.rank == 1 else None, out=x, root=1
    ),
    "ring": lambda world, x: ring_all_reduce(x, world),
}


def count_each(world):
    counted = {}
    for name, call in CALLS.items():
        world.barrier()
        before = connect.sent_bytes()
        call(world, torch.ones(NUMEL))
        world.barrier()  # wait until all bytes have arrived
        counted[name] = connect.sent_bytes() - before
    return counted


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_collective_sends_what_the_journal_says(world_size):
    result = run(count_each, world_size)
    for rank, counted in enumerate(result.values):
        by_kind = result.traffic[rank].by_operation
        for name in CALLS:
            said = by_kind["send" if name == "ring" else name].sent_bytes
            # Above it: gloo's notes of 48 bytes around every message, the barriers' included.
            assert 0 <= counted[name] - said <= 10_000, (name, rank, said, counted[name])


def test_a_run_reports_what_the_kernel_counted():
    def gathers(world):
        world.all_gather(torch.ones(NUMEL))
        world.barrier()  # wait for all bytes to arrive: the kernel may hold some

    result = run(gathers, 2)
    for traffic in result.traffic:
        assert 0 < traffic.socket_bytes - traffic.sent_bytes < 10_000
