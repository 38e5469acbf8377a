"""Save while training continues: a copy in shared memory, and a process that writes it.

    rank      | step 40 | copy | step 41 | step 42 | step 43 |     training only waits for the copy
    thread              |      | waits               | commit |    messages in a group of its own
    process             |      | write, checksum, sync |           with a GIL of its own

The copy has what this rank writes, at the moment of the save: later steps change the model, and
not the copy. The next save uses the same memory, so there is one save at a time.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from labkit.checkpoint import disk
from labkit.checkpoint.disk import Disk, RecordedDisk, Written
from labkit.checkpoint.saving import Plan, make_room, remove_folders, tensors_to_write
from labkit.comm import Group
from labkit.data_parallel.background import BackgroundHandle, CommunicationThread
from labkit.shards import NamedShard

ALIGNMENT = 64
SHARED = Path("/dev/shm")
Job = dict[str, Any]
Finish = Callable[[Written | Exception, Group], list[Path]]


class BackgroundWriter:
    """A rank's copy, its writing process, and the thread that communicates with other ranks.

    Every rank makes one. Memory: as much again as the rank writes.
    """

    def __init__(self, group: Group, disk: Disk) -> None:
        # Not nccl, whose operations start in the program's order. And a thread of its own, or DDP's
        # buckets would wait for a write.
        on_cpu = group if group.backend == "gloo" else group.on_cpu()
        self._thread, self._disk = CommunicationThread(on_cpu), disk
        self._memory: _SharedMemory | None = None
        self._process: subprocess.Popen[str] | None = None

    def copy(self, path: Path, plan: Plan, rank: int, shards: Sequence[NamedShard]) -> Job:
        """Copy this rank's share of the plan. Returns the job that writes it to `path`.

        OSError if there is not enough shared memory.
        """
        make_room(self._disk, path)
        tensors = tensors_to_write(plan, rank, shards)
        places, end = [], 0
        for _, x in tensors:
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            end = begin + x.nbytes
            places.append((begin, end))
        if self._memory is None or end > self._memory.nbytes:
            self._stop()
            if self._memory is not None:
                self._memory.unpin()
            self._memory = None  # freed before a larger one is allocated
            self._memory = _SharedMemory(end, any(x.is_cuda for _, x in tensors))
        if self._process is None or self._process.poll() is not None:
            self._process = _start_process(self._memory.file.fileno())
        entries = []
        for (header, x), (begin, end) in zip(tensors, places, strict=True):
            self._memory.bytes[begin:end].view(x.dtype).copy_(x, non_blocking=True)
            entries.append([*header, begin, end])
        if self._memory.is_pinned:
            torch.cuda.synchronize()
        log = str(self._disk.log) if isinstance(self._disk, RecordedDisk) else None
        return {"path": str(path), "entries": entries, "log": log}

    def start(self, job: Job | Exception, finish: Finish) -> BackgroundHandle[None]:
        """Start the thread: it writes, and then calls `finish` with what was written.

        The caller waits for one save before the next.
        """
        process = self._process

        def write_and_finish(group: Group) -> None:
            written = job if isinstance(job, Exception) else _ask(process, job)
            remove_folders(self._disk, finish(written, group))

        return self._thread.start(write_and_finish)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


def _start_process(memory: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", disk.__file__, str(memory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[memory],
    )


class _SharedMemory:
    """Memory that the writing process maps, too. It has no name, so no crash leaves a file.

    For tensors of a GPU it is pinned if CUDA can: the copy is then about four times as fast.
    """

    def __init__(self, nbytes: int, pins: bool) -> None:
        self.nbytes = nbytes
        self.file = tempfile.TemporaryFile(dir=SHARED if SHARED.is_dir() else None)
        if sys.platform == "darwin":
            self.file.truncate(max(nbytes, 1))
        else:  # where memory is short, a write would end the process with SIGBUS
            os.posix_fallocate(self.file.fileno(), 0, max(nbytes, 1))
        self.bytes = torch.frombuffer(mmap.mmap(self.file.fileno(), 0), dtype=torch.uint8)
        self.is_pinned = False
        if pins:
            code = torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), self.bytes.nbytes, 0)
            self.is_pinned = int(code) == 0

    def unpin(self) -> None:
        """Unpin the memory, before it is freed."""
        if self.is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())


def _ask(process: subprocess.Popen[str] | None, job: Job) -> Written | Exception:
    assert process and process.stdin and process.stdout
    try:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
    except (OSError, ValueError):
        return OSError(f"the process that writes has ended with code {process.wait()}")
    return OSError(answer["error"]) if "error" in answer else Written(*answer["written"])
