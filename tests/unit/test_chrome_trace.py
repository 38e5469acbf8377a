"""The Chrome trace: what its format asks for, and that it says what the run did."""

import importlib
import itertools
import json
import re
import sys
from collections import defaultdict

import pytest
import torch

from labkit import run, viz
from labkit.collectives import ring_all_reduce
from labkit.comm.operation import Region, Site, Timeline
from tests.an_operation import an_operation


def operation(index, kind, posted_s, waited_s, done_s, **fields):
    return an_operation(
        kind,
        index=index,
        posted_s=posted_s,
        waited_s=waited_s,
        done_s=done_s,
        blocking=False,
        site=Site("labkit/collectives/ring.py", 60, "_all_gather"),
        **fields,
    )


def written(timelines, tmp_path):
    path = viz.chrome_trace.write(timelines, tmp_path / "trace.json")
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def of_phase(events, phase):
    return [event for event in events if event["ph"] == phase]


def nanoseconds(event):
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def by_thread(events):
    threads = defaultdict(list)
    for event in of_phase(events, "X"):
        threads[event["pid"], event["tid"]].append(event)
    return threads


def assert_valid(events):
    """Assert what viewers need: fields, lengths, nesting, names, arrows between existing events."""
    for event in events:
        assert {"name", "ph", "pid", "tid"} <= event.keys()
        assert event["ph"] in "XMsf"
        # Perfetto keeps 0 for the idle task.
        assert event["pid"] > 0 and event["tid"] > 0
        if event["ph"] != "M":
            assert event["ts"] >= 0 and event["cat"]
    assert all(event["dur"] > 0 for event in of_phase(events, "X"))
    for own in by_thread(events).values():
        for one, other in itertools.combinations(own, 2):
            (start, end), (other_start, other_end) = nanoseconds(one), nanoseconds(other)
            is_apart = end <= other_start or other_end <= start
            is_inside = start <= other_start and other_end <= end
            is_around = other_start <= start and end <= other_end
            assert is_apart or is_inside or is_around, (one, other)
    named = {(e["pid"], e["tid"]) for e in of_phase(events, "M") if e["name"] == "thread_name"}
    assert by_thread(events).keys() <= named
    assert_arrows(events)


def assert_arrows(events):
    starts = {event["id"]: event for event in of_phase(events, "s")}
    ends = {event["id"]: event for event in of_phase(events, "f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(of_phase(events, "s"))
    for number, start in starts.items():
        assert start["ts"] <= ends[number]["ts"]
        for arrow in (start, ends[number]):
            (around,) = [
                event
                for event in by_thread(events)[arrow["pid"], arrow["tid"]]
                if nanoseconds(event)[0] <= round(arrow["ts"] * 1000) < nanoseconds(event)[1]
            ]
            assert around["cat"] == ("send" if arrow is start else "recv")


def overlapping():
    """Three all_reduces in flight under one region; a wait inside it; a message; two left open."""
    first = [
        operation(0, "all_reduce", 0.10, 0.55, 0.60, sequence=1),
        operation(1, "all_reduce", 0.20, 0.60, 0.70, sequence=2),
        operation(2, "all_reduce", 0.30, None, 0.50, sequence=3),
        operation(3, "send", 0.72, 0.72, 0.75, peer=1),
        operation(4, "all_reduce", 0.80, 0.85, None, sequence=4),
    ]
    second = [
        operation(0, "recv", 0.1, 0.1, 0.76, peer=0),
        operation(1, "send", 0.78, 0.79, 0.79, peer=0, failed=True),
    ]
    regions = [Region("step", 0.0, None), Region("backward", 0.05, 0.71)]
    return [
        Timeline(first, regions, 0.0, 1.0),
        Timeline(second, [Region("step", 0.0, 0.9)], 0.0, 1.0),
    ]


def test_a_made_up_run_is_valid(tmp_path):
    assert_valid(written(overlapping(), tmp_path))


def test_a_real_ring_is_valid_has_an_arrow_for_every_message_and_needs_no_matplotlib(tmp_path):
    def step(world):
        with world.region("forward"):
            x = torch.ones(1000)
        with world.region("reduce"):
            pending = [world.all_reduce(x, wait=False) for _ in range(3)]
            ring_all_reduce(x, world)
            for one in pending:
                one.wait()
        for name in [name for name in sys.modules if re.match(r"matplotlib|labkit\.viz", name)]:
            del sys.modules[name]
        sys.modules["matplotlib"] = None  # to import it is an error now
        importlib.import_module("labkit.viz.chrome_trace")

    result = run(step, 3)
    events = json.loads(result.to_chrome_trace(tmp_path / "trace.json").read_text())["traceEvents"]
    assert_valid(events)
    assert len(of_phase(events, "s")) == 3 * 4


def test_every_rank_is_a_process_with_its_name(tmp_path):
    events = of_phase(written(overlapping(), tmp_path), "M")
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["rank 0", "rank 1"]
    assert len(names) == 2


def test_waiting_lies_inside_its_region_on_the_main_thread(tmp_path):
    events = written(overlapping(), tmp_path)
    (main, *_) = sorted(thread for thread in by_thread(events) if thread[0] == 1)
    on_main = [event["name"] for event in by_thread(events)[main]]
    assert on_main[:4] == ["step", "backward", "all_reduce #1", "all_reduce #2"]


def test_a_wait_that_outlasts_its_region_is_on_a_thread_of_its_own(tmp_path):
    wait = operation(0, "all_reduce", 0.1, 0.4, 0.7)  # by a thread that autograd started
    events = written([Timeline([wait], [Region("backward", 0.0, 0.5)], 0.0, 1.0)], tmp_path)
    assert_valid(events)


def test_operations_in_flight_together_are_on_threads_of_their_own(tmp_path):
    events = written(overlapping(), tmp_path)
    flight = [e for e in of_phase(events, "X") if e["pid"] == 1 and "payload_bytes" in e["args"]]
    first, second, third = flight[:3]
    assert len({first["tid"], second["tid"], third["tid"]}) == 3
    assert flight[3]["tid"] == first["tid"]


def test_an_operation_carries_what_the_journal_says(tmp_path):
    events = written(overlapping(), tmp_path)
    sends = [e for e in of_phase(events, "X") if e["cat"] == "send" and "shape" in e["args"]]
    assert sends[0]["name"] == "send #1 to rank 1"
    assert (sends[0]["ts"], sends[0]["dur"]) == (720_000, 30_000)
    assert sends[0]["args"] == {
        "index": 3,
        "line": "train.py:12",
        "called_at": "labkit/collectives/ring.py:60",
        "group": [0, 1],
        "sequence": 1,
        "dtype": "float32",
        "shape": [3],
        "payload_bytes": 12,
        "sent_bytes": 12,
        "blocking": False,
        "peer": 1,
    }


def test_what_failed_or_never_ended_says_so(tmp_path):
    events = of_phase(written(overlapping(), tmp_path), "X")
    names = {event["name"] for event in events}
    assert {"send #1 to rank 0 (failed)", "all_reduce #4 (never done)"} <= names
    open_ended = next(e for e in events if e["name"] == "all_reduce #4 (never done)")
    assert nanoseconds(open_ended)[1] == 1_000_000_000


def test_a_message_that_never_came_has_no_arrow(tmp_path):
    sender = Timeline([operation(0, "send", 0.1, 0.1, 0.2, peer=1)], [], 0.0, 1.0)
    receiver = Timeline([operation(0, "recv", 0.1, 0.1, None, peer=0)], [], 0.0, 1.0)
    events = written([sender, receiver], tmp_path)
    assert_valid(events)
    assert of_phase(events, "s") == []


@pytest.mark.parametrize("timelines", [[], [Timeline()]])
def test_a_run_without_operations_is_an_empty_trace(timelines, tmp_path):
    events = written(timelines, tmp_path)
    assert_valid(events)
    assert of_phase(events, "X") == []


def test_operations_of_no_length_at_one_moment_stay_apart(tmp_path):
    instants = [operation(i, "barrier", 0.5, 0.5, 0.5, sequence=i + 1) for i in range(5)]
    assert_valid(written([Timeline(instants, [Region("r", 0.5, 0.5)], 0.0, 1.0)], tmp_path))
