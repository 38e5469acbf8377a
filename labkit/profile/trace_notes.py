"""Notes on a trace's files that a reader of its figures should know, one for all ranks alike."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from labkit.profile.communication_kernels import Communication, own_name
from labkit.profile.launches import DEVICE
from labkit.profile.step_trace import Trace
from labkit.profile.trace_file import Event, TraceFile, printable

STEP = "ProfilerStep#"
_HOST = (
    "cpu_op user_annotation python_function cpu_instant_event fwdbwd ac2g overhead trace "
    "gpu_user_annotation cuda_sync cuda_event external_correlation async_cpu_to_gpu "
    "cuda_profiler_range"
).split()
_LAUNCH = re.compile("Launch|Memcpy|Memset|enqueue", re.IGNORECASE)
_CUT = 0.01
_PERHAPS = 0.02
"""Least share of a rank's computing for which a kernel gets a note."""


class Notes:
    """Collects notes on each rank's file."""

    def __init__(self) -> None:
        self.on_device: set[int] = set()
        """Ranks whose file has kernels."""
        self.host_only: set[int] = set()
        self._files: dict[str, list[str]] = defaultdict(list)
        self._counts: Counter[str] = Counter()
        self._perhaps: Counter[str] = Counter()
        self._busiest: Counter[str] = Counter()

    def _say(self, sentence: str, file: TraceFile, count: int = 0) -> None:
        self._files[sentence].append(printable(file.path.name))
        self._counts[sentence] += count

    def add_file(self, rank: int, file: TraceFile, *, has_steps: bool) -> None:
        """Add notes on data that a file lacks."""
        if file.num_malformed:
            self._say(
                "malformed events of FILES are left out (COUNT): a name, a time or a duration is "
                "missing, or is not what it should be",
                file,
                file.num_malformed,
            )
        if not has_steps:
            is_marked = any(each.name.startswith(STEP) for each in file.events)
            why = "no ProfilerStep in FILES: the whole trace is taken as one step; call prof.step()"
            if is_marked:
                why = "no kernel in FILES has a launch in a ProfilerStep: the whole is one step"
            self._say(why, file)
        for category, count in _unknown(file, rank in self.on_device).items():
            self._say(
                f"events of the unknown category '{printable(category)}' in FILES are left out "
                "(COUNT): if a device worked in them, its work is not in these figures",
                file,
                count,
            )
            self.host_only |= {rank} - self.on_device
        if rank not in self.on_device:
            self._add_host_only(rank, file)

    def _add_host_only(self, rank: int, file: TraceFile) -> None:
        launches = sum(
            each.category.endswith(("_runtime", "_driver")) and bool(_LAUNCH.search(each.name))
            for each in file.events
        )
        what = "these are operators of the host, and not the device's work"
        if launches:
            self._say(
                "calls in FILES start work on a device (COUNT), and none of its kernels are there: "
                f"{what}; record with ProfilerActivity.CUDA or XPU",
                file,
                launches,
            )
            self.host_only.add(rank)
        elif file.num_devices and rank not in self.host_only:
            self._say(
                "the machine of FILES has devices (COUNT), and none of their kernels are there: if "
                f"they were used, {what}",
                file,
                file.num_devices,
            )

    def add_device(
        self,
        rank: int,
        file: TraceFile,
        on_device: list[Event],
        cut_us: float,
        computing: Mapping[str, int],
    ) -> None:
        """Add notes on unusual kernels of a rank. computing: nanoseconds by name."""
        whole_us = sum(each.end_us - each.start_us for each in on_device) + cut_us
        if cut_us > _CUT * whole_us:
            self._say(
                "kernels of one stream overlap in FILES: they are cut off where the next one "
                f"begins, {cut_us / 1000:.3g} ms on rank {rank}",
                file,
            )
        total = sum(computing.values()) or 1
        for name, nanoseconds in computing.items():
            own = printable(own_name(name))
            self._busiest[own] = max(self._busiest[own], nanoseconds)
            if nanoseconds >= _PERHAPS * total and Communication.may_be(name):
                self._perhaps[own] = max(self._perhaps[own], nanoseconds)

    def sentences(self, trace: Trace) -> list[str]:
        """Return all notes: on the files, and on kernels that may be communication."""
        found = [self._sentence(each) for each in self._files]
        some_met = any(own.exchanges for own in trace.ranks.values())
        if some_met and not trace.size_is_known:
            found.append(
                "the file does not say how many ranks the job has, so a transfer may be waiting"
            )
        advice = "name those that communicate with --communication"
        if self._perhaps:
            found.append(f"{_named(self._perhaps)} count as computing; {advice}")
        elif self.on_device and not some_met and trace.world_size > 1:
            found.append(
                f"no kernel is known to communicate, though the job has {trace.world_size} ranks; "
                f"the busiest are {_named(self._busiest)}; {advice}"
            )
        return found

    def _sentence(self, sentence: str) -> str:
        files = self._files[sentence]
        others = "another file" if len(files) == 2 else f"{len(files) - 1} other files"
        more = f" and {others}" if len(files) > 1 else ""
        return sentence.replace("COUNT", str(self._counts[sentence])).replace(
            "FILES", f"{files[0]}{more}"
        )


def _unknown(file: TraceFile, has_kernels: bool) -> Counter[str]:
    """Count events of unknown categories that may be a device's work, by category."""
    found: Counter[str] = Counter()
    for each in file.events:
        category = each.category
        if (
            category
            and category not in DEVICE
            and category not in _HOST
            and not category.endswith(("_runtime", "_driver", "_insight"))
            and (not has_kernels or {"stream", "correlation", "device"} & each.arguments.keys())
        ):
            found[category] += 1
    return Counter(dict(found.most_common(3)))


def _named(seconds: Counter[str]) -> str:
    return ", ".join(f"{name} ({ns / 1e6:.1f} ms)" for name, ns in seconds.most_common(3))
