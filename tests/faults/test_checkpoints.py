"""Checkpoints that cannot lie: whatever ends a save, a load gives one saved state, whole."""

import errno
import random
import shutil
from functools import cache

import pytest
import torch
from torch import nn

from labkit import RankError, run
from labkit.checkpoint import Checkpointer, Damaged, Disk, DoesNotFit, SaveFailed
from labkit.checkpoint.disk import RecordedDisk
from labkit.checkpoint.exchange import read_tensors
from labkit.checkpoint.manifest import named
from labkit.checkpoint.power_cut import Cut, operations
from labkit.data_parallel import DDP
from labkit.zero import FullyShardedModule

STEPS = (1, 2, 3)


def job(world, folder, seed=0, **options):
    """A sharded model with an optimizer, its checkpoints, and a step."""
    torch.manual_seed(seed)
    model = FullyShardedModule(nn.Linear(7, 5), world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        model(torch.ones(2, 7)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step, Checkpointer(folder, model, optimizer, world, **options)


def saves(world, folder, log, wait, kill_after=None):
    """Save after each of three steps; the parameters at each, and when each save had returned."""
    disk = RecordedDisk(log / f"log-{world.rank}", kill_after if world.rank == 1 else None)
    model, step, checkpointer = job(world, folder, keep_last=1, disk=disk)
    expected, num_before = {}, []
    for number in STEPS:
        step()
        expected[number] = model.full_parameters()
        checkpointer.save(number, wait=wait)
        checkpointer.wait()
        world.barrier()
        num_before.append(len(operations(log.glob("log-*"))))
        world.barrier()
    return expected, num_before


def loads(world, root, log, expected, num_before, is_drawn):
    """Load after cuts of the power at every operation: (step, whether lost, whether mixed)."""
    performed = operations(log.glob("log-*"))
    draw = random.Random(0)
    ways = [(False, False), (False, True), (True, False), (draw, draw), (draw, draw)]
    found = []
    for count in range(len(performed) + 1):
        for data, names in draw.sample(ways, 2) if is_drawn else ways:
            left = log / "left"
            Cut(root, performed[:count]).leave(left, data, names)
            model = nn.Linear(7, 5)
            loaded = Checkpointer(left / "job", model, None, world).load()
            step = loaded.step if loaded else 0
            least = sum(count >= number for number in num_before)
            whole = all(
                torch.equal(p, expected[step][name]) for name, p in model.named_parameters()
            ) if step else True
            found.append((step, step < least, not whole))
            shutil.rmtree(left)
    return found


@pytest.mark.parametrize("wait", [True, False], ids=["sync", "async"])
def test_after_a_power_cut_at_any_operation_a_load_is_one_whole_state(tmp_path, wait):
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir(), log.mkdir()
    expected, num_before = run(saves, 2, (root / "job", log, wait)).values[0]
    arguments = (root, log, expected, num_before, True)
    found = run(loads, 1, arguments, timeout=120).values[0]
    assert {step for step, _, _ in found} == {0, *STEPS}
    assert not any(lost or mixed for _, lost, mixed in found)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The parameters after each step, undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return run(saves, 2, (folder / "job", folder, True)).values[0][0]


def resumes(world, folder):
    model, _, checkpointer = job(world, folder, seed=1)
    loaded = checkpointer.load()
    return loaded.step if loaded else 0, model.full_parameters()


def same(parameters, expected):
    return all(torch.equal(p, expected[name]) for name, p in parameters.items())


# A save is 9 operations of rank 1, and 17 of rank 0; these are in the first and in the second.
@pytest.mark.parametrize("wait, kill_after", [(True, k) for k in (1, 4, 6, 8, 11)] + [(False, 3)])
def test_after_a_kill_at_an_operation_a_load_is_one_whole_state(
    tmp_path, expected, wait, kill_after
):
    with pytest.raises(RankError):
        run(saves, 2, (tmp_path / "job", tmp_path, wait, kill_after))
    step, parameters = run(resumes, 3, (tmp_path / "job",)).values[0]
    assert step < 3 and (step == 0 or same(parameters, expected[step]))


class FullDisk(Disk):
    """A disk that is full from the second save on, and has room again for the fourth."""

    def write(self, file, data):
        if "step-00000002" in str(file.path) or "step-00000003" in str(file.path):
            raise OSError(errno.ENOSPC, "No space left on device", str(file.path))
        super().write(file, data)


def goes_on(world, folder, wait):
    """Save four times, while rank 1's disk is full at the second and third."""
    disk = FullDisk() if world.rank == 1 else Disk()
    _, step, checkpointer = job(world, folder, disk=disk, keep_last=5)
    errors = {}
    for number in (1, 2, 3, 4):
        step()
        try:
            checkpointer.save(number, wait=wait)
        except SaveFailed as error:
            errors[number] = str(error)
    checkpointer.wait()
    return errors, sorted(path.name for path in folder.iterdir())


def test_a_full_disk_fails_the_save_on_every_rank_and_training_goes_on(tmp_path):
    for errors, names in run(goes_on, 2, (tmp_path / "job", True)).values:
        assert errors.keys() == {2, 3}
        assert all("rank 1" in text and "No space left" in text for text in errors.values())
        assert [name[:13] for name in names] == ["step-00000001", "step-00000004"]
        assert not any("partial" in name for name in names)
