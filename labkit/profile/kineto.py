"""Read PyTorch Profiler's Chrome traces: CPU ranks on gloo, GPU ranks on any library.

    prof.export_chrome_trace(f"rank{rank}.json")       one file per rank; `recording` writes them

The parts of a Trace, and their events in a file:

                a CPU rank                               a GPU rank
    lane        operators on the thread of the steps     kernels on all streams that compute
    compute     aten::... and other operators            kernels
    data        enumerate(DataLoader)...__next__         idle, while the host is in that
    copy        -                                        Memcpy, Memset
    exchange    gloo:all_reduce, from c10d::allreduce_   kernels that communicate, by
                                                         communication_kernels
    waiting     the lane is free until it ends           the lane is free until it ends
    step        ProfilerStep#n                           from the first kernel that a step launched
    memory      [memory], with profile_memory=True       the same, of the device

On CPU ranks the n-th collective of one kind and shape on a rank is matched with the n-th on the
others; an all-to-all, with the n-th of any shape. Kernels are matched by group and kind, in order,
or by `Seq` if torch has written it. `matching` corrects matches that contradict the times.

The trace's notes list events that were left out, devices that were not recorded, and kernels that
may be communication.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit.profile.activity import Span, topmost
from labkit.profile.communication_kernels import (
    PEER_COPY,
    SOME_KIND,
    Communication,
    kind_of,
    own_name,
)
from labkit.profile.launches import (
    DEVICE,
    Callers,
    launch_times,
    launched_at,
    one_after_the_other,
)
from labkit.profile.matching import match_by_time
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
from labkit.profile.trace_file import MAX_BYTES, Event, TraceFile, load
from labkit.profile.trace_notes import STEP, Notes

_LOADER = "enumerate(DataLoader)"
_HOST_LIBRARIES = ("gloo", "mpi", "ucc")
# Calls of collectives, and nodes of autograd: their hooks in Python may wait.
_NO_WORK = re.compile(r"^c10d::|^autograd::engine|Backward\d*$|^ProfilerStep#")
_PRODUCTS = re.compile("aten::.*(linear|mm|matmul|convolution|attention)")
_ENDS = re.compile(r"(\d{1,6})\s*(->|<-)\s*(\d{1,6})")


def read(
    paths: Iterable[str | Path],
    *,
    communication: str | Iterable[str] = (),
    max_bytes: int = MAX_BYTES,
) -> Trace:
    """Return the trace of a job from one file per rank; the clocks of several hosts are aligned.

    A folder stands for the .json and .json.gz files in it.

    communication: regular expressions for names of kernels that communicate, beside those that are
    known. `communication_kernels.KNOWN` has these.
    max_bytes: the largest JSON of a file, after gzip, that is read.

    OSError if a file cannot be read; ValueError, which names the file, unless it is a trace of
    PyTorch Profiler, for a rank that two files claim, and for jobs of different sizes.
    """
    known = Communication([communication] if isinstance(communication, str) else communication)
    ranks: dict[int, RankTrace] = {}
    sizes: dict[int, Path] = {}
    hosts: set[str | int] = set()
    notes = Notes()
    zero_ns = None
    for number, path in enumerate(_files(paths)):
        file = load(path, max_bytes)
        zero_ns = _zero_ns(file) if zero_ns is None else zero_ns
        rank = number if file.rank is None else file.rank
        if rank in ranks:
            raise ValueError(f"{path}: another file is of rank {rank} already; give one per rank")
        hosts.add(rank if file.host is None else file.host)
        if file.world_size is not None:
            sizes.setdefault(file.world_size, path)
        ranks[rank] = _rank(rank, file, zero_ns, known, notes)
    if not ranks:
        raise ValueError("no trace is given: name the files, one per rank")
    if len(sizes) > 1:
        named = " and ".join(f"{size} ranks in {path}" for size, path in sizes.items())
        raise ValueError(f"these files are of different jobs: {named}")
    world_size = max([*sizes, max(ranks) + 1])
    is_known, host_only = len(ranks) > 1 or bool(sizes), frozenset(notes.host_only)
    trace = Trace(world_size, dict(sorted(ranks.items())), [], is_known, host_only)
    trace = aligned(trace) if len(hosts) > 1 else trace
    trace = match_by_time(trace, notes.on_device, 1e-3 if len(hosts) > 1 else 5e-5)
    trace.notes[:0] = [*missing(world_size, ranks), *notes.sentences(trace)]
    return trace


def _files(paths: Iterable[str | Path]) -> Iterator[Path]:
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        found = sorted([*path.glob("*.json"), *path.glob("*.json.gz")])
        if not found:
            raise ValueError(f"{path} has no trace in it, neither *.json nor *.json.gz")
        yield from found


def _zero_ns(file: TraceFile) -> int:
    """Return a time near the trace's start. Floats of seconds since 1970 are off by 0.2 us."""
    first_us = file.events[0].start_us if file.events else 0.0
    return file.base_ns + 1000 * int(first_us)


def _rank(
    rank: int, file: TraceFile, zero_ns: int, communication: Communication, notes: Notes
) -> RankTrace:
    zero_us = (file.base_ns - zero_ns) / 1000
    for each in file.events:
        each.start_us += zero_us
        each.end_us += zero_us
    if any(each.category == "kernel" for each in file.events):
        notes.on_device.add(rank)
        own = _of_gpu(file, rank, communication, notes)
    else:
        own = _of_cpu(file.events, rank)
    times = [(each.start_s, each.end_s) for each in own.work]
    times += [(each.posted_s, each.done_s) for each in own.exchanges]
    if not times:
        bad = f", and {file.num_malformed} malformed events" if file.num_malformed else ""
        raise ValueError(
            f"{file.path} has neither operators nor kernels{bad}: record at least one step "
            "while the profiler is on"
        )
    start_s, end_s = min(times)[0], max(end_s for _, end_s in times)
    notes.add_file(rank, file, has_steps=bool(own.steps))
    exchanges = with_waits(own.work, own.exchanges)
    memory = _memory(file, zero_us)
    return RankTrace(rank, start_s, end_s, own.work, exchanges, own.steps, memory).of_steps()


def _memory(file: TraceFile, zero_us: float) -> list[tuple[float, int]]:
    """Return allocated bytes over time: of the GPU with most events, of the CPU without a GPU."""
    found = file.memory
    most = max(found, key=lambda device: (device[0], len(found[device])), default=None)
    times = found[most] if most else []
    return sorted(((at_us + zero_us) / 1e6, nbytes) for at_us, nbytes in times)


class _Own:
    """Lane, exchanges and steps of one rank, while they are collected."""

    def __init__(self, lane: list[Work], steps: list[tuple[float, float]]) -> None:
        self.work, self.steps = lane, steps
        self.exchanges: list[Exchange] = []
        self._turn: Counter[tuple] = Counter()

    def add(
        self, kind: str, posted_s: float, done_s: float, group: Sequence[int], key: tuple, size: int
    ) -> None:
        """Add an exchange."""
        self._turn[kind, *key] += 1
        turn = self._turn[kind, *key]
        name = f"{kind} #{turn}"
        found = Exchange((*key, turn), kind, tuple(group), posted_s, None, done_s, size, name)
        self.exchanges.append(found)


def _of_cpu(events: list[Event], rank: int) -> _Own:
    steps = [each for each in events if each.name.startswith(STEP)]
    operators = [each for each in events if each.category == "cpu_op"]
    threads = Counter(each.thread for each in steps or operators)
    main = threads.most_common(1)[0][0] if threads else None
    on_main = [each for each in events if each.thread == main]
    lane = _outermost(
        (each, DATA if each.name.startswith(_LOADER) else COMPUTE)
        for each in _without_callers(on_main)
        if each.name.startswith(_LOADER)
        or (each.category == "cpu_op" and not _NO_WORK.search(each.name))
    )
    marks = [each.times_s for each in steps]
    if len(marks) > 1 and not any(w.kind == COMPUTE for w in lane if w.end_s > marks[-1][0]):
        marks.pop()  # no step: the loop has ended, and then the profiler
    own = _Own(lane, marks)
    calls: dict[str, list[Event]] = defaultdict(list)
    runs: dict[str, list[Event]] = defaultdict(list)
    for each in events:
        library, _, name = each.name.partition(":")
        if library == "c10d" or library in _HOST_LIBRARIES:
            kind = kind_of(name) or SOME_KIND
            (calls if library == "c10d" else runs)[kind].append(each)
    for kind, found in runs.items():
        # The rank arrives at its call; gloo's thread may start later.
        posted = calls[kind] if len(calls[kind]) == len(found) else found
        for call, event in zip(posted, found):
            ends = _ends_of_call(kind, call, rank)
            # In an all-to-all every rank has a shape of its own.
            shape = "" if kind == "all_to_all" else str(event.arguments.get("Input Dims"))[:1000]
            key = ends or (kind, shape)
            arrives_s = min(call.times_s[0], event.times_s[1])
            own.add(kind, arrives_s, event.times_s[1], ends, key, event.nbytes)
    return own


def _of_gpu(file: TraceFile, rank: int, communication: Communication, notes: Notes) -> _Own:
    recorded = [each for each in file.events if each.category in DEVICE]
    on_device, cut_us = one_after_the_other(recorded)
    callers = Callers(file.events, communication)
    layers: dict[str, list[Span]] = {each: [] for each in (DATA, "exchange", COPY, COMPUTE)}
    exchanges: list[tuple[str, Event]] = []
    computing: Counter[str] = Counter()
    for each in on_device:
        call = callers.around(each)
        said_by = call.name if call else each.text("Collective name")
        kind = communication.kind(each.name)
        if said_by:
            kind = communication.kind_within(said_by, each.name)
        if kind:
            layers["exchange"].append(Span(*each.times_s, "exchange"))
            exchanges.append(_with_call_arguments(kind, each, call))
        elif each.category == "kernel":
            layers[COMPUTE].append(Span(*each.times_s, COMPUTE))
            computing[each.name] += round(1000 * (each.end_us - each.start_us))
        else:
            layers[COPY].append(Span(*each.times_s, COPY))
    loading = [each for each in file.events if each.name.startswith(_LOADER)]
    own = _Own(_device_lane(layers, on_device, loading), _device_steps(file.events, on_device))
    for kind, each in exchanges:
        group, key = _group_and_key(kind, each, rank)
        own.add(kind, *each.times_s, group, key, each.nbytes)
    notes.add_device(rank, file, on_device, cut_us, computing)
    return own


def _with_call_arguments(kind: str, kernel: Event, call: Event | None) -> tuple[str, Event]:
    """Return the kind of a communication kernel, and the kernel with its call's arguments added."""
    if call:
        kernel = replace(kernel, arguments={**call.arguments, **kernel.arguments})
        ends = _ENDS.search(call.name)
        if ends and kernel.number("Src Rank") is None:
            ranks = [int(ends[1]), int(ends[3])][:: 1 if ends[2] == "->" else -1]
            # The name has ranks within the group.
            group = kernel.group or list(range(max(ranks) + 1))
            source, target = (group[each] if each < len(group) else each for each in ranks)
            named = {"Src Rank": source, "Dst Rank": target}
            kernel = replace(kernel, arguments={**kernel.arguments, **named})
    said = kind_of(kernel.text("Collective name")) or (kind_of(call.name) if call else "")
    return said or kind, kernel


def _group_and_key(kind: str, event: Event, rank: int) -> tuple[list[int], tuple]:
    """Return the ranks that take part, if they are known, and the key of an exchange."""
    group = event.group
    named = event.text("Process Group Name"), str(event.arguments.get("Process Group Ranks"))[:1000]
    if kind == PEER_COPY:
        return [], (kind, rank)
    if kind in (*MESSAGES, "send_recv"):
        source, target = event.number("Src Rank"), event.number("Dst Rank")
        if kind == "send_recv" or source is None or target is None or min(source, target) < 0:
            # If ends are not named, the messages that belong together are unknown.
            return group if kind == "send_recv" else [], (kind, rank)
        return [source, target], (source, target, *named)
    is_nccl = re.match(r"[a-z]{1,2}ccl", own_name(event.name))
    name = "" if is_nccl or event.text("Collective name") else own_name(event.name)[:200]
    return group, (kind, *named, name, event.number("Seq"))


def _device_lane(
    layers: dict[str, list[Span]], on_device: list[Event], loading: list[Event]
) -> list[Work]:
    """Return all streams as one lane: kernels, then copies, then a device idle while the host
    loads."""
    first_s = min(each.times_s[0] for each in on_device)
    last_s = max(each.times_s[1] for each in on_device)
    for each in loading:
        start_s, end_s = each.times_s
        if first_s < end_s and start_s < last_s:
            layers[DATA].append(Span(max(start_s, first_s), min(end_s, last_s), DATA))
    kinds: dict[str, WorkKind] = {DATA: DATA, COPY: COPY, COMPUTE: COMPUTE}
    return [
        Work(span.start_s, span.end_s, kinds[span.label])
        for span in topmost(list(itertools.chain(*layers.values())))
        if span.label in kinds
    ]


def _device_steps(events: list[Event], on_device: list[Event]) -> list[tuple[float, float]]:
    """Return the steps on the device. Each ends where the first kernel of the next one starts.

    A step starts with the first kernel that the host launched in it. If no launches are recorded,
    it starts with the step's range on the device, if there is one.
    """
    found = [each for each in events if each.name.startswith(STEP)]
    marks = [each for each in found if each.category != "gpu_user_annotation"]
    begins_us = [each.start_us for each in marks]
    launched_us = launch_times(events)
    first_us: dict[int, float] = {}
    for each in on_device:
        at_us = launched_at(each, launched_us)
        mark = -1 if at_us is None else bisect.bisect_right(begins_us, at_us) - 1
        if mark >= 0 and at_us is not None and at_us < marks[mark].end_us:
            first_us[mark] = min(each.start_us, first_us.get(mark, each.start_us))
    starts = sorted(start_us / 1e6 for start_us in first_us.values())
    if not starts:
        on_streams = (each for each in found if each.category == "gpu_user_annotation")
        starts = sorted({each.times_s[0] for each in on_streams})
    last = max(each.times_s[1] for each in on_device)
    return list(zip(starts, [*starts[1:], max([last, *starts])], strict=False))


def _without_callers(events: list[Event]) -> list[Event]:
    """Return a thread's events without those that call a collective inside, and may wait there."""
    around: list[Event] = []
    callers = set()
    for each in events:
        while around and around[-1].end_us <= each.start_us:
            around.pop()
        if each.name.startswith("c10d::"):
            callers |= {id(caller) for caller in around}
        around.append(each)
    return [each for each in events if id(each) not in callers]


def _outermost(events: Iterable[tuple[Event, Any]]) -> list[Work]:
    """Return the lane: events in order of start; where two overlap, the earlier one counts."""
    lane: list[Work] = []
    for event, kind in events:
        start_s, end_s = event.times_s
        start_s = max(start_s, lane[-1].end_s) if lane else start_s
        if end_s > start_s:
            size = event.first_numel if _PRODUCTS.match(event.name) else 0
            lane.append(Work(start_s, end_s, kind, event.name, size))
    return lane


def _ends_of_call(kind: str, call: Event, rank: int) -> tuple[int, ...]:
    """Source and destination of a message; gloo's traces do not name the ranks of a collective."""
    inputs = call.items("Concrete Inputs")
    if kind not in MESSAGES or len(inputs) < 3 or not str(inputs[2]).isdecimal():
        return ()
    peer = int(str(inputs[2])[:9])
    return (rank, peer) if kind == "send" else (peer, rank)
