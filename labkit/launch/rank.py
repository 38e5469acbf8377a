"""A rank's process, from birth to exit, and its report.

    fork server -> rank_main: own session, own output, journal, process group -> "ready"
    driver -> "go" to all: fn(world, *args) -> "returned" or "raised"
    driver closes the lifeline -> the rank exits

A rank that has returned stays until the driver releases all of them: if it left at once, its peers'
connections would break. The lifeline is a pipe that only the driver can write to: when the driver
ends, for whatever reason, every rank reads the end of the pipe and exits.
"""

import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import multiprocessing
import os
import pickle
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import popen_forkserver  # noqa: F401  a rank imports it with its pipes
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import cloudpickle
import torch

from labkit import interrupts
from labkit.comm import Group, Lateness, Site, Topology, member, recorder
from labkit.comm.callers import is_of_a_library
from labkit.comm.connect import connect, sent_bytes
from labkit.comm.group import write_flight_record
from labkit.launch import payload
from labkit.launch.payload import RunDirectory
from labkit.launch.run_result import Memory

# Asks for a rank's stack. Programs use SIGUSR1 themselves, for example as Slurm's notice, but
# hardly ever the last real-time signal. (macOS has none.)
STACK_SIGNAL: int = getattr(signal, "SIGRTMAX", signal.SIGUSR1)

# The driver may ask for these, of the operations that torch itself has issued.
ACTIVE, ALL = b"active", b"all"

_PR_SET_PDEATHSIG = 1

_LAUNCH = Path(os.path.abspath(__file__)).parent
# Frames of these files are left out of tracebacks. An error that comes from them alone is about the
# request, and has no line of the reader's.
_LAUNCHER = {
    os.path.normpath(_LAUNCH / name)
    for name in (
        "rank.py",
        "session/in_rank.py",
        "../hosts/hosted_rank.py",
        "payload/__init__.py",
        "request.py",
        "../elastic/restarts.py",
    )
}


@dataclass(frozen=True)
class RankSpec:
    """The description of a rank, from which a process becomes this rank."""

    rank: int
    world_size: int
    device: str
    directory: RunDirectory
    timeout_s: float
    topology: Topology | None = None

    def program(self) -> tuple[Callable[..., Any], Sequence[Any]]:
        """Return the function and its arguments after `world`."""
        return payload.read(self.directory.payload, self.rank)

    def connected(self) -> Group:
        """Return the world, once all ranks have joined it."""
        # Threads of four ranks would fight for a laptop's cores: one each is three times faster.
        torch.set_num_threads(1)
        return connect(
            self.rank,
            self.world_size,
            self.device,
            self.directory.store,
            self.directory.of_rank(self.rank, "journal"),
            self.timeout_s,
            self.topology,
        )


@dataclass(frozen=True)
class Returned:
    """The function returned; its value is in the run's folder."""

    start_s: float
    end_s: float
    memory: Memory
    socket_bytes: int | None
    lateness: Lateness = field(default_factory=Lateness)
    """Messages received over the links of a topology; none without one."""


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
    is_communication_error: bool = False


def rank_main(
    spec: RankSpec, control: Connection, output: Connection, lifeline: Connection
) -> None:
    """Run a rank from start to end. Never returns."""
    prepare_process(spec, output, lifeline)
    process_id = os.getpid()
    try:
        fn, args = spec.program()
        world = spec.connected()
        control.send("ready")
        control.recv()  # "go": all ranks begin together
        report: Returned | Raised = _call(fn, world, args, spec)
    except BaseException as error:
        report = raised(error)
    leave_if_forked(process_id)
    flush()
    control.send(report)
    threading.Event().wait()  # until the lifeline ends


def leave_if_forked(process_id: int) -> None:
    """End a process that the function has forked: it must not report for the rank."""
    if os.getpid() != process_id:
        flush()
        os._exit(0)


def prepare_process(spec: RankSpec, output: Connection, lifeline: Connection) -> None:
    """Prepare a process: own session, output and random numbers, and an end with the driver."""
    # Modules that the fork server has imported are shared memory, and live as long as the rank. A
    # garbage collection that goes through them copies their pages: 0.15 s of each rank.
    gc.freeze()
    # The default start method again, not the fork server's: a DataLoader's workers then start as
    # they do without the lab.
    multiprocessing.set_start_method(None, force=True)
    tempfile.tempdir = None  # torch set it in the fork server; this run may have another
    draw_own_random_numbers()
    interrupts.leave_group()
    stack = open(spec.directory.of_rank(spec.rank, "stack"), "a")
    _exit_with_driver(lifeline, stack, spec.directory.of_rank(spec.rank, "recorder"))
    _take_over_output(output)
    faulthandler.register(STACK_SIGNAL, file=stack, all_threads=True)
    faulthandler.enable(stack, all_threads=False)  # a crash in C++ leaves its Python stack


def draw_own_random_numbers() -> None:
    """Seed Python's, torch's and NumPy's generators from the system, as a new interpreter does.

    A fork has its parent's state, so all ranks would draw the same numbers. A program that forgets
    to broadcast its weights would then work here and fail on a cluster. CUDA's generators, and
    NumPy's if it is imported later, start in the rank itself.
    """
    random.seed()
    torch.default_generator.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def _call(fn: Any, world: Group, args: Any, spec: RankSpec) -> Returned:
    process_id = os.getpid()
    value, report = measured(lambda: _value(fn, world, args), spec.device)
    leave_if_forked(process_id)
    world.compare_remaining()
    try:
        dumped = payload.dump_value(value)
    except Exception as error:
        raise TypeError(
            f"rank {spec.rank} returned a {type(value).__name__} that cannot be sent back: "
            f"{error}. Return plain data or tensors"
        ) from error
    spec.directory.of_rank(spec.rank, "value").write_bytes(dumped)
    return dataclasses.replace(report, lateness=world.pop_lateness())


def _value(fn: Any, world: Group, args: Any) -> Any:
    """Return the function's value; None if it calls sys.exit(0)."""
    try:
        return fn(world, *args)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        return None


def measured(work: Callable[[], Any], device: str) -> tuple[Any, Returned]:
    """Return the value of `work()`, with its times, memory and bytes sent."""
    meter = MemoryMeter(device)
    bytes_before = sent_bytes()
    start_s = time.monotonic()
    value = work()
    if device == "cuda":
        torch.cuda.synchronize()  # nccl's waits only order streams: wait for the work
    end_s = time.monotonic()
    bytes_after = sent_bytes()
    memory = meter.read()
    socket_bytes = None if bytes_after is None else bytes_after - (bytes_before or 0)
    return value, Returned(start_s, end_s, memory, socket_bytes)


def _take_over_output(output: Connection) -> None:
    """Send descriptors 1 and 2 to the driver, because C++ does not write to sys.stdout."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="backslashreplace")
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")


def flush() -> None:
    """Send everything that was printed to the driver."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _exit_with_driver(lifeline: Connection, stack: TextIO, record: Path) -> None:
    """Exit when the lifeline ends: the driver released its ranks, or has ended.

    Before that the driver sends questions through it, which are answered even while the rank is
    blocked; `stack` and `record` are the files for the answers.
    """
    # The parent is the fork server, which ends with the driver. The kernel's signal is quicker, and
    # also reaches a rank that holds Python's lock for ever.
    end_with_parent()
    threading.Thread(
        target=_watch_lifeline, args=(lifeline, stack, record), name="lifeline", daemon=True
    ).start()


def _watch_lifeline(lifeline: Connection, stack: TextIO, record: Path) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            request = lifeline.recv_bytes()
            # On this thread, and by a signal only if this thread gets no turn: a signal's handler
            # walks other threads' frames while they run, and sometimes crashes.
            faulthandler.dump_traceback(stack)
            if prefix := os.environ.get("TORCH_FR_DUMP_TEMP_FILE"):
                with contextlib.suppress(Exception):  # the rank may not have joined the world yet
                    recorder.dump(prefix)
            with contextlib.suppress(Exception):  # the run's folder may be gone
                write_flight_record(record, only_active=request == ACTIVE)
    os.killpg(0, signal.SIGKILL)  # this process, and what it has started


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, such as a killed agent. Linux only.

    The kernel reports only deaths after this call. If the parent has changed during it, the first
    one has died, and this process ends.
    """
    if not sys.platform.startswith("linux"):
        return
    known = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != known:
        os.kill(os.getpid(), signal.SIGKILL)


class MemoryMeter:
    """Measures memory from its creation on."""

    def __init__(self, device: str) -> None:
        """device: "cpu" or "cuda"."""
        self._cuda = device == "cuda"
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            self._start_bytes = torch.cuda.memory_allocated()
        else:
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # resets the peak
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


def raised(error: BaseException) -> Raised:
    """Return the report of an exception; its traceback begins with the reader's own code."""
    at_s = time.monotonic()
    trace = _without_launcher(error.__traceback__)
    error = error.with_traceback(trace)
    try:
        exception = cloudpickle.dumps(error)  # its class may be defined in a cell
        pickle.loads(exception)  # some exceptions can be dumped, but not loaded
    except Exception:
        exception = None
    try:
        message, text = str(error), "".join(traceback.format_exception(error))
    except Exception as worse:
        message = f"(its __str__ raises {type(worse).__name__})"
        text = "".join(traceback.format_tb(trace)) + f"{type(error).__name__}: {message}"
    site = _site_of(trace) or _site_of_syntax(error)
    is_marked = member.is_marked(error)
    return Raised(type(error).__name__, message, text, site, exception, at_s, is_marked)


def _without_launcher(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not the launcher's."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _LAUNCHER:
        trace = trace.tb_next
    return trace


def _site_of_syntax(error: BaseException) -> Site | None:
    """Return the line of a syntax error: no frame has it, because none of the file has run."""
    if not isinstance(error, SyntaxError) or not error.filename:
        return None
    return Site(error.filename, error.lineno or 0, "<module>")


def _site_of(trace: TracebackType | None) -> Site | None:
    """The innermost line of the traceback that is the reader's own, and no library's."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not is_of_a_library(frame.filename)]
    if not frames:
        return None
    frame = (own or frames)[-1]
    return Site(frame.filename, frame.lineno or 0, frame.name)
