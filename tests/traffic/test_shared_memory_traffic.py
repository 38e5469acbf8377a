"""Collectives through shared memory send nothing, and need the memory that they say."""

import torch

from labkit import Run, run
from labkit.collectives import hierarchical_all_reduce, two_tiers
from labkit.comm import (
    shared_memory_all_gather,
    shared_memory_all_reduce,
    shared_memory_reduce_scatter,
)
from labkit.comm.operation import NETWORK, SHARED_MEMORY
from labkit.comm.shared_memory.collectives import CAPACITY_BYTES
from labkit.comm.shared_memory.meeting import NOTE_BYTES

NUMEL = 10**6 + 1


def all_three(world):
    x = torch.ones(NUMEL)
    shared_memory_all_reduce(x, world)
    shared_memory_all_gather(shared_memory_reduce_scatter(x, world), NUMEL, world)


def test_they_are_in_the_journal_and_send_nothing(tmp_path):
    result = run(all_three, 3)
    result = Run.load(result.save(tmp_path / "saved"))  # saved runs say it too
    for timeline, traffic in zip(result.timeline, result.traffic, strict=True):
        meeting, *operations = timeline.operations
        assert (meeting.kind, meeting.medium) == ("share_memory", NETWORK)
        assert meeting.sent_bytes == 2 * NOTE_BYTES
        assert [each.kind for each in operations] == ["all_reduce", "reduce_scatter", "all_gather"]
        for operation in operations:
            assert operation.medium == SHARED_MEMORY
            assert operation.shape == (NUMEL,)
            assert operation.sent_bytes == operation.received_bytes == 0
            assert operation.done_s > operation.posted_s
        assert traffic.sent_bytes == 2 * NOTE_BYTES
        if traffic.socket_bytes is not None:
            assert traffic.socket_bytes < traffic.sent_bytes + 1000  # gloo's notes


def in_place(world):
    x = torch.ones(8 * CAPACITY_BYTES // 4)
    shared_memory_all_reduce(x, world, out=x)


def test_in_place_it_needs_the_shared_memory_and_no_more():
    for memory in run(in_place, 2).memory:
        assert memory.growth_bytes < 9 * CAPACITY_BYTES + 12 * 2**20


def two_tiered(world):
    fast, slow = two_tiers(world, 2)
    x = torch.arange(101.0) + world.rank
    return hierarchical_all_reduce(
        x,
        fast,
        slow,
        reduce_scatter=shared_memory_reduce_scatter,
        all_gather=shared_memory_all_gather,
    )


def test_they_are_the_fast_tier_of_a_hierarchical_all_reduce():
    result = run(two_tiered, 4)
    for rank, total in enumerate(result.values):
        assert torch.equal(total, 4 * torch.arange(101.0) + 6)
        chunk_bytes = 4 * len(torch.arange(101).tensor_split(2)[rank % 2])
        sends = result.traffic[rank].by_operation["send"]
        assert sends.sent_bytes == chunk_bytes  # a ring of two hosts: 2(2-1)/2 of the chunk
