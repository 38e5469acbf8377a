"""NaN on one rank: all ranks return to a good step, and go on as if the batches had never been."""

import errno
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import run
from labkit.checkpoint import (
    Checkpointer,
    Disk,
    Diverged,
    LossGuard,
    SampleCursor,
    SampleLog,
    audit,
)
from labkit.data_parallel import DDP

NUM_STEPS, NUM_SAMPLES, BATCH = 8, 200, 6


def no_fault(batch, rank, x, gradients):
    """Change nothing. A fault may change a rank's rows before the forward, and its gradients."""


def infinite_rows(batch, rank, x, gradients):
    if batch == 5 and rank == 1 and gradients is None:
        x[0] = math.inf


def infinite_gradients(batch, rank, x, gradients):
    if batch == 5 and gradients is not None:
        gradients[0][0] = math.inf


def large_gradients(batch, rank, x, gradients):
    """Make one gradient so large that Adam's square of it overflows, and nothing else."""
    if batch == 5 and gradients is not None:
        gradients[0][0] = 1e30


def nan_from_batch_5_on(batch, rank, x, gradients):
    if batch >= 5 and rank == 1:
        x[0] = math.nan


def trains(world, folder, fault, save_every, *, never=()):
    """The parameters at the end; each return, with the batch after which it was, and the step.

    never: batches that are not drawn.
    """
    torch.manual_seed(0)
    data = torch.randn(NUM_SAMPLES, 4)
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
    model = DDP(module, world)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    cursor = SampleCursor(NUM_SAMPLES, BATCH)
    saves = Checkpointer(folder / "saves", model, optimizer, world, extra={"data": cursor})
    guard, log = LossGuard(saves, cursor), SampleLog(folder / "log", 0, world.rank)
    torch.manual_seed(world.rank)  # dropout differs by rank
    step, returns = guard.save(0), []
    while step < NUM_STEPS:
        while cursor.taken // BATCH in never:
            cursor.next_batch()
        batch, ids = cursor.taken // BATCH, cursor.next_batch().tensor_split(world.size)[world.rank]
        x = data[ids]
        fault(batch, world.rank, x, None)
        loss = (F.dropout(model(x), 0.3) ** 2).mean()
        loss.backward()
        model.reduce_gradients()
        fault(batch, world.rank, x, [p.grad for p in module.parameters()])
        if guard.is_bad(loss.detach()):
            step = guard.roll_back()
            returns.append((batch, step))
            continue
        log.write(step, ids)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % save_every == 0:
            before, step = step, guard.save(step)
            returns += [(batch, step)] * (step < before)
    assert all(x.isfinite().all() for x in module.buffers())  # one rank's buffers of BatchNorm
    return {name: x.detach() for name, x in module.named_parameters()}, returns


@pytest.mark.parametrize(
    "fault, save_every, skipped, good",
    [
        (infinite_rows, 1, [5], 5),
        (infinite_rows, 2, [4, 5], 4),
        (infinite_gradients, 2, [4, 5], 4),
        (large_gradients, 2, [4, 5], 4),
    ],
)
def test_a_run_goes_on_as_if_it_had_never_had_the_batches(
    tmp_path, fault, save_every, skipped, good
):
    guarded = run(trains, 2, (tmp_path / "a", fault, save_every)).values
    without = partial(trains, never=skipped)
    expected = run(without, 2, (tmp_path / "b", no_fault, save_every)).values
    for (state, returns), (other, none) in zip(guarded, expected, strict=True):
        assert (returns, none) == ([(5, good)], [])
        assert all(torch.equal(x, other[name]) for name, x in state.items())
    settings = {"num_samples": NUM_SAMPLES, "batch": BATCH, "num_skipped": len(skipped)}
    found = audit(tmp_path / "a" / "log", **settings)
    cursor = SampleCursor(NUM_SAMPLES, BATCH)
    ids = [cursor.next_batch().tolist() for _ in range(6)]
    assert found[:3] == (NUM_STEPS, sorted(x for batch in skipped for x in ids[batch]), [])


def diverges(world, folder):
    with pytest.raises(Diverged) as error:
        trains(world, folder, nan_from_batch_5_on, 2)
    return str(error.value)


def test_three_bad_steps_at_one_place_are_an_error_with_batches_rank_and_step(tmp_path):
    for text in run(diverges, 3, (tmp_path,)).values:
        for fact in ("batch 5: rank 1", "batch 6: rank 1", "batch 7: rank 1", "step 4"):
            assert fact in text


class FailsFromTheSecondSaveOn(Disk):
    def rename(self, path, new):
        if "step-00000000" not in new.name:
            raise OSError(errno.EIO, "Input/output error", str(new))
        super().rename(path, new)


def cannot_save(world, folder):
    """Asynchronous saves, none of which counts, and NaN after each: no step is ever gained."""
    cursor = SampleCursor(NUM_SAMPLES, BATCH)
    model, disk = nn.Linear(2, 2), FailsFromTheSecondSaveOn()
    saves = Checkpointer(folder, model, None, world, extra={"data": cursor}, disk=disk)
    guard = LossGuard(saves, cursor)
    guard.save(0)
    with pytest.raises(Diverged, match="step 0"):
        for number in range(3):
            cursor.next_batch()
            guard.save(number + 1, wait=False)
            assert guard.is_bad(math.nan)
            assert guard.roll_back() == 0
    return number


def test_saves_that_fail_are_no_progress(tmp_path):
    assert run(cannot_save, 2, (tmp_path,)).values == [2, 2]


def has_no_good_state(world, folder):
    """Nothing saved; then a checkpoint of NaN that was saved without the guard; and no cursor."""
    model, cursor = nn.Linear(2, 2), SampleCursor(NUM_SAMPLES, BATCH)
    saves = Checkpointer(folder, model, None, world, extra={"data": cursor})
    guard = LossGuard(saves, cursor)
    with pytest.raises(Diverged, match=r"save\(0\)"):
        guard.roll_back()
    model.weight.data[0, 0] = math.nan
    saves.save(3)
    with pytest.raises(Diverged, match="step 3"):
        guard.roll_back()
    with pytest.raises(ValueError, match="extra"):
        LossGuard(saves, SampleCursor(NUM_SAMPLES, BATCH))


def test_without_a_good_state_there_is_an_error(tmp_path):
    run(has_no_good_state, 2, (tmp_path,))
