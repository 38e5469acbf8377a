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
from labkit.launch import payload
from labkit.launch.engine import start_rank
from labkit.launch.output import RankOutput
from labkit.launch.rank import RankSpec, Returned
from labkit.launch.result import Run, Traffic
from labkit.launch.run_directory import RunDirectory
from labkit.launch.supervise import Rank, Supervisor
from labkit.launch.uninterrupted import uninterrupted
from labkit.launch.watch import listen_to_the_end

_EXIT_S = 0.5
_LONGEST_TIMEOUT_S = 7 * 24 * 3600


def run(
    fn: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    *,
    timeout: float = 30,
    device: str | None = None,
) -> Run:
    """Call `fn(world, *args)` on `world_size` ranks and return what each of them left behind.

    fn: any function, also one defined in a notebook cell. `world` is the rank's Group.
    timeout: seconds until a run that does not end is ended, with a report.
    device: "cpu" (gloo), "cuda" (nccl, one GPU per rank), or None: cuda when there are enough.

    What ranks print appears here, line by line, as it comes. Raises RankError when a rank raises or
    dies, Deadlock when one waits for a rank that has returned, RunTimeout, Interrupted (a
    KeyboardInterrupt) on Stop, and ValueError or TypeError for a call that cannot be made. No
    process is left behind in any case.
    """
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes)):
        raise TypeError(f"args={args!r}: give the arguments after `world` as a tuple, ({args!r},)")
    return launch(fn, world_size, [args], timeout=timeout, device=device)


def launch(
    fn: Callable[..., Any],
    world_size: int,
    args_by_rank: Sequence[Sequence[Any]],
    *,
    timeout: float = 30,
    device: str | None = None,
    stall: float | None = None,
    echo: bool = True,
) -> Run:
    """`run` with arguments of its own for each rank (or one set for all).

    stall: seconds after which ranks that all wait, with no journal growing, count as deadlocked.
    echo: whether ranks' output is shown as it comes.
    """
    started_s = time.monotonic()
    device = _checked(fn, world_size, args_by_rank, timeout, device)
    directory = RunDirectory()
    ranks: list[Rank] = []
    has_returned = False
    try:
        payload.write(directory.payload, fn, args_by_rank)
        for number in range(world_size):
            # The backend's own timeout comes later than ours: the driver is the one who knows why.
            spec = RankSpec(number, world_size, device, directory, timeout + 10)
            with uninterrupted():
                process = start_rank(spec)
                ranks.append(Rank(process, RankOutput(number, process.output, echo)))
        supervisor = Supervisor(ranks, directory)
        listen_to_the_end(supervisor, started_s + timeout, timeout, stall)
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
                _end(ranks, at_once=not has_returned)
                directory.remove()


def _checked(
    fn: Any, world_size: int, args_by_rank: Sequence[Any], timeout: float, device: str | None
) -> str:
    """The device to use. Raises for a call that cannot be made."""
    if not callable(fn):
        raise TypeError(f"run() calls a function on every rank; {fn!r} is not one")
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size={world_size!r}: give the number of ranks, 1 or more")
    if len(args_by_rank) not in (1, world_size):
        raise ValueError(f"{len(args_by_rank)} sets of arguments for {world_size} ranks")
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        raise TypeError(f"{fn!r} would only be begun: a rank calls a plain function, to its end")
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout <= _LONGEST_TIMEOUT_S:
        raise ValueError(
            f"timeout={timeout!r}: give a number of seconds above 0, at most {_LONGEST_TIMEOUT_S}"
        )
    num_gpus = torch.cuda.device_count()
    if device is None:
        return "cuda" if num_gpus >= world_size else "cpu"
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} is unknown; choose 'cpu' or 'cuda'")
    if device == "cuda" and num_gpus < world_size:
        raise ValueError(
            f"{world_size} ranks on cuda need as many GPUs, and {num_gpus} are visible; "
            "use device='cpu', or fewer ranks"
        )
    return device


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


def _end(ranks: Sequence[Rank], *, at_once: bool) -> None:
    """No process of the run is left when this returns."""
    for rank in ranks:
        if at_once:
            rank.process.kill()
        rank.process.release()
    deadline = time.monotonic() + _EXIT_S
    for rank in ranks:
        rank.process.end(deadline - time.monotonic())
