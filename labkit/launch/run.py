"""run: call a function on N ranks, each a fresh process with a real process group.

Paper trail of a call: payload.py stores the function, engine.py forks the ranks, rank.py calls the
function, supervise.py listens, and this file turns what came back into a Run, or an error.
"""

from __future__ import annotations

import inspect
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.comm import Timeline
from labkit.launch import devices, payload
from labkit.launch.engine import end_ranks
from labkit.launch.engines import ENGINES, check_engine
from labkit.launch.output import RankOutput
from labkit.launch.rank import RankSpec, Returned
from labkit.launch.request import checked_device, checked_stall
from labkit.launch.result import Run, Traffic
from labkit.launch.run_directory import RunDirectory
from labkit.launch.supervise import Rank, Supervisor
from labkit.launch.uninterrupted import uninterrupted
from labkit.launch.watch import listen_to_the_end


def run(
    fn: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    *,
    timeout: float = 30,
    device: str | None = None,
    stall: float | None = 5,
    engine: str = "local",
) -> Run:
    """Call `fn(world, *args)` on `world_size` ranks and return what each of them left behind.

    fn: any function, also one defined in a notebook cell. `world` is the rank's Group.
    timeout: seconds until a run that does not end is ended, with a report.
    device: "cpu" (gloo), "cuda" (nccl with a GPU per rank; ranks share where there are fewer), or
    None: "cuda" where there is a GPU for each rank, else "cpu". See devices.py.
    stall: seconds without any progress after which the doctor looks into it; None: never. What is
    certain from the journals, such as ranks that wait for each other, does not wait for this.
    engine: "local", or "torchrun": torch's elastic agent starts the ranks, which takes seconds.

    What ranks print appears here, line by line, as it comes. Raises RankError when a rank raises or
    dies, Mismatch when ranks mean different operations, Deadlock when what they wait for cannot
    come, RunTimeout, Interrupted (a KeyboardInterrupt) on Stop, and ValueError or TypeError for a
    call that cannot be made. No process is left behind in any case, but what a rank has put into a
    session of its own (setsid).
    """
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes)):
        raise TypeError(f"args={args!r}: give the arguments after `world` as a tuple, ({args!r},)")
    return launch(
        fn, world_size, [args], timeout=timeout, device=device, stall=stall, engine=engine
    )


def launch(
    fn: Callable[..., Any],
    world_size: int,
    args_by_rank: Sequence[Sequence[Any]],
    *,
    timeout: float = 30,
    device: str | None = None,
    stall: float | None = None,
    echo: bool = True,
    engine: str = "local",
) -> Run:
    """`run` with arguments of its own for each rank (or one set for all).

    echo: whether ranks' output, and a word about slow ranks, is shown as it comes.
    """
    started_s = time.monotonic()
    device = _checked(fn, world_size, args_by_rank, timeout, device)
    stall = checked_stall(stall)
    check_engine(engine)
    if echo and (note := devices.note(device, world_size, torch.cuda.device_count())):
        print(note, flush=True)
    directory = RunDirectory()
    starter = ENGINES[engine](directory)
    ranks: list[Rank] = []
    has_returned = False
    try:
        payload.write(directory.payload, fn, args_by_rank)
        specs = _specs(world_size, device, directory, timeout)
        starter.start(specs, started_s + timeout)
        for spec in specs:
            with uninterrupted():
                process = starter.rank(spec)
                ranks.append(Rank(process, RankOutput(spec.rank, process.output, echo)))
        supervisor = Supervisor(ranks, directory)
        listen_to_the_end(supervisor, started_s + timeout, timeout, stall, echo=echo)
        for rank in ranks:
            rank.output.read()  # what it wrote just before it returned
        result = _result(supervisor, device, started_s)
        has_returned = True
        return result
    finally:
        with uninterrupted():
            try:
                for rank in ranks:
                    rank.output.finish()
            finally:
                end_ranks((rank.process for rank in ranks), at_once=not has_returned)
                starter.end()
                directory.remove()


def _specs(world_size: int, device: str, directory: RunDirectory, timeout: float) -> list[RankSpec]:
    # The backend's own timeout comes later than ours: the driver is the one who knows why.
    return [RankSpec(n, world_size, device, directory, timeout + 10) for n in range(world_size)]


def _checked(
    fn: Any, world_size: int, args_by_rank: Sequence[Any], timeout: float, device: str | None
) -> str:
    """The device to use. Raises for a call that cannot be made."""
    if not callable(fn):
        raise TypeError(f"run() calls a function on every rank; {fn!r} is not one")
    place = checked_device(world_size, timeout, device)
    if len(args_by_rank) not in (1, world_size):
        raise ValueError(f"{len(args_by_rank)} sets of arguments for {world_size} ranks")
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(f"{fn!r} would only be begun: a rank calls a plain function, to its end")
    return place


def _result(supervisor: Supervisor, device: str, started_s: float) -> Run:
    supervisor.read_journals()
    reports = [rank.report for rank in supervisor.ranks if isinstance(rank.report, Returned)]
    zero_s = min(report.start_s for report in reports)
    timelines = [
        Timeline(timeline.operations, timeline.regions, report.start_s, report.end_s)
        for timeline, report in zip(supervisor.timeline, reports, strict=True)
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
