"""Traces that are broken, hostile or too large end in a report, or in one line with their name."""

import gzip
import json
import math

import pytest
from typer.testing import CliRunner

from labkit import profile
from labkit.cli.commands import app
from scripts import fuzz

PACKED = gzip.compress(b'{"traceEvents": []}', mtime=0)
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 0, "dur": 10}


def written(folder, document):
    path = folder / "rank0.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize(
    "change",
    [
        *({"ts": each} for each in (None, "abc", math.nan, math.inf, [], {}, True, 1e300, 10**400)),
        *({"dur": each} for each in (None, -1, math.nan, -math.inf, "x", [1], 1e18)),
        *({"name": each} for each in (5, [], {})),
        *({"cat": 5}, {"args": []}, {"args": "x"}, {"tid": []}, {"pid": {}}),
    ],
)
def test_an_event_with_a_field_that_is_none_is_left_out_and_counted(tmp_path, change):
    path = written(tmp_path, {"traceEvents": [KERNEL, KERNEL | change, {"ph": "X"}, 7]})
    trace = profile.read([path])
    assert len(trace.ranks[0].work) == 1
    (note,) = [note for note in trace.notes if "malformed" in note]
    assert "(3)" in note
    assert "rank0.json" in note


@pytest.mark.parametrize("change", [{"name": None}, {"cat": None}, {"args": None}, {"tid": None}])
def test_an_event_without_name_category_or_arguments_is_no_malformed_one(tmp_path, change):
    assert profile.read([written(tmp_path, {"traceEvents": [KERNEL, KERNEL | change]})])
    assert not [n for n in profile.read([tmp_path]).notes if "malformed" in n]


@pytest.mark.parametrize("odd", [None, -1, "x", [], {}, math.nan, 10**30, [[[]]], [[-1, "x"]], [5]])
def test_arguments_that_are_odd_are_as_if_they_were_not_there(tmp_path, odd):
    names = [
        *("correlation", "External id", "stream", "Input Dims", "Input type", "In msg nelems"),
        *("dtype", "Collective name", "Process Group Name", "Process Group Ranks", "Src Rank"),
        *("Dst Rank", "Concrete Inputs"),
    ]
    reduced = KERNEL | {"name": "ncclDevKernel_AllReduce(x)", "args": dict.fromkeys(names, odd)}
    operator = KERNEL | {"name": "aten::mm", "cat": "cpu_op", "args": reduced["args"]}
    sent = operator | {"name": "gloo:send"}
    for events in ([KERNEL, reduced, operator], [operator, sent]):
        trace = profile.read([written(tmp_path, {"traceEvents": events})])
        assert trace.ranks[0].exchanges[0].nbytes >= 0
        json.dumps(profile.report(trace).to_json())


@pytest.mark.parametrize(
    "head",
    [
        *({"distributedInfo": each} for each in ([1], "x", 5)),
        *({"distributedInfo": {"rank": each}} for each in ("<script>", -1, 1.5, [], 2**40, True)),
        *({"distributedInfo": {"world_size": each}} for each in ("x", -1, {}, math.inf)),
        *({"baseTimeNanoseconds": each} for each in ("x", -5, [], math.nan, 10**30)),
        *({"traceEvents": each} for each in (None, {}, "x", 5)),
    ],
)
def test_a_document_that_is_none_is_one_line_with_its_name(tmp_path, head):
    path = written(tmp_path, {"traceEvents": [KERNEL]} | head)
    with pytest.raises(ValueError, match="rank0.json") as error:
        profile.read([path])
    assert "\n" not in str(error.value)
    ended = CliRunner().invoke(app, ["profile", str(path)])
    assert ended.exit_code == 2
    assert ended.output.count("\n") == 1


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\xff\xfe\x00", b'{"traceEvents": [', b"\x1f\x8b", b"\x1f\x8bgarbage"),
        b'{"traceEvents": ' + b"[" * 100_000,
        b'{"traceEvents": ' + b'{"a":' * 100_000,
        *(PACKED[:-9], PACKED + b"garbage"),
        b'{"traceEvents": [], "x": "\xe9"}',
        b'{"traceEvents": [{"ts": ' + b"9" * 5000 + b"}]}",
    ],
    ids=range(11),
)
def test_bytes_that_are_no_trace_are_one_line_with_their_name(tmp_path, content):
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="rank0.json.gz") as error:
        profile.read([path])
    assert "\n" not in str(error.value)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 10_000_000))
    with pytest.raises(ValueError, match="rank0.json.gz has more than 1,000,000 bytes"):
        profile.read([path], max_bytes=1_000_000)
    ended = CliRunner().invoke(app, ["profile", str(path), "--max-bytes", "1000"])
    assert (ended.exit_code, ended.output.count("\n")) == (2, 1)


def test_names_of_kernels_reach_the_terminal_without_what_it_would_obey(tmp_path):
    name = "peer\x1b[31m\ud800_kernel"
    trace = profile.read([written(tmp_path, {"traceEvents": [KERNEL, KERNEL | {"name": name}]})])
    words = "\n".join(profile.report(trace).words())
    assert "\x1b" not in words
    assert words.encode()


def test_mutated_traces_end_in_a_report_or_in_one_line():
    """A sample of `python -m scripts.fuzz traces`."""
    ended, wrong = fuzz.traces(60, seed=1)
    assert wrong == []
    assert ended.total() == 60
    assert min(ended["report"], ended["one line"]) >= 5
