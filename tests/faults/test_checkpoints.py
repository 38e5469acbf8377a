"""Checkpoints that cannot lie: whatever ends a save, a load gives one saved state, whole."""

import copy
import errno
import os
import shutil
import signal
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from labkit import RankError
from labkit.checkpoint import Checkpointer, Damaged, Disk, DoesNotFit, PreemptionNotice, SaveFailed
from labkit.checkpoint.manifest import finished_saves
from labkit.checkpoint.whole_tensors import read_tensors
from labkit.mesh import Mesh
from labkit.model import GPT, GPTConfig
from labkit.tensor_parallel import parallelize
from labkit.zero import FullyShardedModule, Zero1Optimizer
from tests.an_example import load_example

recovery = load_example("recovery")
run = recovery.run  # on the CPU
job, saves, loaded_state = recovery.small_job, recovery.saves, recovery.loaded_state
KILLS = (12, 13, 14, 15, 16, 30)


@pytest.mark.parametrize("wait", [True, False], ids=["sync", "async"])
def test_after_a_power_cut_at_any_operation_a_load_is_one_whole_state(tmp_path, wait):
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir(), log.mkdir()
    states, num_before = run(saves, 2, (root / "job", log, wait)).values[0]
    arguments = (root, log, states, 2)
    found = run(recovery.loads_after_cuts, 1, arguments, timeout=600).values[0]
    assert {state for after_cut in found for state in after_cut} == {0, 1, 2, 3, 4}
    for least, after_cut in zip(recovery.least_states(num_before), found, strict=True):
        assert min(after_cut) >= least


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """Undisturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    return run(saves, 2, (folder / "job", folder)).values[0][0]


@pytest.fixture(scope="module")
def expected(states):
    """The parameters after each of three steps."""
    names = ("weight", "bias")
    return [None, *({name: state[f"model.{name}"] for name in names} for state in states)]


def resumes(world, folder):
    model, _, checkpointer = job(world, folder, seed=1)
    loaded = checkpointer.load()
    return loaded.step if loaded else 0, model.full_parameters()


def same(parameters, expected):
    return all(torch.equal(p, expected[name]) for name, p in parameters.items())


# The kill comes after a number of writes: rank 1's file, rank 0's, the manifest, the renames.
@pytest.mark.parametrize("rank, kill_after", [(1, 1), (1, 5), (1, 14)] + [(0, k) for k in KILLS])
def test_after_a_kill_at_an_operation_a_load_is_one_whole_state(tmp_path, states, rank, kill_after):
    found, num_saved = recovery.state_after_kill(tmp_path, states, rank, kill_after)
    assert found == num_saved


def dies_after_the_copy(world, folder):
    _, step, checkpointer = job(world, folder)
    step()
    checkpointer.save(1)
    step()
    checkpointer.save(2, wait=False)
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.wait()


def test_after_a_kill_during_an_asynchronous_save_a_load_is_one_whole_state(tmp_path, expected):
    with pytest.raises(RankError):
        run(dies_after_the_copy, 2, (tmp_path / "job",))
    step, parameters = run(resumes, 1, (tmp_path / "job",)).values[0]
    assert step == 1 and same(parameters, expected[1])


def loses_its_writer(world, folder):
    """Kill the process that writes for rank 1 during the second of three saves."""
    _, step, checkpointer = job(world, folder)
    for number in (1, 2, 3):
        step()
        is_killed = number == 2 and world.rank == 1
        if is_killed:
            checkpointer._background._process.send_signal(signal.SIGSTOP)
        checkpointer.save(number, wait=False)
        if is_killed:
            checkpointer._background._process.kill()
        try:
            checkpointer.wait()
        except SaveFailed as error:
            failed = number, str(error)
    return failed, [name[:13] for name in finished_saves(folder)]


def test_a_writer_that_is_killed_fails_its_save_and_the_next_has_a_new_one(tmp_path):
    for (step, text), names in run(loses_its_writer, 2, (tmp_path / "job",)).values:
        assert step == 2 and "rank 1" in text and "-9" in text
        assert names == ["step-00000001", "step-00000003"]


class FullDisk(Disk):
    """A disk that is full from the second save on, and has room again for the fourth."""

    def write(self, file, data):
        if "step-00000002" in str(file.path) or "step-00000003" in str(file.path):
            error = OSError(errno.ENOSPC, "No space left on device")
            with mock.patch("os.write", side_effect=error):
                super().write(file, data)
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
    return errors, sorted(path.name[:13] for path in folder.iterdir())


def test_a_full_disk_fails_the_save_on_every_rank_and_training_goes_on(tmp_path):
    for errors, names in run(goes_on, 2, (tmp_path / "job", True)).values:
        assert errors.keys() == {2, 3}
        for step, text in errors.items():
            for fact in ("rank 1", "No space left", f"{tmp_path / 'job'}/step-0000000{step}"):
                assert fact in text
        assert names == ["step-00000001", "step-00000004"]


def in_a_file(world, folder):
    _, _, checkpointer = job(world, folder)
    with pytest.raises(SaveFailed, match="Not a directory") as sync:
        checkpointer.save(1)
    checkpointer.save(1, wait=False)
    with pytest.raises(SaveFailed, match="Not a directory"):
        checkpointer.save(2)
    return str(sync.value)


def test_a_folder_that_cannot_be_made_is_named_and_async_the_next_save_says_it(tmp_path):
    (tmp_path / "file").write_text("no folder")
    text = run(in_a_file, 2, (tmp_path / "file" / "job",)).values[1]
    assert "rank 0" in text and "rank 1" in text and str(tmp_path / "file") in text


def keeps(world, folder):
    """Return what is kept of eight saves, and of one more after a return to step 4."""
    _, step, checkpointer = job(world, folder, keep_last=2, keep_every=4)
    for number in range(1, 9):
        step()
        checkpointer.save(number)
    checkpointer.wait()
    before = sorted(path.name[:13] for path in folder.iterdir())
    loaded = checkpointer.load(step=4)
    step()
    checkpointer.save(5)
    checkpointer.wait()
    return before, loaded.step, sorted(path.name[:13] for path in folder.iterdir())


def test_the_last_and_the_milestones_stay_and_the_abandoned_future_goes(tmp_path):
    before, loaded, after = run(keeps, 2, (tmp_path / "job",)).values[0]
    assert before == ["step-00000004", "step-00000007", "step-00000008"]
    assert loaded == 4
    assert after == ["step-00000004", "step-00000005"]


def saves_apart(world, folder):
    """Ranks 0 and 1 on one host, rank 2 on another: two folders, no shared storage."""
    model, step, checkpointer = job(world, folder / str(world.rank // 2))
    for number in (1, 2):
        step()
        checkpointer.save(number)
    return model.full_parameters()


def resumes_apart(world, folder):
    model, _, checkpointer = job(world, folder / str(world.rank // 2), seed=1)
    loaded = checkpointer.load()
    return loaded.step, loaded.skipped, model.full_parameters()


def test_hosts_without_shared_storage_have_one_commit_point(tmp_path, expected):
    parameters = run(saves_apart, 3, (tmp_path,)).values[0]
    files = {path.name for path in (tmp_path / "0").glob("*/*")}
    assert files == {"rank-0000.safetensors", "rank-0001.safetensors", "manifest.json"}
    for step, skipped, loaded in run(resumes_apart, 3, (tmp_path,)).values:
        assert step == 2 and not skipped and same(loaded, parameters)
    # The second host has died before its rename.
    newest = tmp_path / "1" / finished_saves(tmp_path / "1")[-1]
    newest.rename(newest.with_name(f"{newest.name}.partial"))
    for step, skipped, _ in run(resumes_apart, 4, (tmp_path,)).values:
        assert step == 1 and [name[:13] for name in skipped] == ["step-00000002"]


def refuses(world, folder):
    """Return the error of a load, and whether the model is unchanged."""
    model, _, checkpointer = job(world, folder, seed=1)
    before = model.full_parameters()
    try:
        checkpointer.load()
    except (Damaged, DoesNotFit) as error:
        assert same(model.full_parameters(), before)
        return type(error), str(error), checkpointer.load(step=1).step
    return None


def two_saves(world, folder):
    _, step, checkpointer = job(world, folder)
    for number in (1, 2):
        step()
        checkpointer.save(number)


@pytest.mark.parametrize("file", ["rank-0000.safetensors", "rank-0001.safetensors"])
def test_a_flipped_byte_is_named_with_file_and_tensor_and_the_one_before_offered(tmp_path, file):
    run(two_saves, 2, (tmp_path,))
    path = tmp_path / finished_saves(tmp_path)[-1] / file
    data = bytearray(path.read_bytes())
    data[data.index(b"}}") + 16] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match=file):
        read_tensors(tmp_path)
    for kind, text, earlier in run(refuses, 2, (tmp_path,)).values:
        assert kind is Damaged and file in text and "model." in text and "load(step=1)" in text
        assert earlier == 1


def test_a_flipped_byte_of_the_manifest_is_noticed(tmp_path):
    run(two_saves, 2, (tmp_path,))
    path = tmp_path / finished_saves(tmp_path)[-1] / "manifest.json"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for kind, text, _ in run(refuses, 2, (tmp_path,)).values:
        assert kind is Damaged and "manifest.json" in text


def test_a_file_that_was_cut_off_makes_a_checkpoint_incomplete(tmp_path):
    run(two_saves, 2, (tmp_path,))
    path = tmp_path / finished_saves(tmp_path)[-1] / "rank-0001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert run(resumes, 2, (tmp_path,)).values[0][0] == 1


def wrong_models(world, folder):
    models = [nn.Linear(7, 6), nn.Sequential(nn.Linear(7, 5)), nn.Linear(7, 5).double()]
    models.append(nn.Linear(7, 5, bias=False))
    found = []
    for model in models:
        with pytest.raises(DoesNotFit) as error:
            Checkpointer(folder, model, None, world).load()
        found.append(str(error.value))
    return found


def test_another_model_is_refused_with_the_name_and_both_shapes_or_dtypes(tmp_path):
    run(two_saves, 2, (tmp_path,))
    shape, name, dtype, more = run(wrong_models, 1, (tmp_path,)).values[0]
    assert "model.weight" in shape and "(6, 7)" in shape and "(5, 7)" in shape
    assert "model.0.weight" in name
    assert "float64" in dtype and "float32" in dtype
    assert "model.bias" in more


def test_the_files_are_those_that_the_library_of_safetensors_reads(tmp_path):
    run(two_saves, 2, (tmp_path,))
    rows = [load_file(path) for path in sorted(tmp_path.glob("step-00000002-*/*.safetensors"))]
    whole = read_tensors(tmp_path, prefix="model.")
    for name, tensor in whole.items():
        parts = [x for row in rows for key, x in row.items() if key.startswith(f"model.{name}")]
        assert torch.equal(torch.cat([part.flatten() for part in parts]).view_as(tensor), tensor)


def copies(world, folder):
    """Steps after an asynchronous save, before it has been written."""
    model, step, checkpointer = job(world, folder)
    step()
    expected = model.full_parameters()
    checkpointer.save(1, wait=False)
    for _ in range(3):
        step()
    checkpointer.wait()
    checkpointer.load()
    return same(model.full_parameters(), expected)


def test_later_steps_do_not_leak_into_an_asynchronous_save(tmp_path):
    assert run(copies, 2, (tmp_path,)).values == [True, True]


def ends_in_time(world, folder):
    """Rank 1 gets SIGTERM in step 3; when all have stopped, and what was before it."""
    before = signal.getsignal(signal.SIGTERM)
    _, step, checkpointer = job(world, folder)
    with PreemptionNotice(world) as notice:
        for number in range(1, 10):
            if world.rank == 1 and number == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            step()
            if notice.received():
                checkpointer.save(number)
                asked = notice.requeue()
                break
    return number, asked, signal.getsignal(signal.SIGTERM) is before


def test_a_signal_to_one_rank_lets_all_save_after_the_same_step_and_requeue(
    tmp_path, monkeypatch, expected
):
    assert run(ends_in_time, 2, (tmp_path / "a",)).values == [(3, False, True)] * 2
    step, parameters = run(resumes, 3, (tmp_path / "a",)).values[0]
    assert step == 3 and same(parameters, expected[3])
    asked = tmp_path / "asked"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert run(ends_in_time, 2, (tmp_path / "b",)).values == [(3, True, True)] * 2
    assert asked.read_text() == "requeue 4711\n"


def restarts(world, folder):
    """A run that forgets to load, in the folder of another."""
    _, step, checkpointer = job(world, folder)
    step()
    with pytest.raises(ValueError, match="step-00000002") as error:
        checkpointer.save(1)
    return str(error.value), [name[:13] for name in finished_saves(folder)]


def test_a_run_that_has_not_loaded_removes_nothing_of_a_later_step(tmp_path):
    run(two_saves, 2, (tmp_path,))
    for text, names in run(restarts, 2, (tmp_path,)).values:
        assert "load()" in text
        assert names == ["step-00000001", "step-00000002"]


def goes_on_after_damage(world, folder):
    _, step, checkpointer = job(world, folder)
    with pytest.raises(Damaged):
        checkpointer.load()
    with pytest.raises(ValueError, match="load"):
        checkpointer.save(1)
    return len(finished_saves(folder))


def test_a_load_that_failed_does_not_let_a_save_remove_later_steps(tmp_path):
    run(two_saves, 2, (tmp_path,))
    (tmp_path / finished_saves(tmp_path)[-1] / "manifest.json").write_text("{}")
    assert run(goes_on_after_damage, 2, (tmp_path,)).values == [2, 2]


def test_where_no_checkpoint_is_complete_a_load_says_what_is_missing(tmp_path):
    run(saves_apart, 3, (tmp_path,))
    shutil.rmtree(tmp_path / "1")  # the other host's storage is not mounted
    with pytest.raises(RankError, match="rank-0002.safetensors"):
        run(resumes_apart, 3, (tmp_path,))


class Milestones:
    """A schedule as torch's MultiStepLR: its keys are numbers, and JSON has texts only."""

    def state_dict(self):
        return {"milestones": {3: 1}}


def keeps_milestones(world, folder):
    _, _, checkpointer = job(world, folder, extra={"schedule": Milestones()})
    with pytest.raises(ValueError, match="schedule.*milestones"):
        checkpointer.save(1)
    return list(folder.iterdir()) if folder.exists() else []


def test_an_extra_state_that_json_would_change_is_refused_before_anything_is_written(tmp_path):
    assert run(keeps_milestones, 2, (tmp_path / "job",)).values == [[], []]


def has_a_cursor_of_its_own(world, folder):
    cursor = Milestones()
    cursor.state_dict = lambda: {"samples": 100 + world.rank}
    _, _, checkpointer = job(world, folder, extra={"cursor": cursor})
    with pytest.raises(SaveFailed, match="rank 1") as error:
        checkpointer.save(1)
    return str(error.value), list(folder.iterdir())


def test_an_extra_state_that_differs_between_ranks_is_refused(tmp_path):
    for text, left in run(has_a_cursor_of_its_own, 2, (tmp_path / "job",)).values:
        assert "extra" in text and not left


def saves_the_same_step_again(world, folder):
    """In place: another state under the same step."""
    model, step, checkpointer = job(world, folder, keep_last=1)
    step()
    checkpointer.save(1)
    step()
    checkpointer.save(1)
    checkpointer.wait()
    expected = model.full_parameters()
    again, _, other = job(world, folder, seed=1)
    other.load()
    return same(again.full_parameters(), expected), len(list(folder.iterdir()))


def test_a_second_save_of_a_step_takes_the_place_of_the_first(tmp_path):
    assert run(saves_the_same_step_again, 2, (tmp_path / "job",)).values == [(True, 1)] * 2


def other_optimizers(world, folder):
    """torch's optimizer of another class, and one without the masters that were saved."""
    module = nn.Linear(7, 5).bfloat16()
    with_masters = Zero1Optimizer(
        module.parameters(), torch.optim.AdamW, world, master_dtype=torch.float32
    )
    module(torch.ones(2, 7).bfloat16()).sum().backward()
    with_masters.step()
    Checkpointer(folder, module, with_masters, world).save(1)
    found = []
    for make in (torch.optim.SGD, torch.optim.AdamW):
        other = nn.Linear(7, 5).bfloat16()
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(DoesNotFit) as error:
            Checkpointer(folder, other, make(other.parameters(), lr=0.1), world).load()
        found.append((str(error.value), same(dict(other.named_parameters()), before)))
    return found


def test_another_optimizer_is_refused_before_anything_changes(tmp_path):
    (other_class, kept), (without, also_kept) = run(other_optimizers, 2, (tmp_path,)).values[0]
    assert "AdamW" in other_class and "SGD" in other_class and kept
    assert "master" in without and also_kept


def misfits(world, folder):
    """Two groups of parameters, and a state that the checkpoint lacks."""
    model = nn.Linear(7, 5)
    groups = [{"params": [p]} for p in model.parameters()]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    with pytest.raises(DoesNotFit, match="groups"):
        Checkpointer(folder, model, optimizer, world).load()
    with pytest.raises(DoesNotFit, match="cursor"):
        Checkpointer(folder, model, None, world, extra={"cursor": Milestones()}).load()


def test_other_groups_and_a_missing_extra_state_are_refused(tmp_path):
    run(two_saves, 2, (tmp_path,))
    run(misfits, 1, (tmp_path,))


def cannot_be_saved(world, folder):
    """Shards in the order of a memory that is not row by row; ZeRO-3 of a tensor-parallel model."""
    strided = nn.Linear(7, 5)
    strided.weight = nn.Parameter(torch.ones(7, 5).t())
    with pytest.raises(ValueError, match="strides"):
        Checkpointer(folder, FullyShardedModule(strided, world), None, world).save(1)
    whole = GPT(GPTConfig(vocab=8, context=4, num_layers=1, hidden=8, num_heads=2))
    mesh = Mesh(world, dp=1, tp=2)
    cut = FullyShardedModule(parallelize(whole, mesh.tp), mesh.dp)
    with pytest.raises(TypeError, match="tensor-parallel"):
        Checkpointer(folder, cut, None, world)


def test_layouts_that_no_other_could_read_are_refused(tmp_path):
    run(cannot_be_saved, 2, (tmp_path,))


def saves_after_a_lost_one(world, folder):
    """An asynchronous save fails; the next one is made, and says so."""
    disk = FullDisk() if world.rank == 1 else Disk()
    _, step, checkpointer = job(world, folder, disk=disk)
    step()
    checkpointer.save(1)
    (folder / "file").touch()
    checkpointer.folder = folder / "file"
    checkpointer.save(4, wait=False)
    checkpointer.folder = folder
    with pytest.raises(SaveFailed, match="Not a directory"):
        checkpointer.save(5)
    checkpointer.wait()
    return [name[:13] for name in finished_saves(folder)]


def test_the_save_after_a_lost_one_is_made_before_the_error_is_raised(tmp_path):
    names = run(saves_after_a_lost_one, 2, (tmp_path / "job",)).values[0]
    assert names == ["step-00000001", "step-00000005"]
