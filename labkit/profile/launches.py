"""Find the call of the host that launched each kernel, and cut overlaps of a stream's kernels.

    host     |-------- c10d::alltoall_base_ ---------|
               |------ nccl:all_to_all -----------|
                    |- cudaLaunchKernel, 7 -|               correlation 7
    stream                  |--- ncclKernel_SendRecv, 7 ---|    so this one is an all-to-all

The innermost operator or annotation around the launch counts: a copy that an all-gather makes with
aten::copy_ is not communication. If the launch is not in the file, an annotation's External id or
its own range on the stream identifies it.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import pairwise

from labkit.profile.communication_kernels import Communication, kind_of
from labkit.profile.trace_file import Event, in_threads

DEVICE = ("kernel", "memcpy", "memset")
_ON_STREAMS = (*DEVICE, "gpu_user_annotation", "cuda_sync")
_OPERATORS = ("cpu_op", "user_annotation")


def launch_times(events: Iterable[Event]) -> dict[int, float]:
    """Return the time of each launch by the host, in microseconds, by correlation."""
    return {
        number: each.start_us
        for each in events
        if each.category not in _ON_STREAMS and (number := _correlation(each)) is not None
    }


def _correlation(event: Event) -> int | None:
    number = event.number("correlation")
    return number if number is not None and number >= 0 else None


def launched_at(event: Event, times_us: dict[int, float]) -> float | None:
    """Return when the host launched this kernel, if the file says so."""
    number = _correlation(event)
    return None if number is None else times_us.get(number)


class Callers:
    """Finds the call that communicates around the launch of a kernel."""

    def __init__(self, events: list[Event], communication: Communication) -> None:
        self._is_call = cache(communication.is_call)
        self._by_launch: dict[int, Event | None] = {}
        self._by_id: dict[int, Event] = {}
        self._ranges: dict[tuple[object, object], list[Event]] = defaultdict(list)
        for each in events:
            number = each.number("External id") if each.category in _OPERATORS else None
            if number is not None and self._is_call(each.name):
                self._by_id[number] = each
            if each.category == "gpu_user_annotation" and self._is_call(each.name):
                self._ranges[each.process, each.thread].append(each)
        for thread in in_threads(each for each in events if each.category not in _ON_STREAMS):
            self._add_thread(thread)

    def _add_thread(self, events: list[Event]) -> None:
        around: list[Event] = []
        for each in events:
            while around and around[-1].end_us <= each.start_us:
                around.pop()
            number = _correlation(each)
            if each.category in _OPERATORS:
                around.append(each)
            elif number is not None:
                self._by_launch[number] = self._innermost(around)

    def _innermost(self, around: list[Event]) -> Event | None:
        """Merge the nearest nested calls into one, with the arguments of each."""
        calls: list[Event] = []
        for each in reversed(around):
            if not self._is_call(each.name):
                break
            calls.append(each)
        if not calls:
            return None
        merged = {k: v for each in reversed(calls) for k, v in each.arguments.items()}
        # record_param_comms has the arguments, nccl:send 0->1 the name.
        named = next((each for each in calls if kind_of(each.name)), calls[0])
        return replace(named, arguments=merged)

    def around(self, kernel: Event) -> Event | None:
        """Return the call, with the arguments of its inner and outer calls; None: there is none."""
        number = _correlation(kernel)
        if number is not None and number in self._by_launch:
            return self._by_launch[number]
        written = kernel.number("External id")
        # Old profilers write the correlation there, which is not an operator's number.
        if written is not None and written != number and written in self._by_id:
            return self._by_id[written]
        ranges = self._ranges.get((kernel.process, kernel.thread), [])
        last = bisect.bisect_right(ranges, kernel.start_us, key=lambda each: each.start_us) - 1
        return ranges[last] if last >= 0 and kernel.end_us <= ranges[last].end_us else None


def one_after_the_other(on_device: list[Event]) -> tuple[list[Event], float]:
    """Cut each event of a stream where the next one begins; return the microseconds cut, too.

    Kernels of one stream do not overlap, but traces of ROCm have durations that are too long.
    Kernels of a CUDA graph stay as they are: its branches run at the same time, and a trace may
    show them on one stream.
    """
    streams: dict[tuple[object, int], list[int]] = defaultdict(list)
    for place, each in enumerate(on_device):
        stream = each.number("stream")
        if stream is not None and not each.number("graph node id"):
            streams[each.process, stream].append(place)
    found, cut_us = list(on_device), 0.0
    for places in streams.values():
        places.sort(key=lambda place: (on_device[place].start_us, on_device[place].end_us))
        for place, after in pairwise(places):
            each, next_us = on_device[place], on_device[after].start_us
            if each.end_us > next_us:
                cut_us += each.end_us - next_us
                found[place] = replace(each, end_us=next_us)
    return found, cut_us
