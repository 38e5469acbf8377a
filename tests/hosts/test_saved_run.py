"""A Run as a folder: it opens with everything that was saved, and opening runs nothing from it."""

import dataclasses
import errno
import json
import pickle
import shutil

import pytest
import torch

from labkit import FatTree, Link, Run, Topology, run
from labkit.collectives import ring_all_reduce
from labkit.hosts.rank_record import Record, UntrustedValue


class Point:
    """An object that only pickle restores."""

    def __init__(self, x):
        self.x = x


class Touch:
    """As a pickle, it makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def summed(x, world):
    return world.all_reduce(x)


def measures(world):
    print(f"rank {world.rank} was here")
    with world.region("warm up"):
        total = summed(torch.ones(3) * world.rank, world)
    parts = world.all_to_all(torch.arange(2 * world.size))
    return {"total": total, "parts": parts, "names": ["a", None, 1.5], "rank": world.rank}


@pytest.fixture(scope="module")
def original():
    return run(measures, 2)


@pytest.fixture
def folder(original, tmp_path):
    return original.save(tmp_path / "saved")


def edit(path, **changes):
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, **changes}))


def test_what_was_saved_comes_back(original, folder):
    loaded = Run.load(folder)
    for name in ("world_size", "device", "logs", "traffic", "memory", "seconds", "ready_seconds"):
        assert getattr(loaded, name) == getattr(original, name), name
    for rank in range(2):
        assert loaded.timeline[rank].operations == original.timeline[rank].operations
        assert loaded.timeline[rank].operations[0].callers, "its callers did not come along"
        assert loaded.timeline[rank].regions == original.timeline[rank].regions
        assert loaded.timeline[rank].end_s == original.timeline[rank].end_s
        value, expected = loaded.values[rank], original.values[rank]
        assert torch.equal(value.pop("total"), expected["total"])
        assert torch.equal(value.pop("parts"), expected["parts"])
        assert value == {"names": ["a", None, 1.5], "rank": rank}


@pytest.mark.parametrize(
    "topology",
    [
        Topology(hosts=1, ranks_per_host=2, fast=Link(1e9, 1e-3)),
        FatTree(hosts=2, hosts_per_leaf=1, leaves_per_pod=2, slow=Link(1e9, 1e-3)).degraded(
            "leaf 1", 0.5
        ),
    ],
)
def test_links_and_late_messages_come_back_too(tmp_path, topology):
    throttled = run(lambda world: ring_all_reduce(torch.ones(3), world), 2, topology=topology)
    loaded = Run.load(throttled.save(tmp_path / "throttled"))
    assert loaded.topology == topology
    assert loaded.lateness == throttled.lateness
    assert [each.num_messages for each in loaded.lateness] == [2, 2]


def test_a_loaded_run_can_be_drawn(folder, tmp_path):
    trace = Run.load(folder).to_chrome_trace(tmp_path / "trace.json")
    assert "all_reduce" in trace.read_text()


def test_a_folder_that_is_taken_is_not_written_to(original, folder):
    with pytest.raises(FileExistsError, match="choose a name"):
        original.save(folder)


class Unpicklable:
    """Nobody can store it."""

    def __reduce__(self):
        raise RuntimeError("it holds a socket")


def test_a_value_that_cannot_be_stored_is_named_and_the_name_stays_free(original, tmp_path):
    folder = tmp_path / "new" / "saved"
    broken = dataclasses.replace(original, values=[original.values[0], Unpicklable()])
    with pytest.raises(TypeError, match=r"rank 1 returned, a Unpicklable, .*socket.*values\[1\]"):
        broken.save(folder)
    assert list(tmp_path.iterdir()) == []
    broken.values[1] = None
    assert Run.load(broken.save(folder)).values[1] is None


def test_a_disk_that_fills_up_leaves_nothing_behind(original, tmp_path, monkeypatch):
    write = Record.write

    def writes_one(record, folder):
        if record.rank == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(record, folder)

    monkeypatch.setattr(Record, "write", writes_one)
    (tmp_path / "empty").mkdir()
    for name in ("new/saved", "empty"):
        with pytest.raises(OSError, match="No space left"):
            original.save(tmp_path / name)
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


@pytest.mark.parametrize("name", ["file/x", "x" * 300, "a\0b"])
def test_a_folder_that_cannot_be_made_is_named(original, tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot be saved there"):
        original.save(tmp_path / name)
    assert list(tmp_path.rglob("*")) == [tmp_path / "file"]


@pytest.mark.parametrize("path", [3, None, b"x", ["runs/first"]])
def test_what_is_no_name_is_neither_saved_to_nor_loaded(original, path):
    for use in (original.save, Run.load):
        with pytest.raises(TypeError, match="path="):
            use(path)


def test_an_object_of_a_class_needs_consent(tmp_path):
    folder = run(lambda world: Point(world.rank), 2).save(tmp_path / "points")
    with pytest.raises(UntrustedValue, match=r"rank 0 .*trust=True"):
        Run.load(folder)
    assert Run.load(folder, partial=True).values == [None, None]
    assert [point.x for point in Run.load(folder, trust=True).values] == [0, 1]


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("claimed", ["tensors", "pickle"])
def test_a_strangers_folder_runs_nothing_without_consent(folder, tmp_path, claimed):
    marker = tmp_path / "it-ran"
    evil = pickle.dumps(Touch(marker))
    (folder / "attempt-0" / "rank-1.value").write_bytes(evil)
    edit(folder / "attempt-0" / "rank-1.json", value=len(evil), value_kind=claimed)
    with pytest.raises(ValueError, match="rank 1"):
        Run.load(folder)
    assert not marker.exists()
    if claimed == "pickle":
        assert Run.load(folder, partial=True).values[1] is None
    assert not marker.exists()


def test_the_same_folder_would_run_it_with_consent(folder, tmp_path):
    marker = tmp_path / "it-ran"
    evil = pickle.dumps(Touch(marker))
    (folder / "attempt-0" / "rank-1.value").write_bytes(evil)
    edit(folder / "attempt-0" / "rank-1.json", value=len(evil), value_kind="pickle")
    Run.load(folder, trust=True).values[1].close()
    assert marker.exists(), "the two tests above prove nothing: this pickle does no harm"


def test_missing_ranks_are_named(folder, tmp_path):
    (folder / "attempt-0" / "rank-1.json").unlink()
    with pytest.raises(ValueError, match="missing here: 1"):
        Run.load(folder)
    partial = Run.load(folder, partial=True)
    assert partial.values[0]["rank"] == 0 and partial.values[1] is None
    assert partial.timeline[1].operations == []


@pytest.mark.parametrize("num_hosts", [0, 1, 2])
def test_ranks_of_a_job_that_was_ended_are_not_said_to_be_on_a_host_that_never_was(
    folder, num_hosts
):
    (folder / "attempt-0" / "rank-0.json").unlink()
    edit(folder / "attempt-0" / "rank-1.json", num_hosts=num_hosts)
    with pytest.raises(ValueError, match="missing here: 0. .*ended") as caught:
        Run.load(folder)
    assert ("another host has them" in str(caught.value)) == (num_hosts != 1)


def test_folders_of_several_hosts_make_one_run(folder, tmp_path):
    other = tmp_path / "other" / "attempt-0"
    other.mkdir(parents=True)
    for path in (folder / "attempt-0").glob("rank-1.*"):
        shutil.move(path, other)
    assert [value["rank"] for value in Run.load(folder, other.parent).values] == [0, 1]


def test_the_last_attempt_counts(folder):
    shutil.copytree(folder / "attempt-0", folder / "attempt-10")
    for path in (folder / "attempt-10").glob("*.json"):
        edit(path, seconds=77.0)
    shutil.copytree(folder / "attempt-0", folder / "attempt-9")
    assert Run.load(folder).seconds == 77.0


def test_clocks_of_hosts_are_laid_over_each_other(original, folder):
    path = folder / "attempt-0" / "rank-1.json"
    timeline = json.loads(path.read_text())["timeline"]
    late = 1000.0  # this host was started so much earlier than the other
    times = [timeline["fields"].index(name) for name in ("posted_s", "waited_s", "done_s")]
    for row in timeline["operations"]:
        for column in times:
            row[column] = None if row[column] is None else row[column] + late
    timeline["regions"] = [[name, a + late, b + late] for name, a, b in timeline["regions"]]
    timeline["start_s"] += late
    timeline["end_s"] += late
    edit(path, timeline=timeline, clock_s=late)
    loaded, expected = Run.load(folder).timeline[1], original.timeline[1]
    assert loaded.operations[0].done_s == pytest.approx(expected.operations[0].done_s)
    assert loaded.regions[0].start_s == pytest.approx(expected.regions[0].start_s)


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        ("rank-0.json", lambda data: data[: len(data) // 2], "rank-0.json .*cut"),
        (
            "rank-0.value",
            lambda data: data[:-10],
            "rank 0 .* rank-0.value is missing, cut",
        ),
        ("rank-0.json", lambda data: data.replace(b'"format": 3', b'"format": 1'), "format 1"),
        ("rank-0.json", lambda data: b"[1, 2]", "cannot be read"),
        ("rank-0.json", lambda data: data.replace(b'"fields"', b'"felds"'), "cannot be read"),
        (
            "rank-0.json",
            lambda data: data.replace(b'"world_size": 2', b'"world_size": 3'),
            "of one",
        ),
    ],
)
def test_a_damaged_file_is_named(folder, file, damage, words):
    path = folder / "attempt-0" / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=words):
        Run.load(folder)


def test_a_folder_without_a_run_is_not_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        Run.load(tmp_path)
    with pytest.raises(ValueError, match="needs the folder"):
        Run.load()
