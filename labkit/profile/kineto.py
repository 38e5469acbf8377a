"""PyTorch Profiler's Chrome traces as a Trace: of CPU ranks on gloo, and of GPU ranks on nccl.

    prof.export_chrome_trace(f"rank{rank}.json")       one file per rank; `recording` writes them

What becomes what:

                a CPU rank                               a GPU rank
    lane        operators on the thread of the steps     kernels on all streams but nccl's
    compute     aten::... and other operators            kernels
    data        enumerate(DataLoader)...__next__         idle, while the host is in that
    copy        -                                        Memcpy, Memset
    exchange    gloo:all_reduce, from c10d::allreduce_   ncclKernel..., ncclDevKernel...
    waiting     the lane is free until it ends           the lane is free until it ends
    step        ProfilerStep#n                           from the first kernel that a step launched
    memory      [memory], with profile_memory=True       the same, of the device

Files give no sequence numbers of gloo: the n-th collective of one kind and shape on a rank belongs
to the n-th on the others (the n-th all-to-all, of any shape). nccl's kernels are matched by group
and kind, in order.

Format: Trace Event Format (JSON, also gzipped); "X" complete events; times in microseconds.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from labkit.comm import Group
from labkit.profile.activity import Span, topmost
from labkit.profile.step_trace import (
    COMPUTE,
    COPY,
    DATA,
    MESSAGES,
    Exchange,
    RankTrace,
    Trace,
    Work,
    WorkKind,
    aligned,
    missing,
    with_waits,
)

Event = dict[str, Any]
_NO_EVENT: Event = {"name": "", "cat": "", "tid": 0, "args": {}}
_STEP = "ProfilerStep#"
_LOADER = "enumerate(DataLoader)"
# Calls of collectives; and what autograd calls: hooks in Python run inside, between its operators.
_NO_WORK = re.compile(r"^c10d::|^autograd::engine|Backward\d*$")
_PRODUCTS = re.compile("aten::.*(linear|mm|matmul|convolution|attention)")
_COPIES = ("memcpy", "memset")
_NCCL = re.compile("nccl.*Kernel")  # ncclDevKernel_AllReduce..., and once ncclAllReduceRingLLKernel
_KINDS = (
    "all_reduce all_gather reduce_scatter all_to_all broadcast reduce gather scatter barrier "
    "send_recv send recv"
).split()
_WIDTH = {"double": 8, "long": 8, "long int": 8, "half": 2, "bfloat16": 2, "short": 2}
_WIDTH |= dict.fromkeys(("byte", "char", "unsigned char", "signed char", "bool"), 1)
_WIDTH |= dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1)


def read(paths: Iterable[str | Path]) -> Trace:
    """The trace of a job from one file per rank; the clocks of several hosts are aligned.

    A folder stands for the .json and .json.gz files in it.

    OSError where a file cannot be read; ValueError, which names the file, for what is no trace of
    PyTorch Profiler, for a rank that two files claim, and for jobs of different sizes.
    """
    ranks: dict[int, RankTrace] = {}
    sizes: dict[int, Path] = {}
    hosts = set()
    zero_ns = None
    for number, path in enumerate(_files(paths)):
        document = _document(path)
        zero_ns = _zero_ns(document) if zero_ns is None else zero_ns
        job = document.get("distributedInfo") or {}
        rank = int(number if job.get("rank") is None else job["rank"])
        if rank in ranks:
            raise ValueError(f"{path}: another file is of rank {rank} already; give one per rank")
        hosts.add(document.get("host_name", rank))
        sizes.setdefault(int(job.get("world_size") or 1), path)
        ranks[rank] = _rank(rank, document, zero_ns, path)
    if not ranks:
        raise ValueError("no trace is given: name the files, one per rank")
    if len(sizes) > 1:
        named = " and ".join(f"{size} ranks in {path}" for size, path in sizes.items())
        raise ValueError(f"these files are of different jobs: {named}")
    world_size = max(*sizes, max(ranks) + 1)
    trace = Trace(world_size, dict(sorted(ranks.items())), missing(world_size, ranks))
    return aligned(trace) if len(hosts) > 1 else trace


def _files(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        found = sorted([*path.glob("*.json"), *path.glob("*.json.gz")])
        if not found:
            raise ValueError(f"{path} has no trace in it, neither *.json nor *.json.gz")
        yield from found


def _document(path: Path) -> Event:
    data = path.read_bytes()
    try:
        found = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is no JSON, so no trace: {error}") from None
    events = found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(events, list) or not all(isinstance(each, dict) for each in events):
        raise ValueError(f'{path} has no "traceEvents": give what export_chrome_trace has written')
    return found


def _zero_ns(document: Event) -> int:
    """A moment near the trace's start: a float of seconds since 1970 is off by up to 0.2 us."""
    times_us = (float(e["ts"]) for e in document["traceEvents"] if e.get("ph") == "X" and "ts" in e)
    first_us = min(times_us, default=0.0)
    return int(document.get("baseTimeNanoseconds", 0)) + 1000 * int(first_us)


def _rank(rank: int, document: Event, zero_ns: int, path: Path) -> RankTrace:
    zero_us = (int(document.get("baseTimeNanoseconds", 0)) - zero_ns) / 1000
    spans = sorted(
        (
            _NO_EVENT | each | {"ts": float(each["ts"]) + zero_us, "dur": float(each["dur"])}
            for each in document["traceEvents"]
            if each.get("ph") == "X" and each.get("dur") is not None and each.get("cat") != "Trace"
        ),
        key=lambda each: (each["ts"], -each["dur"]),
    )
    has_kernels = any(_on_device(each) == "kernel" for each in spans)
    own = _of_gpu(spans, rank) if has_kernels else _of_cpu(spans, rank)
    times = [(each.start_s, each.end_s) for each in own.work]
    times += [(each.posted_s, each.done_s) for each in own.exchanges]
    if not times:
        raise ValueError(f"{path} has neither operators nor kernels: was anything profiled?")
    start_s, end_s = min(times)[0], max(end_s for _, end_s in times)
    exchanges = with_waits(own.work, own.exchanges)
    memory = _memory(document["traceEvents"], zero_us)
    return RankTrace(rank, start_s, end_s, own.work, exchanges, own.steps, memory).of_steps()


def _memory(events: Iterable[Event], zero_us: float) -> list[tuple[float, int]]:
    """Bytes allocated over time: on the device with most events, the CPU if there is no other."""
    found: dict[tuple[bool, int], list[tuple[float, int]]] = defaultdict(list)
    for each in events:
        if each.get("name") == "[memory]":
            about = each["args"]
            device = about.get("Device Type", 0) > 0, about.get("Device Id", -1)
            at_s = (float(each["ts"]) + zero_us) / 1e6
            found[device].append((at_s, int(about["Total Allocated"])))
    most = max(found, key=lambda device: (device[0], len(found[device])), default=None)
    return sorted(found[most]) if most else []


class _Own:
    """Lane, exchanges and steps of one rank, as they are found."""

    def __init__(self, lane: list[Work], steps: list[tuple[float, float]]) -> None:
        self.work, self.steps = lane, steps
        self.exchanges: list[Exchange] = []
        self._turn: Counter[tuple] = Counter()

    def add(
        self, kind: str, posted_s: float, done_s: float, group: Sequence[int], key: tuple, size: int
    ) -> None:
        """One more exchange."""
        self._turn[kind, *key] += 1
        turn = self._turn[kind, *key]
        name = f"{kind} #{turn}"
        found = Exchange((*key, turn), kind, tuple(group), posted_s, None, done_s, size, name)
        self.exchanges.append(found)


def _of_cpu(spans: list[Event], rank: int) -> _Own:
    steps = [each for each in spans if each["name"].startswith(_STEP)]
    operators = [each for each in spans if each.get("cat") == "cpu_op"]
    threads = Counter(each["tid"] for each in steps or operators)
    main = threads.most_common(1)[0][0] if threads else None
    on_main = [each for each in spans if each["tid"] == main]
    lane = _outermost(
        (each, DATA if each["name"].startswith(_LOADER) else COMPUTE)
        for each in _without_callers(on_main)
        if each["name"].startswith(_LOADER)
        or (each.get("cat") == "cpu_op" and not _NO_WORK.search(each["name"]))
    )
    marks = [_times(each) for each in steps]
    if len(marks) > 1 and not any(w.kind == COMPUTE for w in lane if w.end_s > marks[-1][0]):
        marks.pop()  # no step: the loop has ended, and then the profiler
    own = _Own(lane, marks)
    calls: dict[str, list[Event]] = defaultdict(list)
    runs: dict[str, list[Event]] = defaultdict(list)
    for each in spans:
        library, _, name = each["name"].partition(":")
        if library in ("c10d", "gloo"):
            (calls if library == "c10d" else runs)[_kind(name)].append(each)
    for kind, events in runs.items():
        # The call is when the rank arrives; gloo's thread may come to it later.
        posted = calls[kind] if len(calls[kind]) == len(events) else events
        for call, event in zip(posted, events):
            ends = _ends(kind, call, rank)
            # In an all-to-all every rank has a shape of its own.
            shape = "" if kind == "all_to_all" else str(event["args"].get("Input Dims"))
            key = ends or (kind, shape)
            own.add(kind, _times(call)[0], _times(event)[1], ends, key, _bytes(event))
    return own


def _of_gpu(spans: list[Event], rank: int) -> _Own:
    on_device = [each for each in spans if _on_device(each)]
    nccl = [each for each in on_device if _NCCL.match(each["name"])]
    loading = [each for each in spans if each["name"].startswith(_LOADER)]
    own = _Own(_device_lane(on_device, loading), _device_steps(spans, on_device))
    for each in nccl:
        arguments = each["args"]
        kind = _kind(arguments.get("Collective name") or each["name"])
        start_s, end_s = _times(each)
        # Of a large group Kineto writes the first ranks only: "[0, 1, 2, ..., 255]".
        group = [
            int(each) for each in re.findall(r"\d+", str(arguments.get("Process Group Ranks")))
        ]
        key: tuple = (kind, arguments.get("Process Group Name", ""))
        if kind in (*MESSAGES, "send_recv"):
            ends = arguments.get("Src Rank"), arguments.get("Dst Rank")
            # Where ends are not named, nobody knows which messages belong together.
            group, key = (group, (kind, rank)) if None in ends else (list(map(int, ends)), ends)
        own.add(kind, start_s, end_s, group, key, _bytes(each))
    return own


def _on_device(event: Event) -> str:
    """kernel, memcpy or memset; empty for what does not run on a device."""
    kind = event.get("cat", "").lower().removeprefix("gpu_")
    return kind if kind in ("kernel", *_COPIES) else ""


def _device_lane(on_device: list[Event], loading: list[Event]) -> list[Work]:
    """All streams as one lane: kernels, then copies, then a device idle while the host loads."""
    layers: dict[str, list[Span]] = {each: [] for each in (DATA, "nccl", COPY, COMPUTE)}
    for each in on_device:
        copies = COPY if _on_device(each) in _COPIES else COMPUTE
        label = "nccl" if _NCCL.match(each["name"]) else copies
        layers[label].append(Span(*_times(each), label))
    first_s = min(_times(each)[0] for each in on_device)
    last_s = max(_times(each)[1] for each in on_device)
    for each in loading:
        start_s, end_s = _times(each)
        if first_s < end_s and start_s < last_s:
            layers[DATA].append(Span(max(start_s, first_s), min(end_s, last_s), DATA))
    kinds: dict[str, WorkKind] = {DATA: DATA, COPY: COPY, COMPUTE: COMPUTE}
    return [
        Work(span.start_s, span.end_s, kinds[span.label])
        for span in topmost(list(itertools.chain(*layers.values())))
        if span.label in kinds
    ]


def _device_steps(spans: list[Event], on_device: list[Event]) -> list[tuple[float, float]]:
    """A step on the device: from the first kernel that it launched to the next step's first."""
    hosts = [each for each in spans if _link(each) >= 0 and not _on_device(each)]
    launched = {_link(each): each["ts"] for each in hosts}
    starts = []
    for mark in spans:
        if mark["name"].startswith(_STEP) and mark.get("cat") != "gpu_user_annotation":
            begin, end = mark["ts"], mark["ts"] + mark["dur"]
            own = [e["ts"] for e in on_device if begin <= launched.get(_link(e), -1.0) < end]
            starts += [min(own) / 1e6] if own else []
    last = max(_times(each)[1] for each in on_device)
    return list(zip(starts, [*starts[1:], last], strict=False))


def _link(event: Event) -> int:
    """Of a kernel and of the call that launched it: the same; -1 for all other events."""
    return int(event.get("args", {}).get("correlation", -1))


def _without_callers(events: list[Event]) -> list[Event]:
    """Events of one thread but those inside which a collective is called: they may wait there."""
    around: list[Event] = []
    callers = set()
    for each in events:
        while around and around[-1]["ts"] + around[-1]["dur"] <= each["ts"]:
            around.pop()
        if each["name"].startswith("c10d::"):
            callers |= {id(caller) for caller in around}
        around.append(each)
    return [each for each in events if id(each) not in callers]


def _outermost(events: Iterable[tuple[Event, Any]]) -> list[Work]:
    """The lane: events in order of start; where two overlap, the earlier one counts."""
    lane: list[Work] = []
    for event, kind in events:
        start_s, end_s = _times(event)
        start_s = max(start_s, lane[-1].end_s) if lane else start_s
        if end_s > start_s:
            lane.append(Work(start_s, end_s, kind, event["name"], _size(event)))
    return lane


def _size(event: Event) -> int:
    if not _PRODUCTS.match(event["name"]):
        return 0
    shape: list[Any] = next(iter(event.get("args", {}).get("Input Dims", [])), [])
    return math.prod(shape) if shape and all(isinstance(n, int) for n in shape) else 0


def _times(event: Event) -> tuple[float, float]:
    return event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6


def _kind(name: str) -> str:
    """all_reduce, of c10d's allreduce_, gloo's all_reduce and nccl's AllReduce_Sum_f32."""
    letters = re.sub("[^a-z]", "", name.lower())
    found = [kind for kind in _KINDS if kind.replace("_", "") in letters]
    return max(found, key=len, default=name)


def _ends(kind: str, call: Event, rank: int) -> tuple[int, ...]:
    """Source and destination of a message; gloo's traces do not name the ranks of a collective."""
    inputs = call["args"].get("Concrete Inputs", [])
    if kind not in MESSAGES or len(inputs) < 3:
        return ()
    peer = int(inputs[2])
    return (rank, peer) if kind == "send" else (peer, rank)


def _bytes(event: Event) -> int:
    arguments = event["args"]
    if "In msg nelems" in arguments:
        return int(arguments["In msg nelems"]) * _width(arguments.get("dtype"))
    count = 1
    for size in (arguments.get("Input Dims") or [[0]])[0]:
        count *= size if isinstance(size, int) else 1
    return count * _width((arguments.get("Input type") or ["float"])[0])


def _width(name: object) -> int:
    return _WIDTH.get(str(name).lower().removeprefix("c10::"), 4)


@contextmanager
def recording(
    world: Group, folder: str | Path, *, memory: bool = False
) -> Iterator[Callable[[], None]]:
    """Record every step of a loop that calls what this yields at the end of each.

        with profile.recording(world, "traces") as step:
            for batch in loader:
                ...
                step()

    Writes folder/rank0.json and so on, also where GPUs compute. The first step, in which everything
    is new, is left out.

    memory: record allocations as well, and operators of the calling thread only. Without it, those
    of all threads: torch's profiler sees either other threads or memory.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else each rank prints that it began
    activities = [ProfilerActivity.CPU]
    if world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    plan = torch.profiler.schedule(wait=0, warmup=1, active=1_000_000)
    threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=not memory)
    with torch.profiler.profile(
        activities=activities,
        schedule=plan,
        record_shapes=True,
        profile_memory=memory,
        acc_events=True,
        experimental_config=threads,
    ) as found:
        yield found.step
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    found.export_chrome_trace(str(path / f"rank{world.rank}.json"))
