"""Breakdown, replay and diagnosis of traces written by hand, and of real GPU traces.

rank 0   |== 4 s compute ==|~~~~ 4 s ~~~~|= 2 s =|== 1 s ==|
rank 1   |========== 8 s compute ========|= 2 s =|== 1 s ==|     from 8 s on, bytes move
"""

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit import profile
from labkit.cli.commands import app
from labkit.comm import Region, Timeline
from labkit.profile import what_if
from labkit.profile.step_trace import Exchange, RankTrace, Trace, Work, aligned, with_waits
from tests.an_operation import an_operation

TRACES = Path(__file__).parents[1] / "data" / "traces"
# Results of HTA 0.5: us, and overlap in percent.
HTA = {
    ("sampled_rank-0", 0): (321378, 106252, 172428, 600058, 11.81),
    ("sampled_rank-1", 1): (328671, 135548, 136455, 600674, 20.05),
    ("two_gpus_rank-0", 0): (338781, 75169, 21636, 435586, 14.31),
}


def all_reduce(posted_s, waited_s, done_s, turn=1, kind="all_reduce"):
    return Exchange((kind, turn), kind, (0, 1), posted_s, waited_s, done_s, 1000, f"{kind} #{turn}")


def late_rank(hours_ahead=0.0):
    ranks = {}
    for rank, computes_s in ((0, 4.0), (1, 8.0)):
        work = [Work(0, computes_s, "compute"), Work(10, 11, "compute")]
        ranks[rank] = RankTrace(
            rank, 0.0, 11.0, work, [all_reduce(computes_s, computes_s, 10.0)], [(0.0, 11.0)]
        )
    ranks[1] = ranks[1].moved(3600 * hours_ahead)
    return Trace(2, ranks)


def test_terms_add_up_to_the_step_and_name_who_was_late():
    early, late = (steps[0] for steps in profile.breakdown(late_rank()).values())
    assert {k: v for k, v in early.seconds.items() if v} == {
        "compute": 5, "straggler": 4, "transfer": 2
    }  # fmt: skip
    assert early.waited_for == {1: 4}
    assert late.seconds["straggler"] == 0
    assert sum(late.seconds.values()) == late.total == 11


def test_communication_beside_computing_is_hidden_and_the_rest_is_exposed():
    work = [Work(0, 6, "compute"), Work(8, 9, "data"), Work(9, 10, "copy")]
    message = Exchange((0, 1), "recv", (1, 0), 4, 6, 8, 8)
    sent = Exchange((0, 1), "send", (1, 0), 7, None, 8, 8)
    trace = Trace(2, {0: RankTrace(0, 0, 12, work, [message]), 1: RankTrace(1, 0, 12, [], [sent])})
    terms = profile.breakdown(trace)[0][0]
    expected = {"compute": 6, "bubble": 1, "transfer": 1, "data": 1, "copy": 1, "host": 2}
    assert {k: v for k, v in terms.seconds.items() if v} == expected
    assert (terms.hidden, terms.in_flight, terms.overlap) == (2, 4, 0.5)


def test_a_replay_gives_back_what_was_measured_and_predicts_a_run_without_the_straggler():
    graph = profile.Dependencies(late_rank())
    assert graph.times() == [moment.at_s for moment in graph.moments]
    assert graph.seconds() == 11
    assert graph.seconds(what_if.no_straggler(graph, 1)) == pytest.approx(4 + 2 + 1, abs=0.6)
    assert graph.seconds(what_if.links(2)) == 10
    assert graph.seconds(what_if.links(2, latency_s=1)) == 10.5
    assert graph.seconds(what_if.without("transfer")) == 9


def test_the_critical_path_goes_through_the_late_rank_and_slack_is_what_the_early_one_has():
    graph = profile.Dependencies(late_rank())
    first = graph.critical_path()[0]
    assert (first.rank, first.start_s, first.end_s) == (1, 0, 8)
    slack = dict(zip(((m.rank, m.name) for m in graph.moments), graph.slack(), strict=True))
    assert slack[0, "post all_reduce #1"] == 4
    assert slack[1, "post all_reduce #1"] == 0


def test_a_result_that_was_there_in_time_costs_nothing_and_its_transfer_is_estimated():
    """The wait at 9 s returns at once: the all-reduce was done earlier, no journal says when."""
    ranks = {}
    for rank in (0, 1):
        work = [Work(0, 9, "compute"), Work(9, 10, "compute")]
        quick = all_reduce(1.0, 9.0, 9.0)
        slow = all_reduce(10.0, 10.0, 12.0, turn=2)
        ranks[rank] = RankTrace(rank, 0.0, 12.0, work, [quick, slow])
    graph = profile.Dependencies(Trace(2, ranks))
    assert graph.seconds() == 12
    halved = graph.seconds(lambda part: part.seconds / (2 if part.kind == "compute" else 1))
    assert halved == 5 + 2  # not 1 + 8: the transfer of the first takes 2 s as well


def test_a_clock_an_hour_ahead_is_moved_back_and_said():
    trace = aligned(late_rank(hours_ahead=1))
    assert trace.ranks[1].start_s == pytest.approx(0, abs=1e-6)
    assert [note for note in trace.notes if "rank 1" in note]
    assert profile.breakdown(trace)[0][0].seconds["straggler"] == pytest.approx(4, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "cause", "rank"),
    [
        ({2: {"compute": 1.3}}, "straggler", 2),
        ({1: {"compute": 1.3}, 3: {"compute": 1.25}}, "imbalance", None),
        ({rank: {"data": 5.0} for rank in range(4)}, "input", None),
        ({3: {"data": 6.0}}, "input", 3),
        ({rank: {"host": 8.0} for rank in range(4)}, "host", None),
        ({0: {"host": 9.0}}, "host", 0),
        ({}, None, None),
    ],
)
def test_the_first_finding_is_the_fault(changes, cause, rank):
    found = profile.diagnose(steps_of_four(changes))[0]
    assert (found.cause if found.is_fault else None) == cause
    if cause:
        assert found.rank == rank


def steps_of_four(changes, num_steps=3):
    """On 4 ranks 2 s of loading, 20 s of computing, 1 s for the host, 2 s of transfer, per step."""
    ends, plans = [0.0] * 4, {rank: ([], []) for rank in range(4)}
    for turn in range(num_steps):
        for rank, (work, _) in plans.items():
            for kind, seconds in (("data", 0.5), ("compute", 20.0), ("host", 0.4)):
                until_s = ends[rank] + seconds * changes.get(rank, {}).get(kind, 1.0)
                if kind != "host":
                    work.append(Work(ends[rank], until_s, kind))
                ends[rank] = until_s
        done_s = max(ends) + 2
        for rank, (_, exchanges) in plans.items():
            exchanges.append(all_reduce(ends[rank], ends[rank], done_s, turn))
            ends[rank] = done_s
    return Trace(4, {r: RankTrace(r, 0.0, ends[r], *plans[r]) for r in range(4)})


def first_fault(ranks):
    found = profile.diagnose(Trace(len(ranks), ranks))[0]
    return (found.cause, found.rank) if found.is_fault else None


@pytest.mark.parametrize(("size", "cause"), [(100, "straggler"), (130, "imbalance")])
def test_a_slow_rank_whose_products_are_larger_has_more_to_do(size, cause):
    """Rank 1 takes 13 s where the others take 10; it reads `size` numbers, they read 100."""
    ranks = {}
    for rank in range(3):
        end_s = 13.0 if rank == 1 else 10.0
        work = [Work(0.0, end_s, "compute", size=size if rank == 1 else 100)]
        ranks[rank] = RankTrace(rank, 0.0, 14.0, work, [all_reduce(end_s, end_s, 14.0)])
    assert first_fault(ranks) == (cause, 1)


@pytest.mark.parametrize(("kind", "found"), [("barrier", ("barrier", None)), ("all_reduce", None)])
def test_barriers_cost_what_layers_differ_by_and_collectives_are_needed(kind, found):
    """Layers of 1 and of 3 s in turn, the long one on another rank each time."""
    ranks = {}
    for rank in range(2):
        work, exchanges = [], []
        for turn in range(6):
            begin_s = 3.5 * turn
            end_s = begin_s + (3 if turn % 2 == rank else 1)
            work.append(Work(begin_s, end_s, "compute"))
            exchanges.append(all_reduce(end_s, end_s, begin_s + 3.5, turn, kind))
        ranks[rank] = RankTrace(rank, 0.0, 21.0, work, exchanges)
    assert first_fault(ranks) == found


def ring(slow_pairs, num_rounds=6):
    """Rounds of 5 s of computing and messages 0 -> 1 -> 2 -> 0 of 1 s, 4 s between slow pairs."""
    now_s = [0.0] * 3
    plans = {rank: ([], []) for rank in range(3)}
    for turn in range(num_rounds):
        sent_s = [each + 5 for each in now_s]
        for rank, (work, exchanges) in plans.items():
            source, target = (rank - 1) % 3, (rank + 1) % 3
            work.append(Work(now_s[rank], sent_s[rank], "compute"))
            done_s = {
                pair: sent_s[pair[0]] + (4.0 if pair in slow_pairs else 1.0)
                for pair in ((rank, target), (source, rank))
            }
            for pair, kind in zip(done_s, ("send", "recv"), strict=True):
                waited_s = sent_s[rank] if kind == "recv" else None
                key, end_s = (pair, turn), max(done_s[pair], sent_s[rank])
                exchanges.append(Exchange(key, kind, pair, sent_s[rank], waited_s, end_s, 8, kind))
            now_s[rank] = max(done_s[source, rank], sent_s[rank])
    return {rank: RankTrace(rank, 0.0, now_s[rank], *plan) for rank, plan in plans.items()}


@pytest.mark.parametrize(
    ("slow_pairs", "found"),
    [([(0, 1), (1, 2)], ("link", 1)), ([(0, 1)], ("link", None)), ([], None)],
)
def test_a_slow_link_is_on_the_rank_that_all_slow_pairs_share(slow_pairs, found):
    assert first_fault(ring(slow_pairs)) == found


@pytest.mark.parametrize(("num_buckets", "found"), [(1, ("overlap", None)), (4, None)])
def test_the_only_exchange_of_a_step_could_be_cut_and_hidden(num_buckets, found):
    """4 s of all-reduce in a step of 14 s; in 4 buckets the first three are hidden."""
    ranks = {}
    for rank in range(2):
        work, exchanges, steps = [], [], []
        for turn in range(3):
            begin_s = 14.0 * turn
            end_s = begin_s + (14 if num_buckets == 1 else 11)
            work.append(Work(begin_s, begin_s + 10, "compute"))
            for n in range(num_buckets):
                posted_s = begin_s + 10 - (num_buckets - 1 - n)
                done_s = posted_s + 4 / num_buckets
                waited_s = begin_s + 10 if n == num_buckets - 1 else None
                exchanges.append(all_reduce(posted_s, waited_s, done_s, (turn, n)))
            if num_buckets > 1:
                work.append(Work(end_s, begin_s + 14, "compute"))
            steps.append((begin_s, begin_s + 14))
        ranks[rank] = RankTrace(rank, 0.0, 42.0, work, exchanges, steps)
    assert first_fault(ranks) == found


def test_many_short_gaps_are_launches_and_long_ones_the_host():
    def gaps(seconds, count):
        work = [Work(n * 2 * seconds, (2 * n + 1) * seconds, "compute") for n in range(count)]
        end_s = 2 * seconds * count
        found = profile.diagnose(Trace(1, {0: RankTrace(0, 0.0, end_s, work, [])}))
        return {each.cause: each.share for each in found}

    assert gaps(2e-4, 100)["launch"] == pytest.approx(0.5)
    assert gaps(2e-4, 100)["host"] == 0
    assert gaps(2e-2, 10)["host"] == pytest.approx(0.5)


def test_waits_follow_one_another_and_the_last_moment_of_a_transfer_does_not_tell_its_end():
    """The lane is free from 2 s on: it waits for the first, then for the second."""
    work = [Work(0, 2, "compute"), Work(9, 10, "compute")]
    first = Exchange(("a", 1), "recv", (1, 0), 0, None, 5, 8)
    second = Exchange(("b", 1), "send", (0, 1), 1, None, 5.1, 8)
    assert [each.waited_s for each in with_waits(work, [second, first])] == [2, 5]


@pytest.mark.parametrize(("file", "rank"), HTA)
def test_figures_of_gpu_traces_are_those_of_hta(file, rank):
    trace = profile.read([TRACES / f"{file}.json.gz"])
    found = profile.figures(trace)[rank]
    *times_us, overlap = HTA[file, rank]
    ours = (found.idle, found.compute, found.non_compute, found.total)
    assert [1e6 * each for each in ours] == pytest.approx(times_us, rel=0.03)
    assert 100 * found.overlap == pytest.approx(overlap, abs=0.5)


def test_ranks_that_have_no_file_are_said():
    files = [TRACES / f"sampled_rank-{rank}.json.gz" for rank in (1, 0)]
    trace = profile.read(files)
    assert list(trace.ranks) == [0, 1]
    assert trace.world_size == 128
    assert "126 of 128" in trace.notes[0]


def event(name, ts, dur, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "cat": cat, "tid": tid, "args": args}


def test_a_gpu_trace_has_copies_where_no_kernel_computes_and_steps_by_launch(tmp_path):
    device = [
        event("Memcpy HtoD", 5, 20, "gpu_memcpy", correlation=1),
        event("gemm", 10, 10, "kernel", correlation=2),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 22, 8, "kernel", correlation=3),
        event("gemm", 70, 10, "kernel", correlation=4),
    ]
    hosts = [
        event("cudaLaunchKernel", 11 * n - 10, 1, "cuda_runtime", correlation=n) for n in range(5)
    ]
    steps = [event(f"ProfilerStep#{n}", 33 * n, 33, "user_annotation") for n in (0, 1)]
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"traceEvents": device + hosts + steps}))
    trace = profile.read([path])
    assert [round(1e6 * (end_s - start_s)) for start_s, end_s in trace.ranks[0].steps] == [65, 10]
    terms = profile.breakdown(trace)[0][0]
    in_us = {term: round(1e6 * seconds) for term, seconds in terms.seconds.items() if seconds}
    assert in_us == {"compute": 10, "copy": 10, "transfer": 5, "host": 40}
    assert trace.ranks[0].exchanges[0].kind == "all_reduce"


def allocated(ts, total, device=0):
    return {"name": "[memory]", "ph": "i", "ts": ts} | {
        "args": {"Total Allocated": total, "Device Type": device, "Device Id": device - 1}
    }


def test_memory_is_that_of_the_device_and_what_was_held_when_the_steps_began(tmp_path):
    events = [
        *(event(f"ProfilerStep#{n}", 100 * n, 100, "user_annotation") for n in (1, 2)),
        event("aten::mm", 100, 200),
        *(allocated(ts, total) for ts, total in ((10, 5), (20, 7), (150, 9), (301, 11))),
    ]
    path = tmp_path / "rank0.json"
    for added, expected in (([], [7, 9]), ([allocated(160, 3, device=1)], [3])):
        path.write_text(json.dumps({"traceEvents": events + added}))
        assert [nbytes for _, nbytes in profile.read([path]).ranks[0].memory] == expected


def test_the_end_of_a_loop_in_which_nothing_is_computed_is_no_step(tmp_path):
    events = [event(f"ProfilerStep#{n}", 100 * n, 100, "user_annotation") for n in range(3)]
    events.append(event("enumerate(DataLoader)#_Iter.__next__", 200, 80, "user_annotation"))
    path = tmp_path / "rank0.json"
    for computes_us, num_steps in ((200, 2), (290, 3)):
        events[3:] = [*events[3:4], event("aten::mm", computes_us - 10, 10)]
        path.write_text(json.dumps({"traceEvents": events}))
        assert len(profile.read([path]).ranks[0].steps) == num_steps


def test_a_cpu_trace_has_calls_as_arrivals_and_loading_and_waiting_apart(tmp_path):
    sizes = {"Input Dims": [[10]], "Input type": ["float"]}
    events = [
        event("ProfilerStep#1", 0, 100, "user_annotation"),
        event("enumerate(DataLoader)#_Iter.__next__", 0, 10, "user_annotation"),
        event("aten::mm", 10, 30),
        event("aten::inner", 12, 5),
        event("c10d::allreduce_", 40, 2),
        event("gloo:all_reduce", 50, 30, "user_annotation", tid=2, **sizes),
        event("aten::add", 85, 5),
        event("c10d::send", 90, 1, **{"Concrete Inputs": ["", "", "3", "0"]}),
        event("gloo:send", 90, 1, "user_annotation", **sizes),
    ]
    document = {"traceEvents": events, "distributedInfo": {"rank": 2, "world_size": 4}}
    path = tmp_path / "rank2.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    trace = profile.read([path])
    terms = profile.breakdown(trace)[2][0]
    in_us = {term: round(1e6 * seconds) for term, seconds in terms.seconds.items() if seconds}
    assert in_us == {"data": 10, "compute": 35, "transfer": 41, "host": 14}
    reduced, sent = trace.ranks[2].exchanges
    assert (reduced.nbytes, sent.group) == (40, (2, 3))


def test_all_to_alls_of_other_shapes_meet_by_their_turn(tmp_path):
    """A rank waits inside the operator that calls one: that is no computing."""
    for rank, rows in enumerate((3, 5)):
        sizes = {"Input Dims": [[rows]], "Input type": ["float"]}
        events = [
            event("aten::mm", 0, 10 + 20 * rank),
            event("_Dispatch", 10 + 20 * rank, 50 - 20 * rank),
            event("c10d::alltoall_base_", 10 + 20 * rank, 2),
            event("gloo:all_to_all", 10 + 20 * rank, 45 - 20 * rank, tid=2, **sizes),
            event("aten::mm", 60, 10),
        ]
        document = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    trace = profile.read([tmp_path])
    assert [set(ranks) for ranks in trace.matched_exchanges.values()] == [{0, 1}]
    seconds = profile.breakdown(trace)[0][0].seconds
    assert round(1e6 * seconds["compute"]) == round(1e6 * seconds["straggler"]) == 20


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("no json", "not JSON"),
        ("[]", "traceEvents"),
        ('{"traceEvents": []}', "neither operators nor kernels"),
        ('{"traceEvents": ["X"]}', "1 malformed"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path, text, named):
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=named) as error:
        profile.read([path])
    assert str(path) in str(error.value)


def test_two_files_of_one_rank_and_files_of_different_jobs_are_refused():
    one, other = TRACES / "sampled_rank-0.json.gz", TRACES / "two_gpus_rank-0.json.gz"
    with pytest.raises(ValueError, match="rank 0 already"):
        profile.read([one, one])
    with pytest.raises(ValueError, match="different jobs"):
        profile.read([TRACES / "sampled_rank-1.json.gz", other])


def test_the_command_prints_figures_for_programs_and_words_for_people():
    files = [str(TRACES / f"sampled_rank-{rank}.json.gz") for rank in (0, 1)]
    found = json.loads(CliRunner().invoke(app, ["profile", "--json", *files]).stdout)
    assert found["ranks"]["0"]["compute"] == pytest.approx(106252, rel=0.03)
    assert found["findings"][0]["cause"] == "host"
    words = CliRunner().invoke(app, ["profile", *files])
    assert words.exit_code == 0
    assert "Critical path" in words.stdout
    assert CliRunner().invoke(app, ["profile", __file__]).exit_code == 2


def test_a_journal_has_steps_loading_and_waits_and_its_messages_meet():
    def timeline(start_s, operations):
        regions = [Region("step", start_s, 9.0), Region("data", start_s, start_s + 1)]
        return Timeline(operations, regions, 0.0, 10.0)

    sent = an_operation("send", peer=1, posted_s=5.0, waited_s=None, done_s=5.5)
    taken = an_operation("recv", peer=0, posted_s=4.0, waited_s=4.0, done_s=6.0)
    trace = profile.trace_of_run([timeline(2.0, [sent]), timeline(1.0, [taken])])
    assert trace.ranks[1].steps == [(trace.ranks[1].start_s, trace.ranks[1].end_s)] == [(1, 9)]
    assert list(trace.matched_exchanges.values()) == [
        {rank: trace.ranks[rank].exchanges[0] for rank in (0, 1)}
    ]
    terms = profile.breakdown(trace)[1][0].seconds
    assert {term: seconds for term, seconds in terms.items() if seconds} == {
        "compute": 5,
        "data": 1,
        "bubble": 1,
        "transfer": 1,
    }


def test_messages_of_another_thread_are_one_exchange_for_each_bucket_and_step():
    """The program computes until it waits for the thread: 4 s of each step, then 1 s."""
    operations = [
        an_operation(
            kind, turn, group_name="thread", label="bucket 0", in_background=True, peer=1,
            posted_s=posted_s, waited_s=posted_s, done_s=posted_s + 1,
        )
        for step, begin_s in enumerate((0.0, 5.0))
        for turn, (kind, posted_s) in enumerate(
            (("send", begin_s + 2), ("recv", begin_s + 3), ("send", begin_s + 4)), start=3 * step
        )
    ]  # fmt: skip
    regions = [Region("step", 0.0, 5.0), Region("step", 5.0, 10.0)]
    regions += [Region("waits", begin_s + 4, begin_s + 5) for begin_s in (0.0, 5.0)]
    trace = profile.trace_of_run([Timeline(operations, regions, 0.0, 10.0)])
    assert [(e.posted_s, e.waited_s, e.done_s) for e in trace.ranks[0].exchanges] == [
        (2, 4, 5), (7, 9, 10)
    ]  # fmt: skip
    seconds = profile.breakdown(trace)[0][0].seconds
    assert (seconds["compute"], seconds["transfer"]) == (4, 1)


def test_a_rank_that_posts_does_not_wait_and_what_began_before_the_steps_counts():
    """Both ranks post A at 1 s and B at 8 and 9 s, and compute nothing until B is done at 11 s."""
    ranks = {}
    for rank in range(2):
        posted = [all_reduce(1, None, 10, "A"), all_reduce(8 + rank, None, 11, "B")]
        work = [Work(0, 1, "compute"), Work(11, 12, "compute")]
        exchanges = with_waits(work, posted)
        ranks[rank] = RankTrace(rank, 0.0, 12.0, work, exchanges, [(2.0, 12.0)]).of_steps()
    first, second = ranks[0].exchanges
    assert (first.posted_s, first.waited_s, second.waited_s) == (2, 8, 10)
    graph = profile.Dependencies(Trace(2, ranks))
    assert graph.seconds() == 10
    assert [m.at_s for m in graph.moments] == pytest.approx(graph.times())


def test_messages_of_gpus_meet_by_their_ends_and_numbers_have_their_width(tmp_path):
    for rank, kind in enumerate(("send", "recv")):
        moved = {"Collective name": kind, "Src Rank": 0, "Dst Rank": 1, "In msg nelems": 10}
        events = [
            event("gemm", 0, 10 + 5 * rank, "kernel"),
            event("ncclDevKernel_SendRecv(args)", 20, 5, "kernel", **moved, dtype="Long"),
        ]
        document = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    ((sent, received),) = (
        by_rank.values() for by_rank in profile.read([tmp_path]).matched_exchanges.values()
    )
    assert (sent.kind, received.kind, sent.group, sent.nbytes) == ("send", "recv", (0, 1), 80)


def test_the_end_of_a_send_is_when_its_sender_asked_and_no_transfer():
    """Rank 0 computes beside its message, which rank 1 has after 1 s; it asks at 9 s."""
    sent = Exchange(("m", 1), "send", (0, 1), 1, 8, 9, 8)
    received = Exchange(("m", 1), "recv", (0, 1), 0, 0, 2, 8)
    ranks = {
        0: RankTrace(0, 0.0, 10.0, [Work(0, 1, "compute"), Work(1, 8, "compute")], [sent]),
        1: RankTrace(1, 0.0, 10.0, [Work(2, 10, "compute")], [received]),
    }
    moves = [part for part in profile.Dependencies(Trace(2, ranks)).parts() if part.exchange]
    assert [part.seconds for part in moves] == [1, 1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", "all_reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(args)", "send_recv"),
        ("ncclReduceScatterRingLLKernel_sum_f32(args)", "reduce_scatter"),
    ],
)
def test_old_and_new_profilers_say_what_is_nccl_and_what_it_does(tmp_path, name, kind):
    """Categories had capitals once, and the ranks of a large group are cut off."""
    ranks = {"Process Group Ranks": "[0, 1, 2, ..., 255]"}
    events = [event("gemm", 0, 5, "Kernel"), event(name, 5, 5, "Kernel", **ranks)]
    del events[0]["args"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"traceEvents": events}))
    (exchange,) = profile.read([path]).ranks[0].exchanges
    assert (exchange.kind, exchange.group[:3]) == (kind, (0, 1, 2))


def test_many_short_kernels_that_ranks_wait_for_are_latency_and_not_the_host(tmp_path):
    """As in tensor parallelism: 20 us of all-reduce after each 20 us of computing."""
    reduced = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)"
    events = [
        each
        for n in range(50)
        for each in (
            event("gemm", 40 * n, 20, "kernel"),
            event(reduced, 40 * n + 20, 20, "kernel", **{"In msg nelems": 10 + 1000 * (n % 2)}),
        )
    ]
    path = tmp_path / "rank0.json"
    job = {"world_size": 1}
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": job}))
    shares = {each.cause: each.share for each in profile.diagnose(profile.read([path]))}
    assert shares["latency"] == pytest.approx(0.5, abs=0.01)
    assert shares["host"] < 0.01


@pytest.mark.parametrize(
    ("events", "idle", "compute", "other"),
    [
        ([event("ncclKernel_AllReduce(args)", n, 10, "kernel") for n in (0, 30)], 20, 0, 20),
        ([event("gloo:all_reduce", 5, 10, "user_annotation")], 0, 0, 10),
        ([event("gemm", 0, 5, "kernel"), {"ph": "X", "ts": 9, "dur": None}, {}], 0, 5, 0),
        ([event("gemm", 0, 5, "kernel") | {"ts": "3", "dur": "4"}, {"ph": "X"}], 0, 4, 0),
        ([{"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 2}], 0, 2, 0),
    ],
)
def test_odd_traces_have_figures(tmp_path, events, idle, compute, other):
    """Only communication, fields that are missing or null, and times as text."""
    path = tmp_path / "odd.json"
    path.write_text(
        json.dumps({"traceEvents": events, "distributedInfo": {"rank": None, "world_size": None}})
    )
    trace = profile.read([path])
    found = profile.figures(trace)[0]
    assert profile.page(profile.report(trace))
    times = (found.idle, found.compute, found.non_compute)
    assert [round(1e6 * each) for each in times] == [idle, compute, other]


def test_missing_ranks_are_said_once_when_clocks_are_moved_too(tmp_path):
    for rank, ahead_us in ((0, 0), (1, 5_000_000)):
        reduced = "ncclDevKernel_AllReduce_Sum(args)"
        events = [event("gemm", ahead_us, 5, "kernel"), event(reduced, ahead_us + 5, 5, "kernel")]
        job = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 4}}
        (tmp_path / f"{rank}.json").write_text(json.dumps(job))
    missing, _, moved = profile.read(sorted(tmp_path.iterdir())).notes
    assert "2 of 4" in missing
    assert "rank 1" in moved


def test_without_a_straggler_a_rank_is_as_fast_as_the_median_and_not_as_the_slowest():
    graph = profile.Dependencies(
        steps_of_four({3: {"compute": 1.5}, 2: {"compute": 1.2}}, num_steps=1)
    )
    goal_s = 20 + 0.5 + 0.4
    change = what_if.no_straggler(graph, 3)
    on_three = [part for part in graph.parts() if part.rank == 3 and part.kind != "transfer"]
    assert sum(map(change, on_three)) == pytest.approx(goal_s)
