"""Traces of other libraries, of some ranks only, of other devices: what is known, and what is said.

rank 0   gemm |======|                   |======|     kernel k on another stream, or in another rank
         k         |--------------|
"""

import gzip
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit import profile
from labkit.cli.commands import app
from labkit.profile.communication_kernels import SOME_KIND, Communication
from labkit.profile.step_trace import Exchange, RankTrace, Trace, Work

TRACES = Path(__file__).parents[1] / "data" / "traces"
COMMUNICATES = {
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymkDevWorkArgs4K)": "all_reduce",
    "ncclDevKernel_Generic_1(ncclDevComm*, channelMasks, ncclWork*)": SOME_KIND,
    "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)": SOME_KIND,
    "void deep_ep::internode::dispatch<false, 8, true>(int4*, float*)": "dispatch",
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)": "combine",
    "deep_ep::internode_ll::combine(void*)": "combine",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)": "dispatch",
    "_ZN7deep_ep9internode8dispatchILb0ELi8EEEvP4int4": "dispatch",
    "void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(mori::moe::Args)": "dispatch",
    "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)": "barrier",
    "nvshmemi_alltoall_on_stream_kernel(int*)": "all_to_all",
    "exchangeSplitAndOffset(long*, int, int)": "all_to_all",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": "all_reduce",
    "void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*)": "all_reduce",
    "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>>(int)": "all_reduce",
    "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)": "all_reduce",
    "multimem_all_gather_kernel": "all_gather",
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16>(x)": "all_reduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>(x)": (
        "all_reduce"
    ),
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<2>(float*)": "all_reduce",
    "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true>(x)": "all_reduce",
    "void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<8>(x)": "combine",
    "void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int)": "all_gather",
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)": "reduce_scatter",
    "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)": "send",
    "Memcpy PtoP (Device -> Device)": "peer_copy",
    "my_library::AllGatherRing<4>(x)": "all_gather",
}
COMPUTES = (
    "sm90_xmma_gemm_bf16bf16",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)",
    "void at::native::vectorized_elementwise_kernel<4, deep_ep::all_reduce>(x)",
    "triton_poi_fused_add_all_reduce_4",
    "void cutlass::device_kernel<flux::AllReduce>(x)",
    "void block_all_reduce_sum_f32_kernel<256>(float*)",
    "void flash::flash_fwd_splitkv_combine_kernel<x>(x)",
    "Memcpy DtoD (Device -> Device)",
    "Memcpy HtoD (Pinned -> Device)",
    "Memset (Device)",
)


def event(name, ts, dur, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "cat": cat, "tid": tid, "args": args}


def kernel(name, ts, dur, stream=7, **args):
    return event(name, ts, dur, "kernel", stream, stream=stream, **args)


def launch(ts, number, tid=1):
    return event("cudaLaunchKernel", ts, 2, "cuda_runtime", tid, correlation=number)


def read(folder, *ranks, world_size=None, **options):
    """The trace of files with these events; a whole job, if world_size is not given."""
    for rank, events in enumerate(ranks):
        job = {"rank": rank, "world_size": world_size or len(ranks)}
        document = {"traceEvents": events, "distributedInfo": job, "host_name": "a"}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    return profile.read([folder], **options)


def us(terms):
    return {term: round(1e6 * seconds) for term, seconds in terms.seconds.items() if seconds > 1e-9}


def beside_two_products(name, *more):
    return [kernel("gemm", 0, 400), kernel("gemm", 600, 400), kernel(name, 300, 400, 20), *more]


@pytest.mark.parametrize(("name", "kind"), COMMUNICATES.items())
def test_kernels_of_known_libraries_communicate(name, kind):
    assert Communication().kind(name) == kind


@pytest.mark.parametrize("name", COMPUTES)
def test_kernels_that_compute_or_copy_are_not_taken_for_communication(name):
    assert Communication().kind(name) == ""


def test_communication_of_any_library_is_in_flight_beside_computing(tmp_path):
    trace = read(tmp_path, beside_two_products("void deep_ep::intranode::dispatch<8>(int4*)"))
    found = profile.figures(trace)[0]
    assert (round(1e6 * found.compute), found.overlap) == (800, pytest.approx(0.5))


def test_a_name_that_the_user_adds_communicates_and_one_that_looks_so_is_said(tmp_path):
    """400 of the 1,200 us in kernels are exchange_tokens."""
    events = beside_two_products("acme::peer_exchange_tokens<4>(x)")
    trace = read(tmp_path, events)
    assert us(profile.breakdown(trace)[0][0])["compute"] == 1000
    assert [note for note in trace.notes if "acme::peer_exchange_tokens" in note]
    added = read(tmp_path, events, communication="exchange_tokens")
    assert us(profile.breakdown(added)[0][0])["compute"] == 800
    assert not [note for note in added.notes if "acme" in note]
    command = ["profile", str(tmp_path), "--json", "--communication", "exchange_tok"]
    found = json.loads(CliRunner().invoke(app, command).stdout)
    assert found["ranks"]["0"]["compute"] == pytest.approx(800)
    assert found["unit"] == "us"


def test_a_job_of_several_ranks_without_communication_names_its_busiest_kernels(tmp_path):
    trace = read(tmp_path, [kernel("acme_x", 0, 9)], world_size=2)
    assert [note for note in trace.notes if "acme_x" in note]
    alone = read(tmp_path, [kernel("acme_x", 0, 9)])
    assert not [note for note in alone.notes if "acme_x" in note]


def test_what_is_no_regular_expression_is_refused(tmp_path):
    with pytest.raises(ValueError, match=re.escape("'('")):
        read(tmp_path, [kernel("x", 0, 9)], communication=["("])


@pytest.mark.parametrize("link", ["launch", "External id", "range"])
def test_a_kernel_is_what_the_call_around_its_launch_says(tmp_path, link):
    call = event("nccl:all_to_all", 200, 60, "user_annotation", **{"External id": 5})
    exchange = kernel("unknown_kernel", 300, 400, 20, correlation=9)
    other = [kernel("unknown_kernel", 700, 100, 21, correlation=10)]
    if link == "launch":
        other += [launch(210, 9), launch(280, 10)]
    elif link == "External id":
        exchange["args"]["External id"] = 5
    else:
        call = event("nccl:all_to_all", 300, 400, "gpu_user_annotation", 20)
    trace = read(tmp_path, [kernel("gemm", 0, 400), call, exchange, *other])
    assert [each.kind for each in trace.ranks[0].exchanges] == ["all_to_all"]
    assert us(profile.breakdown(trace)[0][0])["compute"] == 500


def test_operators_inside_of_a_call_compute_and_its_copies_on_the_device_communicate(tmp_path):
    calls = [
        event("c10d::allgather_", 0, 100),
        event("aten::copy_", 10, 10),
        launch(12, 1),
        launch(30, 2),
        launch(40, 3),
        launch(50, 4),
    ]
    device = [
        kernel("anything", 200, 10, correlation=1),
        event("Memcpy DtoD (Device -> Device)", 300, 10, "gpu_memcpy", 7, correlation=2),
        event("Memcpy DtoH (Device -> Pinned)", 400, 10, "gpu_memcpy", 7, correlation=3),
        kernel("void at::native::anything<4>(x)", 500, 10, correlation=4),
    ]
    trace = read(tmp_path, calls + device)
    assert [each.kind for each in trace.ranks[0].exchanges] == ["all_gather"]
    terms = us(profile.breakdown(trace)[0][0])
    assert (terms["compute"], terms["copy"], terms["transfer"]) == (20, 10, 10)


SEND_RECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWork)"


def all_to_all(begin, end, is_annotated=True):
    """Launched in nccl:all_to_all, after a product and before one."""
    call = [event("nccl:all_to_all", begin - 15, 12, "user_annotation"), launch(begin - 10, begin)]
    return [
        *(call if is_annotated else []),
        kernel("gemm", -100, begin + 100),
        kernel(SEND_RECV, begin, end - begin, 20, correlation=begin),
        kernel("gemm", end + 10, 100),
    ]


@pytest.mark.parametrize("is_annotated", [True, False])
def test_unnamed_kernels_of_one_all_to_all_are_matched_by_call_or_by_end(tmp_path, is_annotated):
    early, late = all_to_all(10, 1000, is_annotated), all_to_all(900, 1002, is_annotated)
    trace = read(tmp_path, early, late)
    terms = profile.breakdown(trace)[0][0]
    assert (us(terms)["straggler"], us(terms)["transfer"]) == (890, 100)
    assert terms.waited_for == {1: pytest.approx(890e-6)}
    assert not [note for note in trace.notes if "clock" in note or "match" in note]


def test_kernels_that_end_apart_are_not_matched_and_that_is_said(tmp_path):
    trace = read(tmp_path, all_to_all(10, 500, False), all_to_all(900, 1000, False))
    assert "straggler" not in us(profile.breakdown(trace)[0][0])
    assert [note for note in trace.notes if "matched" in note]
    assert not [each for each in profile.diagnose(trace) if each.is_fault]


def test_an_order_that_the_times_contradict_is_not_believed(tmp_path):
    """Rank 1's file lacks the first of three all-reduces, which end at 110, 310 and 510 us."""
    reduced = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    ends = (110, 310, 510)
    whole = [kernel(reduced, end - 60, 60, 20) for end in ends]
    cut = [kernel(reduced, end - 10, 10, 20) for end in ends[1:]]
    trace = read(tmp_path, [kernel("gemm", 0, 40), *whole], [kernel("gemm", 0, 40), *cut])
    assert us(profile.breakdown(trace)[0][0])["straggler"] == 100
    assert us(profile.breakdown(trace)[0][0])["transfer"] == 60 + 2 * 10


def test_a_kernel_that_torch_names_a_collective_communicates_and_its_number_matches_it(tmp_path):
    """Rank 1's file lacks the collective of number 4. Ends are too far apart to match them."""

    def numbered(number, begin, end):
        args = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": number}
        return kernel("acme_ring", begin, end - begin, 20, **args)

    both = numbered(4, 10, 110), numbered(5, 300, 400)
    trace = read(
        tmp_path, [kernel("gemm", 0, 9), *both], [kernel("gemm", 0, 9), numbered(5, 320, 460)]
    )
    assert us(profile.breakdown(trace)[0][0])["straggler"] == 20


def test_groups_of_one_name_and_other_ranks_are_not_one_collective(tmp_path):
    def part(ranks, begin, end):
        group = {"Process Group Name": "tp", "Process Group Ranks": ranks}
        return [kernel("gemm", 0, 5), kernel("ncclDevKernel_AllReduce(x)", begin, end, 20, **group)]

    ranks = [part("[0, 1]", 10, 90), part("[0, 1]", 60, 40)]
    ranks += [part("[2, 3]", 10, 90), part("[2, 3]", 20, 80)]
    trace = read(tmp_path, *ranks)
    assert sorted(len(by_rank) for by_rank in trace.matched_exchanges.values()) == [2, 2]
    assert us(profile.breakdown(trace)[2][0])["straggler"] == 10


@pytest.mark.parametrize("meets", [True, False])
def test_clocks_of_hosts_are_compared_by_all_to_alls_or_that_is_said_of_the_other_rank(
    tmp_path, meets
):
    for rank in range(2):
        events = all_to_all(10, 1000, meets) if meets else [kernel("gemm", 0, 50)]
        for each in events:
            each["ts"] += 5_000_000 * rank
        document = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document | {"host_name": str(rank)}))
    (note,) = [each for each in profile.read([tmp_path]).notes if "clock" in each]
    assert "clock of rank 1" in note
    assert ("moved by -5 s" in note) == meets
    assert ("not compared" in note) != meets


def test_messages_are_matched_by_the_ends_in_the_name_of_their_call(tmp_path):
    ranks = []
    for rank, name in enumerate(("nccl:send 0->1", "nccl:recv 1<-0")):
        call = [event(name, 0, 20, "user_annotation"), launch(5, 1)]
        moved = kernel(SEND_RECV, 50 * (1 + rank), 100, 20, correlation=1)
        ranks.append([*call, kernel("gemm", 0, 30), moved])
    (by_rank,) = read(tmp_path, *ranks).matched_exchanges.values()
    assert {rank: (each.kind, each.group) for rank, each in by_rank.items()} == {
        0: ("send", (0, 1)),
        1: ("recv", (0, 1)),
    }


@pytest.mark.parametrize("has_calls", [True, False])
def test_in_a_real_step_of_eight_ranks_most_communication_is_waiting(tmp_path, has_calls):
    """By the ends of its five all-to-alls rank 1 waits 11.1 of 11.3 ms, 10.85 of it not hidden."""
    for path in (TRACES / "dlrm8").iterdir():
        document = json.loads(gzip.decompress(path.read_bytes()))
        if not has_calls:
            document["traceEvents"] = [
                each
                for each in document["traceEvents"]
                if each["cat"] not in ("cpu_op", "user_annotation", "cuda_runtime")
            ]
        (tmp_path / path.stem).write_text(json.dumps(document))
    trace = profile.read([tmp_path])
    waited = {rank: steps[0].seconds for rank, steps in profile.breakdown(trace).items()}
    assert waited[1]["straggler"] == pytest.approx(0.01085, abs=1e-4)
    assert waited[3]["straggler"] == pytest.approx(0.00924, abs=1e-4)
    assert max(each["transfer"] for each in waited.values()) < 3e-4
    assert not [note for note in trace.notes if "clock" in note or "match" in note]


def transfers_of(*sizes_us, compute_us=20):
    """An all-reduce of 4 kB for each, after as much computing."""
    events, at = [], 0
    for number, size in enumerate(sizes_us):
        moved = {"In msg nelems": 1000 * (1 + number % 2), "dtype": "Float"}
        events += [
            kernel("gemm", at, compute_us),
            kernel("ncclDevKernel_AllReduce(x)", at + compute_us, size, 20, **moved),
        ]
        at += compute_us + size
    return events


@pytest.mark.parametrize(("num_ranks", "world_size"), [(1, 8), (2, 8), (1, None)])
def test_without_all_ranks_nothing_is_claimed_of_transfers(tmp_path, num_ranks, world_size):
    events = transfers_of(*[200] * 10)
    trace = read(tmp_path, *[events] * num_ranks, world_size=world_size)
    if world_size is None:
        path = tmp_path / "rank0.json"
        path.write_text(json.dumps({"traceEvents": events}))
        trace = profile.read([path])
    found = profile.report(trace)
    assert not [each for each in found.findings if each.is_fault]
    shares = {each.cause: each.share for each in found.findings}
    assert shares["transfer or waiting"] == pytest.approx(200 / 220, abs=0.01)
    assert shares["latency"] == shares["bandwidth"] == shares["overlap"] == 0
    assert "transfer or waiting of rank" in found.words()[0]
    assert [note for note in trace.notes if "may be waiting" in note]


def test_with_all_ranks_the_same_transfers_are_latency(tmp_path):
    trace = read(tmp_path, *[transfers_of(*[200] * 10)] * 2)
    first = profile.diagnose(trace)[0]
    assert (first.cause, first.is_fault) == ("latency", True)


def test_a_straggler_is_possible_only_where_an_unknown_rank_may_be_later(tmp_path):
    slow, quick = transfers_of(*[10] * 9, compute_us=200), transfers_of(*[110] * 9, compute_us=100)
    whole = profile.diagnose(read(tmp_path, slow, quick))[0]
    assert (whole.cause, whole.rank, whole.verdict) == ("straggler", 0, "fault")
    some = {
        each.cause: each for each in profile.diagnose(read(tmp_path, slow, quick, world_size=4))
    }
    assert (some["straggler"].rank, some["straggler"].verdict) == (0, "possible")


def test_a_file_that_does_not_say_the_jobs_size_is_of_no_other_job(tmp_path):
    for rank, job in enumerate([{"world_size": 2, "rank": 0}, {}]):
        document = {"traceEvents": [kernel("gemm", 0, 100)], "distributedInfo": job}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    trace = profile.read([tmp_path])
    assert (trace.world_size, [*trace.ranks]) == (2, [0, 1])


def test_a_group_whose_ranks_are_all_there_is_certain_in_a_larger_job(tmp_path):
    events = transfers_of(*[200] * 10)
    for each in events:
        each["args"] |= {"Process Group Name": "tp", "Process Group Ranks": "[0, 1]"}
    first = profile.diagnose(read(tmp_path, events, events, world_size=8))[0]
    assert (first.cause, first.is_fault) == ("latency", True)


def test_two_traces_of_one_rank_of_many_grow_by_transfer_or_waiting():
    def trace(done_s):
        moved = Exchange(("a", 1), "all_reduce", (0, 1), 1.0, 1.0, done_s, 8, "a")
        own = RankTrace(0, 0.0, done_s, [Work(0, 1, "compute")], [moved])
        return Trace(2, {0: own})

    found = profile.compare(trace(2.0), trace(3.0))
    assert "transfer or waiting" in found.verdict
    assert found.to_json()["terms"][0]["term"] == "transfer"


@pytest.mark.parametrize(
    ("streams", "more", "compute_us", "is_said"),
    [
        ((1, 1), {}, 300, True),
        ((1, 2), {}, 5100, False),
        ((1, 1), {"graph node id": 7}, 5100, False),  # branches of a CUDA graph run at once
    ],
)
def test_what_overlaps_within_a_stream_is_cut_off(tmp_path, streams, more, compute_us, is_said):
    long, short = streams
    events = [kernel("fmha", 0, 5000, long, **more), kernel("gemm", 100, 100, short, **more)]
    trace = read(tmp_path, [*events, kernel("gemm", 5400, 100, 3)])
    assert us(profile.breakdown(trace)[0][0])["compute"] == compute_us
    assert bool([note for note in trace.notes if "overlap" in note]) == is_said


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (
            [event("cudaLaunchKernel", 10, 5, "cuda_runtime", correlation=3)],
            "start work on a device",
        ),
        ([event("hipGraphLaunch", 10, 5, "cuda_runtime", correlation=3)], "start work on a device"),
        ([event("addmm", 100, 500, "mtia_ccp_events", correlation=3)], "mtia_ccp_events"),
        ([], "has devices"),
    ],
)
def test_a_device_that_is_not_in_the_file_is_said_and_the_host_does_not_count_as_it(
    tmp_path, more, named
):
    events = [event("ProfilerStep#1", 0, 1000, "user_annotation"), event("aten::mm", 0, 900), *more]
    document = {"traceEvents": events, "deviceProperties": [] if more else [{"id": 0}]}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(document))
    trace = profile.read([path])
    (note,) = trace.notes
    assert named in note
    assert "rank0.json" in note
    if more:
        words = profile.report(trace).words()
        assert "operators of rank 0" in words[0]
        assert "faster kernels" not in " ".join(words)


def test_calls_without_work_and_unknown_host_events_beside_kernels_are_not_worth_a_note(tmp_path):
    step = event("ProfilerStep#1", 0, 1000, "user_annotation")
    queried = [step, event("aten::mm", 0, 900), event("cudaGetDeviceCount", 1, 1, "cuda_runtime")]
    assert read(tmp_path, queried).notes == []
    beside = [
        step,
        launch(10, 3),
        kernel("gemm", 20, 30, correlation=3),
        event("x", 0, 9, "my_own"),
    ]
    assert read(tmp_path, beside).notes == []


def test_categories_of_torch_before_its_first_kineto_are_known(tmp_path):
    step = event("ProfilerStep#2", 0, 99, "Operator")
    host = [step, event("aten::mm", 5, 20, "Operator")]
    assert us(profile.breakdown(read(tmp_path, host))[0][0])["compute"] == 20
    launched = event("cudaLaunchKernel", 7, 2, "Runtime", correlation=4)
    device = [launched, event("gemm", 40, 30, "Kernel", 7, correlation=4, stream=7)]
    assert us(profile.breakdown(read(tmp_path, host + device))[0][0])["compute"] == 30


def test_a_trace_without_steps_is_one_step_and_that_is_said_once(tmp_path):
    trace = read(tmp_path, *[transfers_of(5)] * 3)
    (note,) = trace.notes
    assert "prof.step()" in note
    assert "2 other files" in note


def test_the_command_says_what_it_wrote_and_keeps_its_headings_in_a_narrow_terminal(
    tmp_path, monkeypatch
):
    read(tmp_path, transfers_of(5))
    page = tmp_path / "page.html"
    monkeypatch.setenv("COLUMNS", "60")
    said = CliRunner().invoke(app, ["profile", str(tmp_path), "--html", str(page)]).output
    assert str(page) in said
    assert "straggler" in said
    assert "…" not in said
