"""Resident memory of a rank: at the start of its function, and at the peak."""

import contextlib
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a rank held: resident memory on the CPU, allocated tensors on a GPU."""

    start_bytes: int
    peak_bytes: int

    @property
    def growth_bytes(self) -> int:
        """By how much the function raised the peak above what was there when it began."""
        return self.peak_bytes - self.start_bytes


class MemoryMeter:
    """Starts at creation; `read()` gives what happened since."""

    def __init__(self, device: str) -> None:
        """device: "cpu" or "cuda"."""
        self._cuda = device == "cuda"
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            self._start_bytes = torch.cuda.memory_allocated()
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            self._start_bytes = _resident_bytes("VmRSS")

    def read(self) -> Memory:
        """Memory from creation until now."""
        if self._cuda:
            return Memory(self._start_bytes, torch.cuda.max_memory_allocated())
        return Memory(self._start_bytes, max(self._start_bytes, _resident_bytes("VmHWM")))


def _resident_bytes(field: str) -> int:
    """VmRSS (now) or VmHWM (peak) of this process; elsewhere than on Linux, both are the peak."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))
