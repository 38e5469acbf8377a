"""Run.load of folders that somebody has damaged: what is wrong is named, in short, and at once."""

import json
import re

import pytest
import torch

from labkit import Run, run, viz


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


ROW = ("timeline", "operations", 0)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("timeline", "start_s"), "x", "start_s: 'x' is no float"),
        (("timeline", "sites"), [], "IndexError"),
        (("timeline", "fields", 1), "sort", "sort"),
        (("timeline", "regions", 0), [1], "name: 1 is no str"),
        ((*ROW, 1), None, "kind: None is no str"),
        (("stage",), "gone", "stage: 'gone'"),
        (("world_size",), "2", "world_size: '2' is no int"),
        (("rank",), -1, "-1 is no rank of 2"),
        (("memory",), [0, None], "memory: None"),
        (("lateness",), {"num_messages": "2"}, "num_messages: '2'"),
        (("colour",), "red", "colour"),
    ],
)
def test_what_is_wrong_in_a_record_is_said(folder, place, value, words):
    change(folder / "attempt-0" / "rank-0.json", place, value)
    assert re.search(f"rank-0.json cannot be read: .*{words}", opens_or_explains(folder))


@pytest.mark.parametrize("options", [{}, {"partial": True}])
@pytest.mark.parametrize("text", ["", "{}", "[]", "[" * 200_000])
def test_json_that_is_none_of_labkits_is_named(folder, text, options):
    (folder / "attempt-0" / "rank-0.json").write_text(text)
    assert "rank-0.json cannot be read" in opens_or_explains(folder, **options)


@pytest.mark.parametrize(
    "text",
    [
        "3",
        '{"format": 3}',
        '{"format": 3, "text": 3}',
        '{"format": 3, "text": "it died", "consequences": {"x": "it waited"}}',
    ],
)
def test_a_damaged_verdict_is_named(folder, text):
    (folder / "attempt-0" / "verdict-of-host-0.json").write_text(text)
    assert "verdict-of-host-0.json cannot be read" in opens_or_explains(folder)


@pytest.mark.parametrize("kind", ["json", "value", "log"])
def test_a_missing_file_is_named(folder, kind):
    (folder / "attempt-0" / f"rank-0.{kind}").unlink()
    with pytest.raises(ValueError, match=r"rank-0.(value|log)|missing here: 0\."):
        Run.load(folder)


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


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "gone"])
def test_a_name_of_nothing_holds_no_run(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="holds no run"):
        Run.load(tmp_path / name)
