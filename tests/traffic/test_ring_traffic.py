"""Bytes and steps of the ring, from its journal, equal formulas written without the code."""

import pytest
import torch

from labkit import calc, run
from labkit.collectives import ring, ring_all_gather, ring_all_reduce, ring_reduce_scatter

NUMELS = [0, 1, 2, 5, 1000, 1003]


def reduce_each(world):
    for numel in NUMELS:
        with world.region(f"all_reduce {numel}"):
            ring_all_reduce(torch.ones(numel, dtype=torch.float64), world)


def operations_within(timeline, name):
    region = next(region for region in timeline.regions if region.name == name)
    return [op for op in timeline.operations if region.start_s <= op.posted_s <= region.end_s]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5])
def test_all_reduce_sends_what_calc_says_and_no_padding(world_size):
    result = run(reduce_each, world_size)
    for rank, timeline in enumerate(result.timeline):
        for numel in NUMELS:
            operations = operations_within(timeline, f"all_reduce {numel}")
            sends = [op for op in operations if op.kind == "send"]
            recvs = [op for op in operations if op.kind == "recv"]
            assert len(operations) == len(sends) + len(recvs), "only send and recv"
            asked = {"itemsize": 8, "rank": rank}
            ring = calc.collective("all_reduce", "ring", world_size, numel * 8, **asked)
            assert len(sends) == len(recvs) == ring.messages
            assert sum(op.sent_bytes for op in sends) == ring.sent_bytes


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_message_goes_to_the_right_and_comes_from_the_left(world_size):
    for rank, timeline in enumerate(run(reduce_each, world_size).timeline):
        assert {op.peer for op in timeline.operations if op.kind == "send"} == {
            (rank + 1) % world_size
        }
        assert {op.peer for op in timeline.operations if op.kind == "recv"} == {
            (rank - 1) % world_size
        }


def halves(world, numel):
    chunk = ring_reduce_scatter(torch.ones(numel), world)
    ring_all_gather(chunk, numel, world)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_each_phase_sends_its_half(world_size):
    result = run(halves, world_size, (1003,))
    for rank, timeline in enumerate(result.timeline):
        sends = [op.sent_bytes for op in timeline.operations if op.kind == "send"]
        scatter, gather = sends[: world_size - 1], sends[world_size - 1 :]
        for sent, operation in ((scatter, "reduce_scatter"), (gather, "all_gather")):
            asked = calc.collective(operation, "ring", world_size, 4012, rank=rank)
            assert sum(sent) == asked.sent_bytes


def test_long_chunks_travel_in_blocks_of_the_same_bytes():
    numel = 2 * (ring.BLOCK_BYTES // 4) * 3 + 1  # chunks of 3 blocks, and of 3 and one element
    result = run(lambda world: ring_all_reduce(torch.ones(numel), world), 2)
    for rank, traffic in enumerate(result.traffic):
        sends = traffic.by_operation["send"]
        assert sends.count == 3 + 4
        asked = calc.collective("all_reduce", "ring", 2, numel * 4, rank=rank)
        assert sends.sent_bytes == asked.sent_bytes


def scratch_memory(world, numel):
    x = torch.ones(numel)
    ring_all_reduce(x, world, out=x)


def test_in_place_it_needs_two_blocks_besides_the_tensor():
    numel = 16 * ring.BLOCK_BYTES // 4  # 64 MiB: chunks of 32 MiB on two ranks
    for memory in run(scratch_memory, 2, (numel,)).memory:
        assert memory.growth_bytes < numel * 4 + 2 * ring.BLOCK_BYTES + 12 * 2**20
