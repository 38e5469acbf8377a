"""Each sample exactly once, on real ranks: kills at random steps, and another number of ranks."""

import os
import random
import signal
from contextlib import suppress

import torch

from labkit import RankError, run
from labkit.checkpoint import Checkpointer, SampleCursor, SampleLog, audit

NUM_STEPS, NUM_SAMPLES, BATCH = 12, 50, 7
SIZES = (4, 3, 4)


def trains(world, folder, attempt, killed_at):
    """Add each sample's id to a parameter, with a save in the background after every other step."""
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    cursor, log = SampleCursor(NUM_SAMPLES, BATCH), SampleLog(folder / "log", attempt, world.rank)
    checkpointer = Checkpointer(folder / "saves", model, None, world, extra={"data": cursor})
    loaded = checkpointer.load()
    for step in range(loaded.step if loaded else 0, NUM_STEPS):
        ids = cursor.next_batch().tensor_split(world.size)[world.rank]
        if killed_at == (step, world.rank):
            os.kill(os.getpid(), signal.SIGKILL)
        log.write(step, ids)
        model.weight.data += world.all_reduce(ids.sum(dtype=torch.float64))
        if step % 2:
            checkpointer.save(step + 1, wait=False)
    checkpointer.wait()
    return model.weight.item()


def test_kills_and_other_sizes_lose_no_sample_and_use_none_twice(tmp_path):
    draw = random.Random(1)
    killed_at = [(draw.randint(4 * k + 1, 4 * k + 4), draw.randrange(3)) for k in range(2)]
    for attempt, size in enumerate(SIZES[:2]):
        with suppress(RankError):
            run(trains, size, (tmp_path, attempt, killed_at[attempt]))
    weights = run(trains, SIZES[2], (tmp_path, 2, None)).values
    found = audit(tmp_path / "log", num_samples=NUM_SAMPLES, batch=BATCH)
    assert found[:3] == (NUM_STEPS, [], [])
    assert found.repeated > 0 and len(list((tmp_path / "log").iterdir())) == sum(SIZES)
    cursor = SampleCursor(NUM_SAMPLES, BATCH)
    assert set(weights) == {float(sum(cursor.next_batch().sum() for _ in range(NUM_STEPS)))}
