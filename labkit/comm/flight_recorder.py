"""Operations that torch itself issues, such as those of its own DDP: seen by its Flight Recorder.

What a program hands to torch.distributed without a Group never enters a journal. torch keeps a
record of its own, in C++: the last collectives of every process group, with dtypes, shapes and the
Python stack (for gloo no messages, and no reduce op). It can be asked from another thread while the
rank is blocked. It is gone when the process dies.

    TORCH_FR_BUFFER_SIZE   how many collectives it keeps, the last ones; 0 turns it off
    _dump_fr_trace         all that it knows, as a pickle of plain data

On a cluster the same record comes as a file per rank when a collective times out
(TORCH_NCCL_DUMP_ON_TIMEOUT=1, TORCH_FR_DUMP_TEMP_FILE), read by `torchfrtrace`.
https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

import json
import linecache
import math
import os
import pickle
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit.comm import callbacks
from labkit.comm.awaited import CALLS, awaited, has_handlers
from labkit.comm.callers import is_of_a_library
from labkit.comm.recorded import Meaning
from labkit.comm.torchs_groups import group_of, names_of

NUM_COLLECTIVES = 8192  # as many as were handed over, at most: 0.8 KB each
_SAMPLE_S = 0.1
_BUSY_S = 0.01
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Our wrappers around what is not a Group's.
_PAST_THE_GROUPS = (CALLS, callbacks.__file__)
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
# Of these every rank passes the same dtype and shape. (all_to_all takes uneven parts, and only
# the root of a scatter passes anything.)
_UNIFORM = ("all_reduce", "broadcast", "barrier", "reduce", "_reduce_scatter_base")


def enable() -> None:
    """Keep a record. Before the first process group is made; a setting of the reader's stays."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(NUM_COLLECTIVES))


def num_enqueued() -> dict[str, int]:
    """Collectives that this process handed to each process group, by its number here."""
    return counts(pickle.loads(_dump(includeCollectives=False)))


def counts(dump: Mapping[str, Any]) -> dict[str, int]:
    """The same, from what `dump_without_stacks` returned."""
    status = dump.get("pg_status", {})
    return {name: each["last_enqueued_collective"] for name, each in status.items()}


def write(path: Path, num_in_journal: int, *, only_active: bool) -> None:
    """Leave for the driver what is recorded, and whether this process is at rest. Any thread.

    num_in_journal: how many collectives are in the journal; where torch has no more of them, it has
    issued none itself, and its record is not gone through.
    """
    cpu_before_s = time.process_time()
    time.sleep(_SAMPLE_S)
    is_idle = time.process_time() - cpu_before_s < _BUSY_S
    enqueued = num_enqueued()
    operations: list[list[Any]] = []
    waited_for = None
    names: dict[int, str] = {}
    if sum(enqueued.values()) > num_in_journal:
        entries = pickle.loads(_dump()).get("entries", [])
        names = names_of(entries)
        members = {
            str(name): [int(rank) for rank in c10d.get_process_group_ranks(group)]
            for group, name in c10d._world.pg_names.items()
        }
        told = [
            entry
            for entry in entries
            if not only_active or not (entry["retired"] or _is_of_a_group(entry))
        ]
        operations = [
            _foreign(entry, names[entry["pg_id"]], members.get(group_of(entry), []))
            for entry in told
        ]
        waited_for = awaited(told)
    record = {
        "is_idle": is_idle,
        # torch counts by the number that a group has in this process, which differs by rank.
        "enqueued": {name: enqueued.get(str(number), 0) for number, name in names.items()},
        "operations": operations,
        "awaited": waited_for,
        "has_handlers": has_handlers(),
        "has_callbacks": callbacks.are_ahead(),
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record))
    os.replace(part, path)


def _dump(**what: bool) -> bytes:
    """The record, from where this build of torch has it: private, and nccl's is another one."""
    names = ["_dump_fr_trace"]
    if dist.is_initialized() and dist.get_backend() == "nccl":
        names.insert(0, "_dump_nccl_trace")
    for name in names:
        if dump := getattr(torch._C._distributed_c10d, name, None):
            return dump(**what)
    return pickle.dumps({})


def dump_without_stacks() -> dict[str, Any]:
    """What is known now. To read the stacks too takes ten times as long."""
    return pickle.loads(_dump(includeStackTraces=False))


def _is_of_a_group(entry: Mapping[str, Any]) -> bool:
    """Whether a Group issued it: then it is in the journal."""
    files = [frame["filename"] for frame in entry.get("frames", [])]
    return any(file.startswith(_HERE) and not file.startswith(_PAST_THE_GROUPS) for file in files)


def meaning(entry: Mapping[str, Any]) -> Meaning:
    """What must be equal on all ranks; empty where ranks may differ."""
    kind = entry["profiling_name"].rpartition(":")[2]
    sizes, dtypes = entry["input_sizes"], entry["input_dtypes"]
    if kind not in _UNIFORM or not sizes:
        return kind, "", ()
    # The backend pairs elements, whatever shape they have.
    return kind, _DTYPES.get(dtypes[0], dtypes[0].lower()), (math.prod(sizes[0]),)


def _foreign(entry: Mapping[str, Any], name: str, members: Sequence[int]) -> list[Any]:
    """What `_operation` needs, as JSON."""
    own = [frame for frame in entry.get("frames", []) if not is_of_a_library(frame["filename"])]
    site: list[Any] = ["?", 0, "?", ""]
    if own:
        file, line = own[0]["filename"], own[0]["line"]
        site = [file, line, own[0]["name"], linecache.getline(file, line).strip()]
    # The recorder's clock counts from 1970.
    age_s = time.time() - entry["time_created_ns"] / 1e9
    posted_s = time.monotonic() - age_s
    times = [posted_s, bool(entry["retired"]), _is_of_a_group(entry)]
    sequence = entry["collective_seq_id"]
    return [name, members, sequence, *meaning(entry), site, *times]
