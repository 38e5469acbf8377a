"""Read one file of PyTorch Profiler, which may be malformed, into checked events.

    path -> bytes, at most `max_bytes` of them after gzip -> JSON -> TraceFile

A file that is no trace raises a ValueError, which names the file. A malformed event is left out and
counted: profilers that were stopped leave such events at the end of a file. An Event needs no more
checks: its times are finite numbers, and an argument of the wrong type counts as missing.

Format: Trace Event Format (JSON, also gzipped); "X" complete events; times in microseconds.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 2 * 10**9
"""The default limit of a file's JSON: public traces have up to 1 GB."""
_LARGEST_US = 1e17
"""3000 years: a larger number is not a time."""
_LARGEST = 2**53
_MAX_RANK = 2**31
_WIDTH = {"double": 8, "long": 8, "long int": 8, "half": 2, "bfloat16": 2, "short": 2}
_WIDTH |= dict.fromkeys(("byte", "char", "unsigned char", "signed char", "bool"), 1)
_WIDTH |= dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), 1)
# Names of categories in traces of torch before 1.11.
_CATEGORIES = {"operator": "cpu_op", "runtime": "cuda_runtime"}


@dataclass(slots=True)
class Event:
    """One complete event."""

    name: str
    category: str
    """In lower case, without `gpu_` before memcpy and memset; empty where there is none."""
    process: object
    thread: object
    """Stream of a kernel."""
    start_us: float
    end_us: float
    arguments: Mapping[str, Any]

    @property
    def times_s(self) -> tuple[float, float]:
        """Start and end in seconds."""
        return self.start_us / 1e6, self.end_us / 1e6

    def number(self, key: str) -> int | None:
        """Return an argument that is a whole number, also as text."""
        return _whole(self.arguments.get(key))

    def text(self, key: str) -> str:
        """Return an argument that is text; empty for anything else."""
        value = self.arguments.get(key)
        return value if isinstance(value, str) else ""

    def items(self, key: str) -> list[Any]:
        """Return an argument that is a list; empty for anything else."""
        value = self.arguments.get(key)
        return value if isinstance(value, list) else []

    @property
    def group(self) -> list[int]:
        """Ranks of the process group; empty unless all are known.

        For a large group Kineto writes the first ranks and the last: "[0, 1, 2, ..., 255]".
        """
        written = self.arguments.get("Process Group Ranks")
        ranks = [int(each) for each in re.findall(r"\d{1,6}", str(written))]
        if "..." not in str(written):
            return ranks
        stride = ranks[1] - ranks[0] if len(ranks) > 2 else 0
        whole = list(range(ranks[0], ranks[-1] + 1, stride)) if stride > 0 else []
        return whole if whole[: len(ranks) - 1] == ranks[:-1] and whole[-1] == ranks[-1] else []

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor that a collective was called with; 0 where it is not known."""
        count = self.number("In msg nelems")
        if count is not None:
            return _bounded(count * _width(self.arguments.get("dtype")))
        sizes = self._first_shape()
        kind = next(iter(self.items("Input type")), "float")
        return _bounded(math.prod(sizes) * _width(kind)) if sizes is not None else 0

    @property
    def first_numel(self) -> int:
        """Numbers in the first operand; 0 where it is no tensor or not known."""
        sizes = self._first_shape()
        return _bounded(math.prod(sizes)) if sizes else 0

    def _first_shape(self) -> list[int] | None:
        shape = next(iter(self.items("Input Dims")), None)
        if not isinstance(shape, list) or len(shape) > 64:
            return None
        sizes = [_whole(size) for size in shape]
        # The sizes of a list of tensors are lists themselves: [[10], [20]].
        return [_bounded(1 if size is None else size) for size in sizes]


@dataclass(slots=True)
class TraceFile:
    """Content of one trace file."""

    path: Path
    rank: int | None
    world_size: int | None
    """None where the file does not say it."""
    host: str | None
    base_ns: int
    """Times in the file are relative to this one."""
    events: list[Event] = field(default_factory=list, repr=False)
    """By their start, an outer one before the inner ones."""
    memory: dict[tuple[bool, int], list[tuple[float, int]]] = field(default_factory=dict)
    """By device (of an accelerator?, number): microseconds, and bytes allocated from then on."""
    num_malformed: int = 0
    num_devices: int = 0
    """Devices that the machine had, whether they were recorded or not."""


def load(path: Path, max_bytes: int = MAX_BYTES) -> TraceFile:
    """Read and check one file. OSError if it cannot be read, ValueError unless it is a trace."""
    document = _document(path, max_bytes)
    job = document.get("distributedInfo") or {}
    if not isinstance(job, dict):
        raise ValueError(f"{path}: distributedInfo is {_shown(job)}, not an object with the rank")
    rank, world_size = job.get("rank"), job.get("world_size")
    base = document.get("baseTimeNanoseconds")
    host, devices = document.get("host_name"), document.get("deviceProperties")
    found = TraceFile(
        path=path,
        rank=_required(path, "rank", rank, 0, _MAX_RANK) if rank is not None else None,
        world_size=_required(path, "world_size", world_size, 0, _MAX_RANK) or None
        if world_size is not None
        else None,
        host=None if host is None else str(host),
        base_ns=_required(path, "baseTimeNanoseconds", base, 0, 2**63) if base is not None else 0,
        num_devices=len(devices) if isinstance(devices, list) else 0,
    )
    _add_events(found, document["traceEvents"])
    return found


def _document(path: Path, max_bytes: int) -> dict[str, Any]:
    try:
        found = json.loads(_content(path, max_bytes))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is no whole gzip file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be a trace") from None
    except _TooLarge:
        raise ValueError(
            f"{path} has more than {max_bytes:,} bytes of JSON: record fewer steps, as with "
            "torch.profiler.schedule(active=2), or raise max_bytes"
        ) from None
    except MemoryError:
        raise ValueError(f"{path} does not fit into memory: record fewer steps") from None
    except ValueError as error:
        raise ValueError(
            f"{path} is not a trace, because it is not JSON ({error}): give a file of "
            "export_chrome_trace"
        ) from None
    events = found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(events, list):
        raise ValueError(f'{path} has no "traceEvents": give a file of export_chrome_trace')
    assert isinstance(found, dict)
    return found


class _TooLarge(Exception):
    pass


def _content(path: Path, max_bytes: int) -> bytearray:
    """Return the file's bytes, without gzip. A small file can hold a thousand times its size."""
    with path.open("rb") as file:
        is_gzip = file.peek(2)[:2] == b"\x1f\x8b"
        source: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=file) if is_gzip else file
        content = bytearray()
        while part := source.read(2**20):
            content += part
            if len(content) > max_bytes:
                raise _TooLarge
    return content


def _required(path: Path, name: str, value: object, least: int, below: int) -> int:
    number = _whole(value)
    if number is None or not least <= number < below:
        raise ValueError(f"{path}: {name} is {_shown(value)}, not a whole number from {least} on")
    return number


def _add_events(found: TraceFile, events: Iterable[object]) -> None:
    memory: dict[tuple[bool, int], list[tuple[float, int]]] = defaultdict(list)
    for each in events:
        if not isinstance(each, dict):
            found.num_malformed += 1
        elif each.get("name") == "[memory]":
            one = _allocation(each)
            found.num_malformed += one is None
            if one:
                memory[one[0]].append(one[1])
        elif each.get("ph") == "X" and each.get("cat") != "Trace":
            event = _event(each)
            found.num_malformed += event is None
            if event:
                found.events.append(event)
    found.events.sort(key=lambda each: (each.start_us, -each.end_us))
    found.memory = dict(memory)


def _event(each: Mapping[str, Any]) -> Event | None:
    """None if a field is missing or is not what it should be."""
    start_us, took_us = _time(each.get("ts")), _time(each.get("dur"))
    name, category, arguments = (each.get(key) for key in ("name", "cat", "args"))
    name, category = "" if name is None else name, "" if category is None else category
    arguments = {} if arguments is None else arguments
    threads = each.get("pid", 0), each.get("tid", 0)
    if (
        start_us is None
        or took_us is None
        or took_us < 0
        or not isinstance(name, str)
        or not isinstance(category, str)
        or not isinstance(arguments, dict)
        or not all(isinstance(number, (int, str, float, type(None))) for number in threads)
    ):
        return None
    category = category.lower()
    if category in ("gpu_memcpy", "gpu_memset"):
        category = category.removeprefix("gpu_")
    category = _CATEGORIES.get(category, category)
    return Event(name, category, *threads, start_us, start_us + took_us, arguments)


def _allocation(each: Mapping[str, Any]) -> tuple[tuple[bool, int], tuple[float, int]] | None:
    arguments = each.get("args")
    if not isinstance(arguments, dict):
        return None
    at_us, total = _time(each.get("ts")), _whole(arguments.get("Total Allocated"))
    kind, device = (_whole(arguments.get(key, 0)) for key in ("Device Type", "Device Id"))
    if at_us is None or total is None or total < 0:
        return None
    return ((kind or 0) > 0, -1 if device is None else device), (at_us, total)


def _time(value: object) -> float | None:
    """Microseconds: a finite number, also as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) <= _LARGEST_US else None  # also for nan


def _whole(value: object) -> int | None:
    """Return a whole number that a float can hold, also as text."""
    if isinstance(value, float):
        value = int(value) if value.is_integer() and abs(value) <= 2.0**63 else None
    elif isinstance(value, str):
        value = int(value) if re.fullmatch(r"-?\d{1,19}", value, re.ASCII) else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) <= 2**63 else None


def _bounded(number: int) -> int:
    return min(max(number, 0), _LARGEST)


def _width(name: object) -> int:
    return _WIDTH.get(str(name).lower().removeprefix("c10::"), 4)


def _shown(value: object) -> str:
    """For an error message: short, and nothing that a terminal would obey."""
    if isinstance(value, (int, float, str, type(None))):
        return ascii(value)[:60]
    return f"a {type(value).__name__}"


def printable(name: str, width: int = 60) -> str:
    """Return a name from a file, for a note: on one line, short, nothing that a terminal would
    obey."""
    clean = "".join(each if each.isprintable() else "?" for each in name)
    return clean if len(clean) <= width else f"{clean[: width - 3]}..."


def in_threads(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Events by thread of the host, each in order of their start."""
    threads: dict[tuple[object, object], list[Event]] = defaultdict(list)
    for each in events:
        threads[each.process, each.thread].append(each)
    yield from threads.values()
