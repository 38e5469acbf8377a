"""Replicas that are killed, frozen and healed: what counts is a serial run, bit by bit on all."""

import os
import signal
import socket
import threading
import time
from multiprocessing.connection import Client
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit import attempt
from labkit.checkpoint import SampleCursor, SampleLog, audit
from labkit.elastic import HeartbeatSender, NoReplicaLeft, run_replicas, seconds_lost
from labkit.elastic.quorum import BEAT_S, Coordinator
from labkit.launch import RankError
from labkit.optimizer import AdamW

SAMPLES = {"num_samples": 50, "batch": 10}
OPTIMIZERS = {"lab": AdamW, "torch": torch.optim.AdamW}
# A model of 8 x 3 weights and 3 biases in 64 bits, two averages of each, and the header.
STATE_BYTES = 3 * 27 * 8


def made(optimizer):
    torch.manual_seed(0)
    model = nn.Linear(8, 3, dtype=torch.float64)
    data = torch.randn(SAMPLES["num_samples"], 8, dtype=torch.float64)
    return model, OPTIMIZERS[optimizer](model.parameters(), 1e-2), data


def gradients(model, data, ids):
    model.zero_grad()
    if len(ids):
        model(data[ids]).square().mean().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def take(model, optimizer, grads):
    for parameter, grad in zip(model.parameters(), grads):
        parameter.grad = grad
    optimizer.step()


def serial(num_steps, optimizer="lab"):
    model, optimizer, data = made(optimizer)
    cursor = SampleCursor(**SAMPLES)
    for _ in range(num_steps):
        take(model, optimizer, gradients(model, data, cursor.next_batch()))
    return list(model.parameters())


class Killer:
    """Ends this process at a point of a step, in one attempt: (replica, attempt, point, step)."""

    def __init__(self, replica, kills, folder):
        self.replica, self.kills, self.folder = replica, kills, folder

    def at(self, point):
        if (self.replica.number, attempt(), point, self.replica.step) not in self.kills:
            return
        if point == "raise":
            raise RuntimeError("of the program")
        os.kill(os.getpid(), signal.SIGSTOP if point == "freeze" else signal.SIGKILL)

    def state_dict(self):
        self.at("give")
        self.at("raise")
        return {}

    def load_state_dict(self, state):
        self.at("take")


def train(replica, folder, num_steps, kills=(), back=(), optimizer="lab", leaves=()):
    """back: by replica and attempt, the step for which it returns, once the others are there.

    leaves: how many steps it has started, where replica 1 leaves the last one without a vote.
    """
    folder, back = Path(folder), dict(back)
    leaves = dict(leaves) if replica.number == 1 else {}
    step = back.get((replica.number, attempt()), 0)
    while attempt() and not (folder / f"at-{step}").exists():
        time.sleep(0.01)
    model, optimizer, data = made(optimizer)
    cursor, killer = SampleCursor(**SAMPLES), Killer(replica, kills, folder)
    replica.register_state(model, optimizer, {"data": cursor, "killer": killer})
    (folder / f"{replica.number}-{attempt()}").write_text(str(os.getpid()))
    number, num_started = 0, 0
    while replica.step < num_steps:
        killer.at("begin")
        (folder / f"at-{replica.step}").touch()
        group = replica.begin_step()
        num_started += 1
        if number != replica.quorum.number:
            number = replica.quorum.number
            log = SampleLog(folder / "log", number, replica.number)
        ids = cursor.next_batch().tensor_split(group.size)[group.rank]
        grads = gradients(model, data, ids)
        if leaves.get(num_started) == "before":
            continue
        killer.at("freeze")
        killer.at("reduce")
        replica.all_reduce(grads, len(ids))
        if leaves.get(num_started) == "after":
            continue
        log.write(replica.step, ids)
        killer.at("vote")
        if replica.commit():
            killer.at("step")
            take(model, optimizer, grads)
    return os.getpid(), num_started, list(model.parameters())


def run_until_back(num_replicas, arguments, back, **options):
    """`train`, with all replicas in the first quorum of each step in `back`."""
    form = Coordinator._form

    def form_when_back(coordinator):
        step, starts = coordinator._num_committed, coordinator._starts.values()
        is_started = any(quorum.step == step for quorum in coordinator.quorums)
        here = [start for start in starts if start.is_asking and coordinator._is_living(start)]
        if step not in dict(back).values() or is_started or len(here) == num_replicas:
            form(coordinator)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "_form", form_when_back)
        return run_replicas(train, num_replicas, arguments, **options)


def require_serial(run, folder, num_steps, optimizer="lab"):
    """All that returned have the same bits, those of the serial run but for rounding."""
    first, *others = [value[2] for value in run.values if value is not None]
    assert all(all(map(torch.equal, first, other)) for other in others)
    torch.testing.assert_close(first, serial(num_steps, optimizer), rtol=0, atol=1e-12)
    assert [commit.step for commit in run.commits] == list(range(num_steps))
    found = audit(folder / "log", **SAMPLES)
    assert (found.num_steps, found.lost, found.duplicated) == (num_steps, [], [])


def members(run):
    return [(quorum.step, quorum.members) for quorum in run.quorums]


def test_undisturbed_replicas_take_the_serial_steps(tmp_path):
    run = run_replicas(train, 4, (tmp_path, 4))
    require_serial(run, tmp_path, 4)
    assert members(run) == [(0, (0, 1, 2, 3))]
    assert run.healings == []
    assert [value[1] for value in run.values] == [4] * 4


def test_a_step_started_again_is_void_for_all(tmp_path):
    leaves = {3: "before", 6: "after"}  # its all-reduce
    # Nobody waits for the patience, which is longer than the timeout.
    run = run_replicas(train, 2, (tmp_path, 6, (), (), "lab", leaves), patience_s=60)
    require_serial(run, tmp_path, 6)
    assert members(run) == [(0, (0, 1)), (2, (0, 1)), (4, (0, 1))]
    assert [value[1] for value in run.values] == [8, 8]


@pytest.fixture(scope="module")
def two_in_turn(tmp_path_factory):
    """Replica 2 is killed before an all-reduce, replica 1 after one; both return."""
    folder = tmp_path_factory.mktemp("two_in_turn")
    kills = [(2, 0, "reduce", 3), (1, 0, "vote", 7)]
    back = {(2, 1): 5, (1, 1): 9}
    return folder, run_until_back(4, (folder, 11, kills, back), back)


def test_a_kill_costs_the_step_in_flight_and_no_other_process(two_in_turn):
    folder, run = two_in_turn
    require_serial(run, folder, 11)
    assert members(run) == [
        (0, (0, 1, 2, 3)),
        (3, (0, 1, 3)),
        (5, (0, 1, 2, 3)),
        (7, (0, 2, 3)),
        (9, (0, 1, 2, 3)),
    ]
    assert [len(attempts) for attempts in run.attempts] == [1, 2, 2, 1]
    for number in (0, 3):
        pid, num_started, _ = run.values[number]
        assert pid == int((folder / f"{number}-0").read_text())
        assert num_started == 11 + 2  # one void step for each kill
    assert audit(folder / "log", **SAMPLES).repeated >= 3  # ranks that had written before the vote


def test_healing_moves_the_state_once(two_in_turn):
    _, run = two_in_turn
    healed = [(each.replica, each.source, each.step) for each in run.healings]
    assert healed == [(2, 0, 5), (1, 0, 9)]
    for each in run.healings:
        assert STATE_BYTES < each.num_bytes < STATE_BYTES + 1000


def test_kills_at_once_during_healing_and_after_a_commit(tmp_path):
    kills = [
        *[(1, 0, "reduce", 2), (2, 0, "reduce", 2)],  # at once
        *[(3, 0, "give", 4), (1, 1, "take", 0)],  # 3 as it sends to 2, 1 as it takes from 0
        (0, 0, "step", 8),  # it has the vote's result, and not the step
    ]
    back = {(1, 1): 4, (2, 1): 4, (1, 2): 6, (3, 1): 6, (0, 1): 9}
    run = run_until_back(4, (tmp_path, 11, kills, back, "torch"), back)
    require_serial(run, tmp_path, 11, "torch")
    assert [len(attempts) for attempts in run.attempts] == [2, 3, 2, 2]
    assert {each.replica for each in run.healings} == {0, 1, 2, 3}


def test_the_last_living_replica_goes_on(tmp_path):
    kills = [(0, 0, "reduce", 2), (1, 0, "begin", 3)]
    run = run_replicas(train, 3, (tmp_path, 5, kills), restarts=0)
    assert run.values[:2] == [None, None]
    require_serial(run, tmp_path, 5)
    assert members(run)[0::2] == [(0, (0, 1, 2)), (3, (2,))]


def test_no_replica_left(tmp_path):
    kills = [(0, 0, "reduce", 2), (1, 0, "reduce", 2)]
    with pytest.raises(NoReplicaLeft, match="after 2 committed steps"):
        run_replicas(train, 2, (tmp_path, 5, kills))


def test_an_error_of_a_state_dict_is_not_taken_for_a_dead_member(tmp_path):
    back, kills = {(1, 1): 4}, [(1, 0, "reduce", 2), (0, 0, "raise", 4)]
    with pytest.raises(NoReplicaLeft) as caught:
        run_until_back(2, (tmp_path, 5, kills, back), back)
    assert caught.value.__cause__.exception_type == "RuntimeError"


def raises(replica):
    raise ZeroDivisionError(replica.number)


def test_an_error_of_the_program_is_the_cause():
    with pytest.raises(NoReplicaLeft) as caught:
        run_replicas(raises, 2, restarts=0)
    assert isinstance(caught.value.__cause__, RankError)
    assert caught.value.__cause__.exception_type == "ZeroDivisionError"


def train_without_state(replica):
    replica.begin_step()


def test_nothing_to_heal():
    with pytest.raises(NoReplicaLeft, match="replica.register_state"):
        run_replicas(train_without_state, 1, restarts=0)


def test_a_frozen_replica_is_left_behind_and_heals_when_it_goes_on(tmp_path):
    def unfreeze():
        while not (tmp_path / "at-4").exists():
            time.sleep(0.01)
        os.kill(int((tmp_path / "1-0").read_text()), signal.SIGCONT)

    thread = threading.Thread(target=unfreeze)
    thread.start()
    kills, back = [(1, 0, "freeze", 2)], {1: 4}
    run = run_until_back(3, (tmp_path, 7, kills), back)
    thread.join()
    require_serial(run, tmp_path, 7)
    assert members(run) == [(0, (0, 1, 2)), (2, (0, 2)), (4, (0, 1, 2))]
    assert [(each.replica, each.source, each.step) for each in run.healings] == [(1, 0, 4)]
    assert [len(attempts) for attempts in run.attempts] == [1, 1, 1]
    assert run.values[1][0] == int((tmp_path / "1-0").read_text())
    assert seconds_lost([(commit.at_s, commit.step) for commit in run.commits]) > 0.3


def test_the_job_ends_without_a_replica_that_stays_frozen(tmp_path):
    run = run_replicas(train, 3, (tmp_path, 4, [(1, 0, "freeze", 2)]))
    require_serial(run, tmp_path, 4)
    assert run.values[1] is None
    assert isinstance(run.attempts[1][0].error, RankError)  # killed, and no RunTimeout


@pytest.fixture
def coordinator():
    coordinator = Coordinator(1, patience_s=60)
    yield coordinator
    coordinator.close()


def started(coordinator):
    """A new start of replica 0, in this process."""
    connection = Client(coordinator.address, authkey=coordinator.key)
    connection.send(0)
    connection.send(("ask", 0))
    return HeartbeatSender(coordinator.monitor.address, 0, BEAT_S), connection


def test_a_vote_of_a_process_that_was_replaced_does_not_count(coordinator):
    old_heart, old = started(coordinator)
    assert old.recv().number == 1
    new_heart, new = started(coordinator)
    assert new.recv().number == 2
    old.send(("vote", True))
    with pytest.raises(EOFError):
        old.recv()
    assert coordinator.commits == []
    new.send(("vote", True))
    assert new.recv() and len(coordinator.commits) == 1
    old_heart.close(), new_heart.close()


def test_a_silent_client_holds_up_nobody(coordinator):
    found = []
    with socket.create_connection(coordinator.address):
        thread = threading.Thread(target=lambda: found.append(started(coordinator)), daemon=True)
        thread.start()
        thread.join(20)
    assert found[0][1].recv().members == (0,)
    found[0][0].close()
