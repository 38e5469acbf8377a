"""What a rank's process does, from birth to exit.

    fork server -> rank_main: own session, own output, journal, process group -> "ready"
    driver -> "go" to all: fn(world, *args) -> "returned" or "raised"
    driver closes the lifeline -> the rank exits

A rank that has returned stays until the driver lets all go: were it to leave at once, its peers'
connections would break under them. The lifeline is a pipe that only the driver can write to: when
the driver is gone, whatever the reason, every rank reads its end and exits.
"""

import contextlib
import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import cloudpickle
import torch

from labkit.comm import Group, Site, sockets
from labkit.comm.connect import connect
from labkit.launch import payload
from labkit.launch.memory import Memory, MemoryMeter
from labkit.launch.run_directory import RunDirectory

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class RankSpec:
    """Which rank a process is to be."""

    rank: int
    world_size: int
    device: str
    directory: RunDirectory
    timeout_s: float


@dataclass(frozen=True)
class Returned:
    """The function came back; its value is in the run's folder."""

    start_s: float
    end_s: float
    memory: Memory
    socket_bytes: int | None


@dataclass(frozen=True)
class Raised:
    """The function, or the pickling of its value, raised an exception."""

    type_name: str
    message: str
    traceback: str
    site: Site | None
    exception: bytes | None
    """The exception itself, where it can be pickled."""
    at_s: float


def rank_main(
    spec: RankSpec, control: Connection, output: Connection, lifeline: Connection
) -> None:
    """The whole life of a rank; never returns."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.setsid()  # Jupyter's Stop signals the kernel's process group: ranks are not in it
    _exit_with_driver(lifeline)
    _take_over_output(output)
    stack = open(spec.directory.of_rank(spec.rank, "stack"), "w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    faulthandler.enable(stack, all_threads=False)  # a crash in C++ leaves its Python stack
    try:
        fn, args = payload.read(spec.directory.payload, spec.rank)
        world = _join(spec)
        control.send("ready")
        control.recv()  # "go": all ranks begin together
        report: Returned | Raised = _call(fn, world, args, spec)
    except BaseException as error:
        report = _raised(error)
    _flush()
    control.send(report)
    threading.Event().wait()  # until the lifeline ends


def _join(spec: RankSpec) -> Group:
    # Threads of four ranks would fight for the cores of a laptop: one each is three times faster.
    torch.set_num_threads(1)
    return connect(
        spec.rank,
        spec.world_size,
        spec.device,
        spec.directory.store,
        spec.directory.of_rank(spec.rank, "journal"),
        spec.timeout_s,
    )


def _call(fn: Any, world: Group, args: Any, spec: RankSpec) -> Returned:
    meter = MemoryMeter(spec.device)
    bytes_before = sockets.sent_bytes()
    start_s = time.monotonic()
    value = fn(world, *args)
    if spec.device == "cuda":
        torch.cuda.synchronize()  # nccl's waits only order streams: here the work is really over
    end_s = time.monotonic()
    bytes_after = sockets.sent_bytes()
    memory = meter.read()
    socket_bytes = None if bytes_after is None else bytes_after - (bytes_before or 0)
    try:
        dumped = payload.dump_value(value)
    except Exception as error:
        raise TypeError(
            f"rank {spec.rank} returned a {type(value).__name__} that cannot be sent back: "
            f"{error}. Return plain data or tensors"
        ) from error
    spec.directory.of_rank(spec.rank, "value").write_bytes(dumped)
    return Returned(start_s, end_s, memory, socket_bytes)


def _raised(error: BaseException) -> Raised:
    at_s = time.monotonic()
    trace = _without_launcher(error.__traceback__)
    error = error.with_traceback(trace)
    try:
        exception = cloudpickle.dumps(error)  # its class may be of a cell
        pickle.loads(exception)  # some exceptions can be dumped, but not loaded
    except Exception:
        exception = None
    try:
        message, text = str(error), "".join(traceback.format_exception(error))
    except Exception as worse:
        message = f"(its __str__ raises {type(worse).__name__})"
        text = "".join(traceback.format_tb(trace)) + f"{type(error).__name__}: {message}"
    return Raised(
        type(error).__name__,
        message,
        text,
        _site_of(trace),
        exception,
        at_s,
    )


def _without_launcher(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _site_of(trace: TracebackType | None) -> Site | None:
    """The innermost line of the traceback that belongs to neither labkit nor torch."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    machinery = (here, os.path.dirname(torch.__file__) + os.sep)
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not frame.filename.startswith(machinery)]
    if not frames:
        return None
    frame = (own or frames)[-1]
    return Site(frame.filename, frame.lineno or 0, frame.name)


def _take_over_output(output: Connection) -> None:
    """Descriptors 1 and 2 go to the driver: C++ writes to them, past sys.stdout."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="backslashreplace")
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _exit_with_driver(lifeline: Connection) -> None:
    """Exit when the lifeline ends: the driver released its ranks, or is no more."""
    if sys.platform.startswith("linux"):
        # The parent is the fork server, which goes with the driver. The kernel's word is quicker,
        # and also reaches a rank that holds Python's lock for ever.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        os.killpg(0, signal.SIGKILL)  # this process, and what it has started

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
