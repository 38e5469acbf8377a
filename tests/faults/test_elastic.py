"""Jobs that restart after failures and planned changes end as if nothing had happened."""

import os
import signal
import threading

import pytest
import torch
from torch import nn

from labkit import Deadlock, Mismatch, RankError, RunTimeout, attempt, elastic, run
from labkit.checkpoint import Checkpointer, SampleCursor, SampleLog, audit
from labkit.optimizer import AdamW
from labkit.zero import FullyShardedModule

NUM_STEPS, NUM_SAMPLES, BATCH = 8, 27, 10  # 3 epochs; a batch divides by neither 3 nor 4 ranks


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def loss_of(model, ids):
    """The part of some samples in the loss of the whole batch."""
    draw = torch.Generator().manual_seed(1)
    samples = torch.randn(NUM_SAMPLES, 5, generator=draw, dtype=torch.float64)
    return (model(samples[ids]) ** 2).sum() / BATCH


def trains(world, folder, kills=(), changes=()):
    """Train with ZeRO-3 and save every other step.

    kills: by attempt, before which step which rank dies. changes: (attempt, step) of a planned one.
    """
    model = FullyShardedModule(a_model(), world)
    optimizer, cursor = AdamW(model.parameters(), 1e-2), SampleCursor(NUM_SAMPLES, BATCH)
    checkpointer = Checkpointer(folder, model, optimizer, world, extra={"data": cursor})
    loaded = checkpointer.load()
    log = SampleLog(folder / "samples", attempt(), world.rank)
    for step in range(loaded.step if loaded else 0, NUM_STEPS):
        if kills[attempt() : attempt() + 1] == ((step, world.rank),):
            os.kill(os.getpid(), signal.SIGKILL)
        mine = cursor.next_batch().tensor_split(world.size)[world.rank]
        log.write(step, mine)
        optimizer.zero_grad()
        (loss_of(model, mine) * world.size).backward()
        optimizer.step()
        if step % 2:
            checkpointer.save(step + 1)
        if (attempt(), step) in changes:
            raise elastic.Restart
    return loaded and loaded.step, model.full_parameters()


def trained_serially():
    model, cursor = a_model(), SampleCursor(NUM_SAMPLES, BATCH)
    optimizer = AdamW(model.parameters(), 1e-2)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss_of(model, cursor.next_batch()).backward()
        optimizer.step()
    return dict(model.named_parameters())


def test_a_job_whose_ranks_are_killed_ends_equal_in_every_bit(tmp_path):
    _, expected = run(trains, 3, (tmp_path / "undisturbed",)).values[0]
    result = elastic.run(trains, 3, (tmp_path / "job", ((1, 0), (3, 2), (6, 1))))
    loaded, parameters = result.run.values[0]
    assert loaded == 6
    assert all(torch.equal(parameters[name], expected[name]) for name in expected)
    assert [a.error and a.error.rank for a in result.attempts] == [0, 2, 1, None]
    assert [a.error and a.error.exit_code for a in result.attempts[:3]] == [-signal.SIGKILL] * 3
    assert all(a.start_s < a.end_s for a in result.attempts)


def test_the_world_shrinks_after_a_failure_and_grows_at_a_planned_change(tmp_path):
    arguments = (tmp_path / "job", ((3, 3), None, (7, 0)), {(1, 5)})
    result = elastic.run(trains, 4, arguments, sizes=[4, 3, 4], restarts=2)
    assert [a.world_size for a in result.attempts] == [4, 3, 4, 4]
    assert [a.error is None for a in result.attempts] == [False, True, False, True]
    loaded, parameters = result.run.values[3]
    assert loaded == 6
    for name, expected in trained_serially().items():
        torch.testing.assert_close(parameters[name], expected, rtol=1e-12, atol=1e-14)
    used = audit(tmp_path / "job" / "samples", num_samples=NUM_SAMPLES, batch=BATCH)
    assert (used.num_steps, used.lost, used.duplicated) == (NUM_STEPS, [], [])


def dies_always(world, folder):
    (folder / f"attempt {attempt()}").touch()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()


def test_when_restarts_are_used_up_the_last_error_has_all_attempts(tmp_path):
    with pytest.raises(RankError) as caught:
        elastic.run(dies_always, 2, (tmp_path,), restarts=2)
    assert len(caught.value.attempts) == 3
    assert caught.value.attempts[2].error is caught.value
    assert "restarts=2" in caught.value.__notes__[0]
    assert "restarts=2" in caught.value._render_traceback_()[-1]
    assert len(list(tmp_path.iterdir())) == 3


def raises(world):
    world.barrier()
    raise ZeroDivisionError("of every attempt")


def raises_something_else(world):
    world.barrier()
    raise ZeroDivisionError(f"of attempt {attempt()}")


def disagrees(world):
    world.all_reduce(torch.ones(1 + world.rank))


def waits_in_vain(world):
    if world.rank == 0:
        world.recv(torch.empty(1), 1)


@pytest.mark.parametrize(
    "fn, kind, num_attempts",
    [
        (raises, RankError, 2),
        (raises_something_else, RankError, 4),
        (disagrees, Mismatch, 1),
        (waits_in_vain, Deadlock, 1),
    ],
)
def test_a_deterministic_failure_is_not_restarted(fn, kind, num_attempts):
    with pytest.raises(kind) as caught:
        elastic.run(fn, 2)
    assert len(caught.value.attempts) == num_attempts
    assert len(caught.value.__notes__) == 1
    assert "restarts.py" not in str(caught.value)


def test_a_hang_and_a_kill_from_outside_are_restarted(monkeypatch):
    """The attempt that hangs has a short timeout. The others have a minute."""
    started, launch = [], elastic.restarts.launch

    def with_timeout(*args, timeout, **options):
        return launch(*args, timeout=timeout if started else 1, **options)

    def kill_second(number, pids):
        started.append(len(set(pids)))
        if number == 1:
            os.kill(pids[0], signal.SIGKILL)

    def sleeps_twice(world):
        if attempt() < 2:
            threading.Event().wait()
        return world.size

    run(lambda world: None, 2)  # a fork server that first imports torch may take the second
    monkeypatch.setattr(elastic.restarts, "launch", with_timeout)
    result = elastic.run(sleeps_twice, 2, timeout=600, on_start=kill_second)
    assert [type(a.error) for a in result.attempts] == [RunTimeout, RankError, type(None)]
    assert result.attempts[1].error.rank == 0
    assert started == [2, 2, 2]


def changes_apart(world):
    if world.rank == 1:
        raise elastic.Restart


def test_ranks_that_raise_restart_while_others_return_are_named():
    with pytest.raises(RuntimeError, match="rank 1 raised elastic.Restart and rank 0 returned"):
        elastic.run(changes_apart, 2)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"restarts": -1}, ValueError, "restarts=-1"),
        ({"restarts": None}, TypeError, "restarts=None"),
        ({"sizes": [3, 2]}, ValueError, "world_size=2"),
        ({"sizes": []}, ValueError, "world_size=2"),
        ({"sizes": [2, 0]}, ValueError, "sizes=0"),
        ({"args": 5}, TypeError, "args=5"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        elastic.run(raises, 2, **options)


def test_seconds_lost_are_the_longest_wait_for_a_new_step_less_the_usual_one():
    repeated = [(0.0, 0), (1.0, 1), (2.0, 2), (5.5, 1), (6.5, 2), (7.5, 3), (8.5, 4)]
    assert elastic.seconds_lost(repeated) == (7.5 - 2.0) - 1.0
