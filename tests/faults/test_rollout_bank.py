"""The bank of rollouts: each appended one is used once by the parameters that are kept."""

import itertools
import os
import random
import shutil

import pytest
import torch
from torch import nn

from labkit import run
from labkit.checkpoint import Checkpointer, Rollout, RolloutBank
from labkit.checkpoint.disk import RecordedDisk
from labkit.checkpoint.power_cut import PowerCut, operations


class Learned(nn.Module):
    """A policy that counts how often it has learned from each rollout."""

    def __init__(self):
        super().__init__()
        self.times = nn.Parameter(torch.zeros(200), requires_grad=False)

    def learn(self, rollouts):
        for rollout in rollouts:
            self.times[int(rollout.payload)] += 1


def trains(world, folder, log, num_steps):
    """Append three rollouts a step, learn from two, save every second step."""
    disk = RecordedDisk(log)
    bank, policy = RolloutBank(folder / "rollouts.log", disk=disk), Learned()
    checkpointer = Checkpointer(
        folder / "job", policy, extra={"bank": bank}, group=world, disk=disk
    )
    loaded = checkpointer.load()
    for step in range(loaded.step if loaded else 0, num_steps):
        first = len(bank)
        bank.append([Rollout(step, str(number).encode()) for number in range(first, first + 3)])
        policy.learn(bank.take(2))
        if step % 2:
            checkpointer.save(step + 1)
            checkpointer.wait()
    return policy.times, len(bank), bank.consumed


def after_cuts(world, root, log):
    """Cut the power behind each operation and go on: how often each rollout was learned from."""
    performed = operations([log])
    draw, found = random.Random(0), []
    for count in range(len(performed) + 1):
        left = log.with_name("left")
        data, names = draw.choice([(False, False), (True, True), (draw, draw), (draw, draw)])
        PowerCut(root, performed[:count]).write_survivors(left, data, names)
        (left / "bank").mkdir(exist_ok=True)
        times, length, consumed = trains(world, left / "bank", log.with_name("second"), 6)
        found.append((times[:consumed].tolist(), times[consumed:].sum().item(), length))
        shutil.rmtree(left)
    return found


def test_after_a_power_cut_at_any_operation_each_rollout_is_used_once(tmp_path):
    root, log = tmp_path / "root", tmp_path / "log"
    (root).mkdir()
    run(trains, 1, (root / "bank", log, 6))
    found = run(after_cuts, 1, (root, log), timeout=600).values[0]
    assert len(found) > 60
    for times, of_others, length in found:
        assert set(times) == {1.0} and not of_others
        assert len(times) == 12 and length >= 18


@pytest.fixture
def bank(tmp_path):
    bank = RolloutBank(tmp_path / "rollouts.log")
    bank.append([Rollout(1, b"one"), Rollout(1, b"two")])
    bank.append([Rollout(2, b"three")])
    return bank


def test_rollouts_come_in_order_with_the_version_that_generated_them(bank):
    assert bank.take(2) == [Rollout(1, b"one"), Rollout(1, b"two")]
    assert (len(bank), bank.num_left) == (3, 1)
    assert bank.take(5) == [Rollout(2, b"three")]
    assert bank.take(1) == []


def test_an_append_that_was_torn_at_any_byte_is_cut_off_and_the_log_goes_on(bank):
    whole = bank.path.read_bytes()
    bank.append([Rollout(3, b"four"), Rollout(3, b"five")])
    torn = bank.path.read_bytes()
    for length in range(len(whole), len(torn)):
        for rest in (b"", bytes(len(torn) - length)):  # cut, or as zeros: both happen
            bank.path.write_bytes(torn[:length] + rest)
            again = RolloutBank(bank.path)
            assert len(again) == 3 and bank.path.read_bytes() == whole
            again.append([Rollout(4, b"six")])
            assert RolloutBank(bank.path).take(9)[-1] == Rollout(4, b"six")


@pytest.mark.parametrize("byte", range(30))
def test_a_flipped_byte_with_records_behind_it_is_named_and_nothing_is_cut_off(bank, byte):
    data = bytearray(bank.path.read_bytes())
    data[byte] ^= 1
    bank.path.write_bytes(data)
    with pytest.raises(ValueError, match="byte 0"):
        RolloutBank(bank.path)
    assert bank.path.read_bytes() == data


def test_a_record_that_a_killed_process_did_not_sync_is_synced_before_it_counts(tmp_path):
    path, log = tmp_path / "rollouts.log", tmp_path / "operations"
    RolloutBank(path).append([Rollout(0, b"0")])
    assert len(RolloutBank(path, disk=RecordedDisk(log))) == 1
    assert [each.kind for each in operations([log]) if each.path == path][-1] == "sync"


def test_an_append_of_nothing_writes_nothing(bank):
    before = bank.path.read_bytes()
    bank.append([])
    assert bank.path.read_bytes() == before
    bank.append([Rollout(3, b"four")])
    assert len(RolloutBank(bank.path)) == 4


def test_the_log_of_another_job_is_refused(bank):
    with pytest.raises(ValueError, match="consumed 4 rollouts.*has 3"):
        bank.load_state_dict({"consumed": 4})


def test_an_append_that_fails_leaves_the_log_as_it_was(bank, monkeypatch):
    before = bank.path.read_bytes()
    write, calls = os.write, itertools.count()

    def full(file, data):
        if next(calls):
            raise OSError(28, "No space left on device")
        return write(file, data[:9])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        bank.append([Rollout(3, b"four")])
    monkeypatch.undo()
    assert bank.path.read_bytes() == before
    bank.append([Rollout(3, b"five")])
    assert RolloutBank(bank.path).take(9)[-1] == Rollout(3, b"five")
