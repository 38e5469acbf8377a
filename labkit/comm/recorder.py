"""Collectives that torch itself issues, such as those of its own DDP, from torch's Flight Recorder.

An operation of torch.distributed outside labkit's Group API is in no journal. torch keeps a record
in C++: the last collectives of every process group, with dtypes, shapes and the Python stack (for
gloo no messages, and no reduce op). Another thread can ask for it while the rank is blocked. It is
lost when the process dies.

    TORCH_FR_BUFFER_SIZE      how many collectives it keeps, the last ones; 0 turns it off
    TORCH_FR_DUMP_TEMP_FILE   where the record goes as a file per rank: this prefix and the rank
    _dump_fr_trace            the whole record, as a pickle of plain data

`write` is called in a rank and leaves its record as JSON; `read` gives it to the driver. `dump`
writes the record in torch's own format, for torch's analyzer `torchfrtrace <folder>`. torch itself
writes it only with nccl, when a collective times out (TORCH_NCCL_DUMP_ON_TIMEOUT=1).
https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

from __future__ import annotations

import json
import linecache
import math
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from labkit.comm.callers import is_of_a_library
from labkit.comm.operation import Operation, Site

TITLE = "torch.distributed"
Meaning = tuple[str, str, tuple[int, ...]]
"""Kind, dtype, shape."""


NUM_COLLECTIVES = 8192  # a record takes 0.8 KB for each one issued
_SAMPLE_S = 0.1
_BUSY_S = 0.01
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_FUNCTIONAL = os.path.join("distributed", "_functional_collectives.py")
_INNERMOST = 8  # such frames of a stack are not the reader's
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Byte": "uint8",
    "Char": "int8",
    "Bool": "bool",
}
# Every rank passes these the same dtype and shape. (all_to_all takes uneven parts, and only
# the root of a scatter passes anything.)
_UNIFORM = ("all_reduce", "broadcast", "barrier", "reduce", "_reduce_scatter_base")


@dataclass(frozen=True)
class Recorded:
    """Operations that torch has recorded on one rank.

    `operations`: those that torch itself issued and that are not complete. If all were asked for:
    everything on torch's process groups, also a Group's operations.
    `enqueued`: how many collectives of each process group were issued, a Group's too.
    `is_idle`: the process used no CPU time while it was asked, so it waits or sleeps.
    `is_known`: whether the rank has answered; if not, it may have issued anything.
    `has_handlers`: the program handles signals, and may do anything when one comes.
    `awaited`: which operation the rank's main thread waits for; None if that is not certain.
    """

    operations: Sequence[Operation] = ()
    enqueued: Mapping[str, int] = field(default_factory=dict)
    is_idle: bool = False
    is_known: bool = False
    awaited: int | None = None
    has_handlers: bool = False

    @property
    def waits_in(self) -> Operation | None:
        """The operation that the rank blocks in; None if that is not certain."""
        if self.awaited is None or not self.is_idle:
            return None
        return self.operations[self.awaited]


def enable() -> None:
    """Turn the recorder on, before the first process group is made; a reader's setting stays."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(NUM_COLLECTIVES))


def write(path: Path, num_in_journal: int, *, only_active: bool) -> None:
    """Write the record for the driver, and whether this process is idle. Any thread may call it.

    num_in_journal: how many collectives are in the journal. If torch has no more than these, it has
    issued none itself, and none is written.
    """
    from torch.distributed import distributed_c10d as c10d

    cpu_before_s = time.process_time()
    time.sleep(_SAMPLE_S)
    is_idle = time.process_time() - cpu_before_s < _BUSY_S
    status = pickle.loads(_dump(includeCollectives=False)).get("pg_status", {})
    enqueued = {name: each["last_enqueued_collective"] for name, each in status.items()}
    # Stacks take ten times as long, and only foreign operations need them.
    has_foreign = sum(enqueued.values()) > num_in_journal
    entries = _latest(pickle.loads(_dump(includeStackTraces=has_foreign)).get("entries", []))
    members = {
        str(name): [int(rank) for rank in c10d.get_process_group_ranks(group)]
        for group, name in c10d._world.pg_names.items()
    }
    wanted = [
        each
        for each in entries
        if has_foreign and not (only_active and (each["retired"] or _is_ours(each)))
    ]
    record = {
        "is_idle": is_idle,
        # torch counts by the number that a group has in this process, which differs by rank.
        "enqueued": {_title(each): enqueued.get(str(each["pg_id"]), 0) for each in entries},
        "operations": [_foreign(entry, members.get(_group_of(entry), [])) for entry in wanted],
        "awaited": _awaited(wanted),
        "has_handlers": _has_handlers(),
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record))
    os.replace(part, path)


def dump(prefix: str) -> None:
    """Write the record of this rank to `prefix` and its number, for `torchfrtrace`. Any thread.

    A process group of gloo enters its members into the record before it knows its name
    (torch 2.13), and torchfrtrace fails with a KeyError. So names and members are entered here. The
    members of a destroyed group are not known, and its collectives are left out.
    """
    from torch.distributed import distributed_c10d as c10d

    record = pickle.loads(_dump())
    for group, name in c10d._world.pg_names.items():
        ranks = str(c10d.get_process_group_ranks(group))
        record["pg_config"][name] = {"name": name, "desc": group.group_desc, "ranks": ranks}
    known = _latest(record["entries"])
    entries = [each for each in known if _group_of(each) in record["pg_config"]]
    path = Path(f"{prefix}{c10d.get_rank()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps({**record, "entries": entries}))


def read(path: Path) -> Recorded:
    """Return the record that `write` left, or an empty one."""
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return Recorded()
    operations = [_operation(index, *each) for index, each in enumerate(record["operations"])]
    return Recorded(
        operations,
        record["enqueued"],
        record["is_idle"],
        True,
        record["awaited"],
        record["has_handlers"],
    )


def is_foreign(operation: Operation) -> bool:
    """Return whether torch itself issued the operation, and no Group."""
    return operation.group_name.startswith(TITLE)


def _operation(
    index: int,
    group: str,
    members: list[int],
    sequence: int,
    kind: str,
    dtype: str,
    shape: list[int],
    site: list[Any],
    posted_s: float,
    is_done: bool,
    is_of_a_group: bool,
) -> Operation:
    place = Site(*site)
    return Operation(
        index=index,
        kind=kind,
        blocking=True,
        group=tuple(members),
        group_name=group,
        sequence=sequence,
        reduce=None,
        peer=None,
        dtype=dtype,
        shape=tuple(shape),
        payload_bytes=0,
        sent_bytes=0,
        received_bytes=0,
        site=place,
        origin=place,
        posted_s=posted_s,
        waited_s=None if is_of_a_group else posted_s,  # a Group's journal says whether it waits
        done_s=posted_s if is_done else None,
        failed=False,
    )


def _dump(**what: bool) -> bytes:
    """Return the record, from a private function of torch. nccl has one of its own."""
    import torch

    names = ["_dump_fr_trace"]
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "nccl":
        names.insert(0, "_dump_nccl_trace")
    for name in names:
        if dump := getattr(torch._C._distributed_c10d, name, None):
            return dump(**what)
    return pickle.dumps({})


def _latest(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the entries of existing groups: if two have one name, the older is destroyed."""
    last = {_group_of(each): each["pg_id"] for each in sorted(entries, key=itemgetter("pg_id"))}
    return [each for each in entries if last[_group_of(each)] == each["pg_id"]]


def _group_of(entry: Mapping[str, Any]) -> str:
    """Return torch's name of the process group, the same on all members."""
    return str(entry["process_group"][0])


def _title(entry: Mapping[str, Any]) -> str:
    """`torch.distributed` is the default process group, `torch.distributed/1` the first other."""
    name = _group_of(entry)
    return TITLE if name == "0" else f"{TITLE}/{name}"


def _is_ours(entry: Mapping[str, Any]) -> bool:
    """Return whether a Group issued it: then it is in the journal."""
    return any(frame["filename"].startswith(_HERE) for frame in entry.get("frames", []))


def _has_handlers() -> bool:
    """Return whether the program handles signals, also while its main thread waits for a lock."""
    own = signal.valid_signals() - {signal.SIGINT, signal.SIGTERM}  # these come from outside
    return any(callable(signal.getsignal(number)) for number in own)


def _awaited(entries: Sequence[Mapping[str, Any]]) -> int | None:
    """Return which of these the main thread waits for, or None where that is not certain.

    A thread that started a collective need not wait for it. A C++ frame does not say what it waits
    for, but the record has the Python stack at the start of each operation. If the thread is still
    in that same call, such as dist.all_reduce() or backward() with DDP, it waits for the oldest
    operation started there. (Inside torch's function it is some lines further, in work.wait().) Or
    it waits for the tensor of a functional collective, and has started only one.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    here = [(f.f_code.co_filename, f.f_code.co_name, n) for f, n in traceback.walk_stack(frame)]
    for number, entry in enumerate(entries):
        started = [
            (each["filename"], each["name"], each["line"]) for each in entry.get("frames", [])
        ]
        is_here = (
            started[1:] == here[1 : len(started)] and started[:1] and started[0][:2] == here[0][:2]
        )
        if is_here and not entry["retired"]:
            return number
    if any(function == "wait_tensor" for _, function, _ in here[:_INNERMOST]):
        functional = [n for n, entry in enumerate(entries) if _is_functional(entry)]
        return functional[0] if len(functional) == 1 else None
    return None


def _is_functional(entry: Mapping[str, Any]) -> bool:
    """Return whether it is under way, and came out of torch.distributed._functional_collectives."""
    files = [frame["filename"] for frame in entry.get("frames", [])]
    return not entry["retired"] and any(file.endswith(_FUNCTIONAL) for file in files)


def _meaning(entry: Mapping[str, Any]) -> Meaning:
    """Return what must be equal on all ranks, or empty values where ranks may differ."""
    kind = entry["profiling_name"].rpartition(":")[2]
    sizes, dtypes = entry["input_sizes"], entry["input_dtypes"]
    if kind not in _UNIFORM or not sizes:
        return kind, "", ()
    # The backend pairs elements, whatever shape they have.
    return kind, _DTYPES.get(dtypes[0], dtypes[0].lower()), (math.prod(sizes[0]),)


def _foreign(entry: Mapping[str, Any], members: Sequence[int]) -> list[Any]:
    """Return the arguments of `_operation`, as JSON."""
    own = [frame for frame in entry.get("frames", []) if not is_of_a_library(frame["filename"])]
    site: list[Any] = ["?", 0, "?", ""]
    if own:
        file, line = own[0]["filename"], own[0]["line"]
        site = [file, line, own[0]["name"], linecache.getline(file, line).strip()]
    # The recorder's clock counts from 1970.
    age_s = time.time() - entry["time_created_ns"] / 1e9
    posted_s = time.monotonic() - age_s
    times = [posted_s, bool(entry["retired"]), _is_ours(entry)]
    sequence = entry["collective_seq_id"]
    return [_title(entry), members, sequence, *_meaning(entry), site, *times]
