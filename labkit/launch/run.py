"""run: call a function on N ranks, each a fresh process with a real process group.

request        check the arguments
payload        store the function in the run's folder
rank_process   fork the ranks
rank           in each: meet the others, call the function, report
supervise      receive what ranks report and print
listen         wait until all have returned, or the run cannot end
run_result     what the ranks returned, as a Run

RunThread starts runs, one after the other. Other threads can kill the one that is running:

this thread       launch  ->  RankError: rank 0 was killed     launch  ->  RankError   ended
another thread           kill()                                       end() ..........|

`attempt` counts restarts of a job.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.comm import Timeline, Topology
from labkit.interrupts import uninterrupted
from labkit.launch import notes, payload
from labkit.launch.errors import as_interrupted
from labkit.launch.listen import StallWatch, listen_to_the_end
from labkit.launch.payload import RunDirectory
from labkit.launch.rank import RankSpec, Returned
from labkit.launch.rank_process import (
    Rank,
    RankOutput,
    RankProcess,
    end_ranks,
    start_rank,
)
from labkit.launch.request import (
    LONGEST_TIMEOUT_S,
    check_args,
    check_engine,
    check_function,
    checked_device,
    checked_stall,
    checked_topology,
    note_on_gpus,
)
from labkit.launch.run_result import Run, Traffic
from labkit.launch.supervise import Supervisor


def run(
    fn: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    *,
    timeout: float = 120,
    device: str | None = None,
    stall: float | None = 5,
    engine: str = "local",
    topology: Topology | None = None,
) -> Run:
    """Call `fn(world, *args)` on `world_size` ranks. Returns a Run: values, logs, journals by rank.

    fn: any function, also one defined in a notebook cell. `world` is the rank's Group.
    timeout: seconds after which a run is ended, with a report.
    device: "cpu" (gloo), "cuda" (nccl with a GPU per rank; ranks share where there are fewer), or
    None: "cuda" where there is a GPU for each rank, else "cpu". See request.py.
    stall: seconds without progress after which every rank is asked for its stack and torch's own
    record; None: never. A deadlock that the journals of Groups prove, such as ranks that wait for
    each other, does not need this, and is found in about a second.
    engine: "local", or "torchrun": torch's elastic agent starts the ranks, which takes seconds.
    topology: hosts and links, whose time messages take (comm/throttle.py says which messages).
    With one, device None is the CPU.

    Each rank draws random numbers of its own unless `fn` sets a seed, as under torchrun. So an
    unseeded layer has other weights on each rank, and in the next run. A seed that the caller has
    set reaches no rank.

    The output of ranks appears here, line by line. A rank ends when its function returns or calls
    sys.exit(0). Then no `atexit` handler runs, its child processes are killed, and file writes that
    were not flushed are lost. Raises RankError when a rank raises or dies, Mismatch when ranks
    mean different operations, Deadlock when they wait for something that cannot come, RunTimeout,
    Interrupted (a KeyboardInterrupt) on Stop or Ctrl-C, and ValueError or TypeError for wrong
    arguments. A script that does not catch Interrupted ends with its report and status 130. No
    process is left behind in any case, except those that a rank has put into a session of their
    own (setsid).
    """
    __tracebackhide__ = True  # pytest shows the line that called it
    check_args(args)
    try:
        result = launch(
            fn,
            world_size,
            [args],
            timeout=timeout,
            device=device,
            stall=stall,
            engine=engine,
            topology=topology,
        )
        notes.report_late_messages(result)
    except KeyboardInterrupt as stop:
        raise as_interrupted(stop) from None
    return result


def launch(
    fn: Callable[..., Any],
    world_size: int,
    args_by_rank: Sequence[Sequence[Any]],
    *,
    timeout: float = 120,
    device: str | None = None,
    stall: float | None = None,
    echo: bool = True,
    engine: str = "local",
    topology: Topology | None = None,
    on_start: Callable[[list[int]], None] | None = None,
) -> Run:
    """Like `run`, with arguments of its own for each rank (or one set for all).

    echo: whether ranks' output, and notes about slow ranks, are shown as they come.
    on_start: called when all ranks begin the function, with their process ids.
    """
    __tracebackhide__ = True  # pytest shows the line that called it
    started_s = time.monotonic()
    device = _checked(fn, world_size, args_by_rank, timeout, device, topology)
    stall = checked_stall(stall)
    check_engine(engine)
    if echo and (note := note_on_gpus(device, world_size, torch.cuda.device_count())):
        print(note, flush=True)
    directory: RunDirectory | None = None
    torchrun = None
    ranks: list[Rank] = []
    has_returned = False
    try:
        with uninterrupted():  # there is no folder that `finally` does not know of
            directory = RunDirectory()
        torchrun = _torchrun(directory) if engine == "torchrun" else None
        payload.write(directory.payload, fn, args_by_rank)
        specs = _specs(world_size, device, directory, topology)
        if torchrun is not None:
            torchrun.start(specs, started_s + timeout)
        _add_ranks(ranks, specs, torchrun.rank if torchrun else start_rank, echo=echo)
        supervisor = Supervisor(ranks, directory, on_start)
        watch = StallWatch(supervisor, stall)
        listen_to_the_end(supervisor, started_s + timeout, timeout, watch, echo=echo)
        for rank in ranks:
            rank.output.read()  # its output just before it returned
        result = _result(supervisor, device, started_s, topology)
        has_returned = True
        return result
    finally:
        with uninterrupted():
            _clear_away(ranks, torchrun, directory, at_once=not has_returned)


def _torchrun(directory: RunDirectory) -> Any:
    """Run the ranks under torchrun."""
    from labkit.hosts.torchrun import Torchrun

    return Torchrun(directory)


def _add_ranks(
    ranks: list[Rank],
    specs: Sequence[RankSpec],
    start: Callable[[RankSpec], RankProcess],
    *,
    echo: bool,
) -> None:
    """Start the ranks, and append each to `ranks` at once: an interrupt then misses none."""
    for spec in specs:
        with uninterrupted():
            process = start(spec)
            ranks.append(Rank(process, RankOutput(spec.rank, process.output, echo)))


def _clear_away(
    ranks: Sequence[Rank], torchrun: Any, directory: RunDirectory | None, *, at_once: bool
) -> None:
    """Remove the processes and the folder. at_once: do not wait for ranks to end by themselves."""
    try:
        for rank in ranks:
            rank.output.finish()
    finally:
        end_ranks((rank.process for rank in ranks), at_once=at_once)
        if torchrun is not None:
            torchrun.end()
        if directory is not None:
            directory.remove()


def _specs(
    world_size: int, device: str, directory: RunDirectory, topology: Topology | None
) -> list[RankSpec]:
    # Only the driver's timeout counts: a backend that ended a wait earlier would destroy the
    # evidence of which rank waits where.
    return [
        RankSpec(rank, world_size, device, directory, LONGEST_TIMEOUT_S, topology)
        for rank in range(world_size)
    ]


def _checked(
    fn: Any,
    world_size: int,
    args_by_rank: Sequence[Any],
    timeout: float,
    device: str | None,
    topology: Topology | None,
) -> str:
    """Check the arguments. Return the device to use."""
    check_function(fn)
    device = checked_topology(topology, world_size, device)
    place = checked_device(world_size, timeout, device)
    if len(args_by_rank) not in (1, world_size):
        raise ValueError(f"{len(args_by_rank)} sets of arguments for {world_size} ranks")
    return place


def _result(
    supervisor: Supervisor, device: str, started_s: float, topology: Topology | None
) -> Run:
    supervisor.evidence.read_journals()
    reports = [rank.report for rank in supervisor.ranks if isinstance(rank.report, Returned)]
    zero_s = min(report.start_s for report in reports)
    timelines = [
        Timeline(timeline.operations, timeline.regions, report.start_s, report.end_s)
        for timeline, report in zip(supervisor.evidence.timeline, reports, strict=True)
    ]
    return Run(
        world_size=len(reports),
        device=device,
        values=[_value(supervisor.directory, number) for number in range(len(reports))],
        logs=[rank.output.log for rank in supervisor.ranks],
        timeline=[timeline.shifted(zero_s) for timeline in timelines],
        traffic=[
            Traffic.of(timeline.operations, report.socket_bytes)
            for timeline, report in zip(timelines, reports, strict=True)
        ],
        memory=[report.memory for report in reports],
        seconds=time.monotonic() - started_s,
        ready_seconds=supervisor.ready_s - started_s,
        topology=topology,
        lateness=[report.lateness for report in reports] if topology else [],
    )


def _value(directory: RunDirectory, number: int) -> Any:
    data = directory.of_rank(number, "value").read_bytes()
    try:
        return pickle.loads(data)
    except Exception as error:
        raise TypeError(
            f"what rank {number} returned cannot be read here: {error}. "
            "Return plain data or tensors"
        ) from error


class RunThread(threading.Thread):
    """A subclass launches runs in its `run`, until is_over. pids: the ranks of the current one."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.pids: list[int] = []
        self.is_over = False

    def launch(
        self, fn: Callable[..., Any], num_ranks: int, args: Sequence[Any], timeout: float
    ) -> Run:
        """Like `launch`, on the CPU and without the ranks' output."""
        options: dict[str, Any] = {"device": "cpu", "echo": False, "on_start": self.pids.extend}
        try:
            return launch(fn, num_ranks, [args], timeout=timeout, **options)
        finally:
            self.pids.clear()

    def kill(self) -> None:
        """End all ranks of the run."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill the run, which may just be starting, and wait for this thread."""
        self.is_over = True
        while self.is_alive():
            self.kill()
            self.join(0.05)


_ATTEMPT = "LABKIT_ATTEMPT"


def attempt() -> int:
    """Return 0 in the first start of a job and in `labkit.run`, 1 after its first restart.

    All ranks of all hosts agree on it. A training loop that may be restarted asks for its
    checkpoint when this is above 0.
    """
    return int(os.environ.get(_ATTEMPT, "0"))


def remember_attempt(number: int) -> None:
    """Set the attempt of the ranks that this process is about to fork."""
    os.environ[_ATTEMPT] = str(number)
