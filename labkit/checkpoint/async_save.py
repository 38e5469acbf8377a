"""Save while training goes on: a copy in shared memory, and a process that writes it.

    rank      | step 40 | copy | step 41 | step 42 | step 43 |     the copy is all that it waits for
    thread              |      | waits               | commit |    messages in a group of its own
    process             |      | write, checksum, sync |           no GIL in common with the rank

The copy is of what this rank writes, at the moment of the save: later steps change the model, and
not the copy. Its memory is kept for the next save, so there is one save at a time.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from labkit.checkpoint import disk
from labkit.checkpoint.contents import Piece
from labkit.checkpoint.disk import Disk, RecordedDisk, Written
from labkit.checkpoint.saving import Plan, part_header, parts_of, remove_folders
from labkit.comm import Group
from labkit.data_parallel.communication_thread import CommunicationThread, OnThread

ALIGNMENT = 64
SHARED = Path("/dev/shm")
Job = dict[str, Any]
Finish = Callable[[Written | Exception, Group], list[Path]]


class Background:
    """A rank's copy, its writing process, and the thread that speaks with the other ranks.

    Every rank makes one. Memory: what the rank writes, once more.
    """

    def __init__(self, group: Group, disk: Disk) -> None:
        self._thread, self._disk = CommunicationThread(group), disk
        self._memory = _SharedMemory(0)
        self._process: subprocess.Popen[str] | None = None

    def copy(self, path: Path, plan: Plan, rank: int, pieces: Sequence[Piece]) -> Job:
        """Copy what the plan lets this rank write: the job that writes it to `path`. OSError."""
        tensors = parts_of(plan, rank, pieces)
        places, end = [], 0
        for _, x in tensors:
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            end = begin + x.nbytes
            places.append((begin, end))
        if end > self._memory.nbytes:
            self._stop()
            self._memory = _SharedMemory(end)
        parts = []
        for number, ((share, x), (begin, end)) in enumerate(zip(tensors, places, strict=True)):
            self._memory.bytes[begin:end].view(x.dtype).copy_(x)
            parts.append([*part_header(plan, rank, share, number), begin, end])
        log = str(self._disk.log) if isinstance(self._disk, RecordedDisk) else None
        memory = self._memory.file.fileno()
        return {"memory": memory, "path": str(path), "parts": parts, "log": log}

    def start(self, job: Job | OSError, finish: Finish) -> OnThread[None]:
        """Start to write, and then to call `finish`, on the thread, with what was written.

        The caller waits for one save before the next.
        """
        if self._process is None or self._process.poll() is not None:
            self._process = self._start_process()
        process = self._process

        def write_and_finish(group: Group) -> None:
            written = job if isinstance(job, OSError) else _ask(process, job)
            remove_folders(self._disk, finish(written, group))

        return self._thread.start(write_and_finish)

    def _start_process(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", disk.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[self._memory.file.fileno()],
        )

    def _stop(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


class _SharedMemory:
    """Memory that the writing process maps, too. It has no name that could be left over."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.file = tempfile.TemporaryFile(dir=SHARED if SHARED.is_dir() else None)
        self.file.truncate(max(nbytes, 1))
        self.bytes = torch.frombuffer(mmap.mmap(self.file.fileno(), 0), dtype=torch.uint8)


def _ask(process: subprocess.Popen[str], job: Job) -> Written | Exception:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    except OSError:
        answer = ""
    if not answer:
        return OSError(f"the process that writes has ended with code {process.wait()}")
    told = json.loads(answer)
    return OSError(told["error"]) if "error" in told else Written(*told["written"])
