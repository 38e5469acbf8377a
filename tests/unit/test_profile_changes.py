"""Two traces side by side, and one with something changed: comparison, other buckets, the page."""

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import labkit
from labkit import profile
from labkit.cli.commands import app
from labkit.comm import Region, Timeline
from labkit.doctor.verdict import Stage
from labkit.hosts.rank_record import Record
from labkit.profile import what_if
from labkit.profile.step_trace import Exchange, RankTrace, Trace, Work
from tests.an_operation import an_operation

TRACES = Path(__file__).parents[1] / "data" / "traces"


def training(slow=(), num_ranks=4, num_steps=3, marks_steps=True, transfer_s=0.002):
    """Steps of 5 ms of data, 60 ms of computing, 5 ms for the host, and an all-reduce.

    slow: (rank, kind) -> seconds more of it per step.
    """
    slow = dict(slow)
    now_s = dict.fromkeys(range(num_ranks), 0.0)
    ranks = {rank: RankTrace(rank, 0.0, 0.0, [], []) for rank in now_s}
    for turn in range(num_steps):
        begin_s = dict(now_s)
        for rank, own in ranks.items():
            for kind, seconds in (("data", 0.005), ("compute", 0.06), ("host", 0.005)):
                until_s = now_s[rank] + seconds + slow.get((rank, kind), 0.0)
                own.work.extend([Work(now_s[rank], until_s, kind)] if kind != "host" else [])
                now_s[rank] = until_s
        done_s = max(now_s.values()) + transfer_s
        for rank, own in ranks.items():
            key = ("all_reduce", turn)
            times = now_s[rank], now_s[rank], done_s
            own.exchanges.append(Exchange(key, "all_reduce", tuple(ranks), *times, 1000, str(key)))
            now_s[rank] = done_s
            own.steps.extend([(begin_s[rank], done_s)] if marks_steps else [])
    done = {
        rank: RankTrace(rank, 0.0, now_s[rank], own.work, own.exchanges, own.steps)
        for rank, own in ranks.items()
    }
    return Trace(num_ranks, done)


@pytest.mark.parametrize(
    ("change", "term", "ranks", "grew_s"),
    [
        ({"slow": {(2, "data"): 0.012, (2, "host"): 0.002}}, "data", (2,), 0.012),
        ({"slow": {(r, "data"): 0.01 for r in range(4)}}, "data", (0, 1, 2, 3), 0.01),
        ({"slow": {(1, "compute"): 0.02, (3, "compute"): 0.018}}, "compute", (1, 3), 0.02),
        ({"slow": {(0, "host"): 0.01}}, "host", (0,), 0.01),
        ({"transfer_s": 0.02}, "transfer", (0, 1, 2, 3), 0.018),
        ({"slow": {(2, "data"): 0.012}, "num_steps": 7}, "data", (2,), 0.012),
    ],
)
def test_what_grew_comes_first_with_its_ranks_and_all_terms_are_the_difference(
    change, term, ranks, grew_s
):
    before, after = training(), training(**change)
    for one, other, sign in ((before, after, 1), (after, before, -1)):
        found = profile.compare(one, other)
        first = found.growths[0]
        assert (first.term, first.ranks) == (term, ranks)
        assert first.seconds == pytest.approx(sign * grew_s)
        assert sum(each.seconds for each in found.growths) == pytest.approx(
            found.seconds, abs=1e-12
        )
        assert f"{term} on" in found.verdict
    steps = [step.total for own in profile.breakdown(after).values() for step in own]
    assert profile.compare(before, after).after_s == pytest.approx(sum(steps) / len(steps))


def test_equal_runs_take_as_long_as_before_and_other_ranks_are_said():
    found = profile.compare(training(), training(num_steps=5))
    assert found.seconds == pytest.approx(0)
    assert "as long as before" in found.verdict
    larger = profile.compare(training(), training({(5, "data"): 0.012}, num_ranks=8))
    assert (larger.growths[0].term, larger.num_ranks) == ("data", 4)
    assert [note for note in larger.notes if "8" in note]


def test_a_trace_with_steps_is_not_compared_with_one_without():
    with pytest.raises(ValueError, match="3 marked steps and the one after has 0"):
        profile.compare(training(), training(marks_steps=False))
    unmarked = profile.compare(training(marks_steps=False), training(marks_steps=False))
    assert [note for note in unmarked.notes if "no steps" in note]


def test_the_command_compares_folders_of_traces(tmp_path):
    after = tmp_path / "after"
    after.mkdir()
    for rank in (0, 1):
        shutil.copy(TRACES / f"sampled_rank-{rank}.json.gz", after)
    before = ["--before", str(TRACES / "sampled_rank-1.json.gz")]
    found = json.loads(CliRunner().invoke(app, ["profile", str(after), *before, "--json"]).stdout)
    terms = found["comparison"]["terms"]
    grew = found["comparison"]["after"] - found["comparison"]["before"]
    assert sum(each["growth"] for each in terms) == pytest.approx(grew)
    assert [note for note in found["comparison"]["notes"] if "2 of 128 after" in note]
    words = CliRunner().invoke(app, ["profile", str(after), *before])
    assert "A step takes" in words.stdout
    empty = CliRunner().invoke(app, ["profile", str(tmp_path)])
    assert empty.exit_code == 2
    assert "no trace" in re.sub(r"[│\s]+", " ", empty.output)  # a long path wraps the line


def backward(sizes, stop_after=None):
    """On 2 ranks: 4 s of forward, a bucket ready every 8 s / len(sizes), 0.1 s + 1 s per 100 bytes.

    stop_after: the rank waits for this bucket before it goes on.
    """
    now_s, free_s, exchanges = 4.0, 0.0, []
    work = [Work(0.0, 4.0, "compute")]
    for number, size in enumerate(sizes):
        posted_s = now_s + 8 / len(sizes)
        work.append(Work(now_s, posted_s, "compute"))
        free_s = max(free_s, posted_s) + 0.1 + size / 100
        now_s = free_s if number == stop_after else posted_s
        times = posted_s, posted_s if number == stop_after else None, free_s
        key = ("all_reduce", number)
        exchanges.append(Exchange(key, "all_reduce", (0, 1), *times, size, f"#{number}"))
    end_s, free = now_s, now_s
    for number, each in enumerate(exchanges):
        if number != stop_after:
            end_s = max(end_s, each.done_s)
            waits = Exchange(
                each.key, each.kind, each.group, each.posted_s, free, end_s, each.nbytes
            )
            exchanges[number], free = waits, end_s
    ranks = {r: RankTrace(r, 0, end_s, work, exchanges, [(0, end_s)]) for r in (0, 1)}
    return Trace(2, ranks)


@pytest.mark.parametrize(
    ("before", "nbytes", "after"),
    [
        ([100, 100, 150, 50], 200, [200, 200]),
        ([100, 100, 150, 50], 201, [350, 50]),
        ([100, 100, 150, 50], 1000, [400]),
        ([400], 100, [100, 100, 100, 100]),
        ([400], 150, [200, 200]),
        ([100, 300], 100, [100, 100, 100, 100]),
    ],
)
def test_buckets_are_merged_as_ddp_closes_them_and_cut_evenly(before, nbytes, after):
    graph, change = what_if.buckets(backward(before), nbytes, 0.1)
    found, expected = (t.ranks[0].exchanges for t in (graph.trace, backward(after)))
    assert [each.nbytes for each in found] == after
    if len(set(before)) == 1 or nbytes == 1000:
        assert [each.posted_s for each in found] == [each.posted_s for each in expected]
        assert graph.seconds(change) == pytest.approx(backward(after).ranks[0].end_s, abs=1e-6)


def test_an_all_reduce_for_which_all_ranks_stop_is_merged_with_none_after_it():
    graph, _ = what_if.buckets(backward([100, 100, 100, 100], stop_after=1), 400, 0.1)
    assert [each.nbytes for each in graph.trace.ranks[0].exchanges] == [200, 200]


def test_buckets_of_nothing_are_refused():
    with pytest.raises(ValueError, match="no rank has waited"):
        what_if.buckets(training(num_ranks=1, transfer_s=0.0), 100)
    with pytest.raises(ValueError, match="nbytes is 0"):
        what_if.buckets(training(), 0)


def test_perfect_overlap_is_bound_by_computing_or_by_the_link():
    seconds = what_if.perfect_overlap(profile.Dependencies(training(num_steps=1, transfer_s=0.02)))
    assert seconds == pytest.approx(0.07)
    seconds = what_if.perfect_overlap(profile.Dependencies(training(num_steps=1, transfer_s=0.2)))
    assert seconds == pytest.approx(0.2)


class Tags(HTMLParser):
    """Collect a page's tags by name and class, and the attributes that load something."""

    def __init__(self, text):
        super().__init__()
        self.found, self.loads = Counter(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.found[tag, attributes.get("class")] += 1
        self.loads += [attributes[name] for name in ("src", "href") if name in attributes]


def test_the_page_has_all_ranks_their_waits_and_the_critical_path_and_loads_nothing():
    trace = training({(2, "data"): 0.012})
    trace.ranks[0].exchanges[-1] = replace(trace.ranks[0].exchanges[-1], name="<script>")
    text = profile.page(profile.report(trace), profile.compare(training(), trace))
    tags = Tags(text)
    assert tags.loads == []
    assert tags.found["script", None] == 0
    assert "url(" not in text
    assert tags.found["div", "row"] == 4
    assert tags.found["div", "card fault"] == 2  # data on rank 2, and the host
    assert tags.found["rect", "straggler"] == 3 * 2  # in the last two steps
    assert tags.found["polyline", "path"] == 1
    assert tags.found["path", "memory"] == 0
    assert "data on rank 2" in text


def test_the_page_draws_memory_beside_time_where_a_trace_has_it():
    trace = training()
    ranks = {
        rank: replace(own, memory=[(0.0, 100), (own.end_s - 0.01, 3000)]).moved(1.0).of_steps()
        for rank, own in trace.ranks.items()
    }
    tags = Tags(text := profile.page(profile.report(replace(trace, ranks=ranks))))
    assert tags.found["path", "memory"] == 4
    assert ">3 kB<" in text


def test_a_recording_has_memory_if_it_is_asked_for(tmp_path):
    world = SimpleNamespace(rank=0, device=torch.device("cpu"))
    with profile.recording(world, tmp_path, memory=True) as end_step:
        for _ in range(3):
            x = torch.ones(300, 300)
            x @ x
            end_step()
    trace = profile.read([tmp_path])
    assert len(trace.ranks[0].steps) == 2
    held = [nbytes for _, nbytes in trace.ranks[0].memory]
    assert max(held) - min(held) >= 4 * 300 * 300
    assert Tags(profile.page(profile.report(trace))).found["path", "memory"] == 1


def test_the_command_writes_the_page(tmp_path):
    page = tmp_path / "page.html"
    arguments = ["profile", str(TRACES / "sampled_rank-0.json.gz"), "--html", str(page)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert Tags(page.read_text()).found["svg", None] == 1
    nowhere = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path)])
    assert nowhere.exit_code == 2


def journal(computes_s, ahead_s=0.0, wakes_s=0.0, num_steps=4):
    """Steps of 1 s: a bucket that is there when it is waited for, and one that ranks wait for."""
    operations, regions = [], []
    for turn in range(num_steps):
        waits_s, done_s = turn + computes_s, turn + 0.9 + wakes_s
        regions.append(Region("step", turn, turn + 1.0))
        for number, times in enumerate([(turn + 0.1, waits_s), (waits_s, done_s)]):
            times = {"posted_s": times[0], "waited_s": waits_s, "done_s": times[1]}
            operations.append(an_operation("all_reduce", 2 * turn + number, **times))
    return Timeline(operations, regions, 0.0, float(num_steps)).shifted(-ahead_s)


def saved(folder, *timelines):
    """A run of as many hosts: the second rank's clock reads 1000 s more."""
    for rank, timeline in enumerate(timelines):
        clock_s = 1000.0 * rank
        own = timeline.shifted(-clock_s)
        Record(
            *(rank, len(timelines), "cpu", f"host{rank}", Stage.RETURNED, "returned", clock_s, own)
        ).write(folder / "attempt-0")
    return labkit.Run.load(folder, partial=True)


def test_clocks_of_hosts_that_met_at_other_moments_or_drifted_are_aligned(tmp_path):
    run = saved(tmp_path, journal(0.4), journal(0.7, ahead_s=0.3))
    trace = profile.trace_of_run(run)
    assert [note for note in trace.notes if "clock of rank 1" in note]
    for step in profile.breakdown(trace)[0]:
        assert step.seconds["straggler"] == pytest.approx(0.3)
        assert step.waited_for == {1: pytest.approx(0.3)}


def test_ranks_on_one_clock_are_left_as_they_are_also_if_one_wakes_up_late(tmp_path):
    run = saved(tmp_path, journal(0.4), journal(0.7, wakes_s=0.05))
    trace = profile.trace_of_run(run)
    assert trace.notes == []
    assert trace.ranks[1].exchanges[-1].done_s == pytest.approx(3.95)


def test_ranks_without_a_journal_are_left_out_and_said():
    trace = profile.trace_of_run([journal(0.4), Timeline(), journal(0.7)])
    assert list(trace.ranks) == [0, 2]
    assert "1 of 3" in trace.notes[0]
    with pytest.raises(ValueError, match="none of 2 ranks"):
        profile.trace_of_run([Timeline(), Timeline()])
