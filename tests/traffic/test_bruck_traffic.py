"""Bytes, messages and partners of Bruck's all-gather, from its journal, are those of calc."""

import pytest
import torch

from labkit import calc, run
from labkit.collectives import bruck_all_gather

NUMELS = [0, 1, 2, 7, 64, 1003]


def gather_each(world):
    for numel in NUMELS:
        chunk = torch.ones(numel, dtype=torch.float64).tensor_split(world.size)[world.rank]
        with world.label(str(numel)):
            bruck_all_gather(chunk, numel, world)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 7, 8])
def test_every_rank_sends_what_calc_says(world_size):
    for rank, timeline in enumerate(run(gather_each, world_size).timeline):
        for numel in NUMELS:
            done = [op for op in timeline.operations if op.label == str(numel)]
            sends = [op for op in done if op.kind == "send"]
            assert len(done) == 2 * len(sends), "only send and recv"
            assert all(op.done_s is not None for op in done), "a message was not waited for"
            predicted = calc.collective(
                "all_gather", "bruck", world_size, 8 * numel, itemsize=8, rank=rank
            )
            sent = sum(op.sent_bytes for op in sends)
            assert (sent, len(sends)) == (predicted.sent_bytes, predicted.messages)
            lefts = [(rank - 2**step) % world_size for step in range(predicted.steps)]
            assert [op.peer for op in sends] == lefts


def test_bytes_are_a_rings_and_steps_its_logarithm():
    ring, bruck = (calc.collective("all_gather", each, 1000, 1e6) for each in ("ring", "bruck"))
    assert bruck.sent_bytes == ring.sent_bytes == 999 / 1000 * 1e6
    assert (ring.steps, bruck.steps) == (999, 10)
    assert bruck.seconds(5e-6, 1e-9) == pytest.approx(10 * 5e-6 + 999e3 * 1e-9)
