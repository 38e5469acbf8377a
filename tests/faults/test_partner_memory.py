"""A lost host costs nothing but the steps since the last save in its partner's memory."""

import errno
import os
import shutil
import signal

import pytest
import torch
from torch import nn

from labkit import attempt, elastic, run
from labkit.checkpoint import Checkpointer, SaveFailed
from labkit.checkpoint.manifest import finished_saves
from labkit.elastic import PartnerMemory, load_newest
from labkit.elastic.partner_memory import partners
from labkit.optimizer import AdamW
from labkit.zero import FullyShardedModule

NUM_STEPS, NUM_ROWS = 8, 10


def test_a_partner_is_on_the_next_host_of_the_ring():
    assert partners([0, 0, 1, 1, 2, 2]) == [2, 3, 4, 5, 0, 1]
    assert partners([0, 0, 1, 1, 2]) == [2, 3, 4, 4, 0]
    assert partners([7, 3, 7, 3]) == [1, 0, 3, 2]
    with pytest.raises(ValueError, match="host 5"):
        partners([5, 5, 5])


class HostFails:
    """Fail in the first attempt: some hosts are lost with their memory."""

    def __init__(self, world, folder, is_lost):
        self.world, self.folder, self.is_lost = world, folder, is_lost

    def now(self):
        if self.is_lost:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.world.barrier()
        if self.is_lost:
            os.kill(os.getpid(), signal.SIGKILL)

    def in_the_copy(self, memory, step):
        """When half of each copy of this step is written."""
        write = memory._disk.write

        def torn(file, data):
            is_copy = file.path.parent.name in finished_saves(self.folder)
            if is_copy and f"step-{step:08d}" in file.path.parent.name:
                write(file, data[: len(data) // 2])
                self.now()
            write(file, data)

        memory._disk.write = torn


def trains(world, root, host_of, lost=(), before=None, in_copy=None):
    """Train with ZeRO-3, each step in memory and every fourth on the disk.

    host_of: by attempt, by rank. In the first attempt hosts are lost: before a step, or while a
    step is copied. Returns what was loaded, the parameters, and the bytes sent by each save.
    """
    host = host_of[min(attempt(), len(host_of) - 1)][world.rank]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    model = FullyShardedModule(module, world)
    optimizer = AdamW(model.parameters(), 1e-2)
    memory = PartnerMemory(root / f"host-{host}", model, optimizer, world, host=host)
    checkpointer = Checkpointer(root / "disk", model, optimizer, world)
    fails = HostFails(world, root / f"host-{host}", host in lost)
    if attempt() == 0 and in_copy:
        fails.in_the_copy(memory, in_copy)
    loaded, sent = load_newest(memory, checkpointer), []
    for step in range(loaded.step if loaded else 0, NUM_STEPS):
        if attempt() == 0 and step == before:
            fails.now()
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(NUM_ROWS, 5, generator=draw, dtype=torch.float64)
        optimizer.zero_grad()
        outputs = model(x.tensor_split(world.size)[world.rank])
        ((outputs**2).sum() * world.size / NUM_ROWS).backward()
        optimizer.step()
        sent.append(memory.save(step + 1))
        if step % 4 == 3:
            checkpointer.save(step + 1)
    return loaded, model.full_parameters(), sent


UNEVEN = (0, 1, 1, 2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run, and its folder."""
    root = tmp_path_factory.mktemp("undisturbed")
    return run(trains, 4, (root, [UNEVEN])), root


@pytest.mark.parametrize(
    "host_of, lost, step",
    [
        (UNEVEN, {1}, 6),
        ((0, 1, 2, 3), {0, 2}, 6),
        (UNEVEN, {1, 2}, 4),  # neighbours: from the disk
    ],
)
def test_after_hosts_are_lost_the_job_ends_equal(tmp_path, undisturbed, host_of, lost, step):
    _, expected, _ = undisturbed[0].values[0]
    result = elastic.run(trains, 4, (tmp_path, [host_of], lost, 6))
    for loaded, parameters, _ in result.run.values:
        assert loaded.step == step
        assert all(torch.equal(parameters[name], expected[name]) for name in expected)


def test_the_ranks_that_are_left_go_on_without_the_lost_host(tmp_path, undisturbed):
    _, expected, _ = undisturbed[0].values[0]
    result = elastic.run(trains, 4, (tmp_path, [UNEVEN, (0, 2)], {1}, 6), sizes=[4, 2])
    loaded, parameters, _ = result.run.values[0]
    assert (loaded.step, loaded.world_size) == (6, 4)
    for name in expected:
        torch.testing.assert_close(parameters[name], expected[name], rtol=1e-12, atol=1e-14)


def test_a_copy_that_was_cut_short_does_not_count(tmp_path):
    result = elastic.run(trains, 3, (tmp_path, [(0, 1, 2)], {1}, None, 6))
    loaded = result.run.values[0][0]
    assert loaded.step == 5
    assert [name[:13] for name in loaded.skipped] == ["step-00000006"]


def runs_out_of_memory(world, root):
    """Fill rank 0's host at the copies of steps 2 and 3; return this host's saves after each."""
    folder = root / f"host-{world.rank}"
    memory = PartnerMemory(folder, nn.Linear(2, 2), None, world, host=world.rank)
    write, has = memory._disk.write, []

    def full(file, data):
        if file.path.parent.name in finished_saves(folder) and world.rank == 0 and step in (2, 3):
            raise OSError(errno.ENOSPC, "full", file.path)
        write(file, data)

    memory._disk.write = full
    for step in range(1, 5):
        try:
            memory.save(step)
        except SaveFailed:
            has.append("failed")
        has.append([int(name[5:13]) for name in finished_saves(folder)])
        world.barrier()
    return has, len(list(folder.glob("step-*/rank-*")))


def test_a_save_without_its_copies_pushes_out_none_that_has_them(tmp_path):
    for found in run(runs_out_of_memory, 2, (tmp_path,)).values:
        assert found == ([[1], "failed", [1], "failed", [1], [1, 4]], 4)


def test_each_rank_sends_its_file_and_nothing_more(undisturbed):
    result, root = undisturbed
    (name,) = {path.name for path in root.glob("host-*/step-00000008-*")}
    folders = [root / f"host-{host}" / name for host in range(3)]
    files = [{path.name for path in folder.glob("rank-*")} for folder in folders]
    assert files == [
        {f"rank-000{rank}.safetensors" for rank in ranks}
        for ranks in ({0, 3}, {0, 1, 2}, {1, 2, 3})
    ]
    for rank, (_, _, sent) in enumerate(result.values):
        nbytes = (folders[UNEVEN[rank]] / f"rank-000{rank}.safetensors").stat().st_size
        operations = result.timeline[rank].operations
        copies = [each for each in operations if each.label == "shards to the partner host"]
        assert len(sent) == len(copies) == NUM_STEPS
        assert sent[-1] == copies[-1].sent_bytes == nbytes


def chooses(world, root):
    """Return what load_newest takes; in each save the parameters are the save's number."""
    model = nn.Linear(2, 2)
    folder = root / f"host-{world.rank}"

    def saved(target, step, number):
        nn.init.constant_(model.weight, number)
        target.save(step)

    def loaded():
        memory = PartnerMemory(folder, model, None, world, host=world.rank)
        disk = Checkpointer(root / f"disk-{world.rank}", model, None, world)
        found = load_newest(memory, disk)
        return memory, disk, found and (found.step, model.weight[0, 0].item())

    def loses_a_file(where, step):
        """Lose rank 1's file, on both hosts."""
        world.barrier()
        for path in where.glob(f"step-{step:08d}-*/rank-0001.safetensors"):
            path.unlink()
        world.barrier()

    memory, disk, nothing = loaded()
    saved(memory, 10, 1), saved(disk, 10, 2), saved(memory, 12, 3)
    memory, disk, from_memory = loaded()
    saved(disk, 15, 4), saved(memory, 16, 5)
    loses_a_file(folder, 16)
    memory, disk, from_disk = loaded()
    saved(memory, 16, 6)  # the one of before is removed
    saved(disk, 20, 7)
    loses_a_file(root / f"disk-{world.rank}", 20)
    memory, disk, again_from_memory = loaded()
    saved(disk, 18, 8)
    loses_a_file(folder, 12), loses_a_file(folder, 16)
    memory = PartnerMemory(folder, model, None, world, host=world.rank)
    assert memory.load() is None
    saved(memory, 14, 9)  # without load_newest
    return nothing, from_memory, from_disk, again_from_memory, loaded()[2]


def test_the_newest_of_memory_and_disk_is_loaded(tmp_path):
    for found in run(chooses, 2, (tmp_path,)).values:
        assert found == (None, (12, 3), (15, 4), (16, 6), (18, 8))
