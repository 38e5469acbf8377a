"""Run.load of folders that somebody has damaged: what is wrong is named, in short, and at once."""

import dataclasses
import json
import os
import re
import shutil

import pytest
import torch

from labkit import Run, run, viz
from labkit.comm import Operation
from labkit.hosts.rank_record import Record


def measures(world):
    with world.region("sum"):
        total = world.all_reduce(torch.ones(3))
    return {"total": total, "rank": world.rank}


@pytest.fixture(scope="module")
def original():
    return run(measures, 2)


@pytest.fixture
def folder(original, tmp_path):
    return original.save(tmp_path / "saved")


ROW = ("timeline", "operations", 0)
OF_OPERATION = [each.name for each in dataclasses.fields(Operation)]


def change(path, place, value):
    """Something inside of the JSON, named by the way to it."""
    data = inner = json.loads(path.read_text())
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path.write_text(json.dumps(data))


def opens_or_explains(folder, **options):
    """Run.load, and all that a reader looks at; a refusal has to name the file, in short."""
    try:
        loaded = Run.load(folder, **options)
    except ValueError as error:
        assert re.search(r"(rank-\d|verdict-of-host-0)\.(json|value|log)", str(error)), error
        assert len(str(error)) < 1000
        return str(error)
    viz.timeline(loaded)
    repr((loaded.traffic, loaded.memory, loaded.timeline))
    loaded.to_chrome_trace(folder / "trace.json")
    return ""


DEEP = json.loads("[" * 500 + "]" * 500)


VALUES = [None, "x" * 10_000, [], {}, True, DEEP, 10**400, float("nan"), -1e300]


@pytest.mark.parametrize(
    "place",
    [
        *[(*ROW, number) for number in range(len(OF_OPERATION))],
        *[("timeline", name) for name in ("operations", "regions", "sites", "start_s", "end_s")],
        ("timeline", "sites", 0),
        ("timeline", "sites", 0, 1),
        ("timeline", "regions", 0),
        ("timeline", "regions", 0, 1),
        *[(each.name,) for each in dataclasses.fields(Record) if each.name != "log"],
        ("format",),
    ],
    ids=str,
)
def test_whatever_stands_in_a_record_it_opens_and_shows_or_is_named(folder, place):
    path = folder / "attempt-0" / "rank-0.json"
    for value in VALUES:
        change(path, place, value)
        opens_or_explains(folder)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ((*ROW, 1), None, r"timeline.operations\[0\].kind is None, where text belongs"),
        (("timeline", "start_s"), "x", "timeline.start_s is 'x', where a finite number belongs"),
        (("timeline", "sites"), [], r"timeline.operations\[0\] refers to site 0, and there are 0"),
        (("timeline", "fields", 1), "sort", r"operations\[0\].kind is missing"),
        (("timeline", "regions", 0), [1], r"timeline.regions\[0\].\w+ is (1|missing)"),
        (("device",), [], r"device is \[\], where text belongs"),
        (("device",), "tpu", "device is 'tpu', and not 'cpu' or 'cuda'"),
        (("stage",), "gone", "stage is 'gone', where one of starting, running, returned"),
        (("seconds",), 10**400, r"seconds is 1000.*, where a finite number belongs"),
        (("colour",), "red", "holds 'colour', which this labkit does not know"),
        ((*ROW, 3), [0, 7], r"operations\[0\] names rank 7, which is no rank of 2"),
        (("world_size",), 10**6, "world_size is 1000000, which is no number of ranks"),
    ],
)
def test_what_is_wrong_in_a_record_is_said(folder, place, value, words):
    change(folder / "attempt-0" / "rank-0.json", place, value)
    assert re.search(f"rank-0.json cannot be read: .*{words}", opens_or_explains(folder))


@pytest.mark.parametrize("options", [{}, {"partial": True}])
@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "[" * 200_000, '{"a":' * 100_000])
def test_json_that_is_none_of_labkits_is_named(folder, text, options):
    (folder / "attempt-0" / "rank-0.json").write_text(text)
    assert "rank-0.json cannot be read" in opens_or_explains(folder, **options)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "3",
        '{"format": 3}',
        '{"format": 3, "text": 3}',
        '{"format": 3, "text": "it died", "consequences": {"x": "it waited"}}',
        '{"format": 3, "text": "it died", "site": [1]}',
    ],
)
def test_a_damaged_verdict_is_named(folder, text):
    (folder / "attempt-0" / "verdict-of-host-0.json").write_text(text)
    assert "verdict-of-host-0.json cannot be read" in opens_or_explains(folder)


@pytest.mark.parametrize("kind", ["json", "value", "log"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: None])
def test_what_is_no_file_is_named_and_keeps_nobody_waiting(folder, kind, make):
    path = folder / "attempt-0" / f"rank-0.{kind}"
    path.unlink()
    make(path)
    with pytest.raises(ValueError, match=r"rank-0.(json|value|log) is|missing here: 0\."):
        Run.load(folder)


def test_a_fifo_in_the_place_of_a_verdict_keeps_nobody_waiting(folder):
    os.mkfifo(folder / "attempt-0" / "verdict-of-host-0.json")
    assert "verdict-of-host-0.json is no file" in opens_or_explains(folder)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-10], lambda data: b"", lambda data: bytes(len(data))]
)
def test_of_a_damaged_value_the_rest_opens(original, folder, damage):
    path = folder / "attempt-0" / "rank-0.value"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"rank 0 .*rank-0.value.*partial=True"):
        Run.load(folder)
    loaded = Run.load(folder, partial=True)
    assert loaded.values[0] is None and loaded.values[1]["rank"] == 1
    assert loaded.timeline[0].operations == original.timeline[0].operations


def test_many_missing_ranks_are_counted_and_not_listed(folder):
    for rank in range(2):
        change(folder / "attempt-0" / f"rank-{rank}.json", ("world_size",), 10_000)
    with pytest.raises(ValueError, match="missing here: 2, 3, .*, 9 and 9990 others. Either"):
        Run.load(folder)


@pytest.mark.parametrize("name", ["attempt-\u0663", "attempt-01", "attempt-x", "attempt-1.part"])
def test_folders_and_files_beside_attempts_are_none(folder, name):
    (folder / name).mkdir()
    (folder / "attempt-5").touch()
    (folder / "attempt-0" / "rank-notes.json").touch()
    assert Run.load(folder).world_size == 2


def test_a_copy_of_a_record_under_another_name_is_refused(folder):
    for kind in ("value", "log", "json"):
        shutil.copy(folder / f"attempt-0/rank-0.{kind}", folder / f"attempt-0/rank-7.{kind}")
    with pytest.raises(ValueError, match="rank-7.json .* record of rank 0, under another name"):
        Run.load(folder)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "gone"])
def test_a_name_of_nothing_holds_no_run(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        Run.load(tmp_path / name)
