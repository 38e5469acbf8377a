"""Restart a job after a failure: every rank restarts and loads the newest checkpoint.

    attempt 0   4 ranks   load: nothing   steps 0 1 2 3 4 5   rank 2 is killed
    attempt 1   3 ranks   load: step 4    steps 4 5 6 7       a host returns: save(8), Restart
    attempt 2   4 ranks   load: step 8    steps 8 9           return

A failure costs the steps since the last save, and a restart of all ranks. A planned change costs
the restart only. The size of the world may change between attempts, since a checkpoint is loaded
into any layout.

    def train(world, folder):
        model, optimizer = ...
        checkpointer = Checkpointer(folder, model, optimizer, world)
        loaded = checkpointer.load()
        for step in range(loaded.step if loaded else 0, num_steps): ...

    elastic.run(train, 4, (folder,), restarts=3)

torchrun does the same with `--max-restarts=3 --nnodes=3:4`: its agents (torchelastic) end all
workers after a failure, meet in a new rendezvous and start all of them. They restart whatever has
failed. This one does not restart a failure that would come again: a restart would only burn the
cluster.

Wire: nothing. The ranks of an attempt know nothing of those before it but the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from labkit import arguments
from labkit.launch import Deadlock, Mismatch, RankError, Run, RunError, launch, notes
from labkit.launch.request import check_args
from labkit.launch.run import remember_attempt


class Restart(Exception):
    """Raised by every rank after a save, in the same step: restart with the next size.

    It is a planned change, such as a host that returns, and not one of `restarts`.
    """


@dataclass(frozen=True)
class Attempt:
    """One start of the job. Times are seconds of time.monotonic(), which ranks read, too."""

    world_size: int
    start_s: float
    end_s: float
    error: RunError | None
    """The error that ended it; None where all ranks returned, or raised Restart."""


@dataclass(frozen=True)
class ElasticRun:
    """The result of `elastic.run`."""

    run: Run
    """The Run of the attempt that returned."""
    attempts: list[Attempt]


def run(
    fn: Callable[..., Any],
    world_size: int,
    args: Sequence[Any] = (),
    *,
    restarts: int = 3,
    sizes: Sequence[int] | None = None,
    timeout: float = 120,
    on_start: Callable[[int, list[int]], None] | None = None,
) -> ElasticRun:
    """Call `fn(world, *args)` on `world_size` ranks, and again after a failure, until it returns.

    Inside, `labkit.attempt()` is 0 in the first attempt, 1 in the second, and so on.

    restarts: this many failures are followed by another attempt. sizes: the number of ranks of each
    attempt, the last one of all that follow; None: always `world_size`. timeout: seconds for each
    attempt. on_start: called in this process when all ranks of an attempt begin `fn`, with the
    attempt's number and the ranks' process ids, by rank; the run waits for its return. (A thread
    that it starts can kill a rank later.)

    Raises the last error, with all `attempts`, when restarts are used up. At once: Mismatch and
    Deadlock, and an exception that two attempts in a row raised with the same type, message and
    line. These are most likely deterministic, so the next attempt would end there, too. (A storage
    that fails twice in the same way looks the same.)
    """
    check_args(args)
    arguments.whole("restarts", restarts, "0 or more", least=0)
    sizes = _checked_sizes(world_size, sizes)
    attempts: list[Attempt] = []
    while True:
        number = len(attempts)
        size = sizes[min(number, len(sizes) - 1)]
        start_s = time.monotonic()
        result, error = None, None
        try:
            result = launch(
                partial(_begin, fn, number),
                size,
                [args],
                timeout=timeout,
                stall=5,
                on_start=on_start and partial(on_start, number),
            )
        except RunError as failure:
            error = failure
        attempts.append(Attempt(size, start_s, time.monotonic(), error))
        if error is not None:
            _require_restart_helps(attempts, restarts)
            notes.print_note(f"attempt {number} failed: {_first_line(error)}. All ranks restart.")
        elif result is not None and not _is_planned_change(result):
            notes.report_late_messages(result)
            return ElasticRun(result, attempts)


def seconds_lost(steps_made: Sequence[tuple[float, int]]) -> float:
    """Return the cost of a failure: the longest wait for a new step, less the usual one.

    It includes detection, the restart and repeated steps. steps_made: (seconds, step) for each step
    that was made, in order; repeated ones, too.
    """
    reached: dict[int, float] = {}
    for seconds, step in steps_made:
        reached.setdefault(step, seconds)
    waits = [after - before for before, after in pairwise(reached.values())]
    return max(waits) - median(waits)


def _begin(fn: Callable[..., Any], number: int, world: Any, *args: Any) -> Any:
    """In each rank. A Restart is returned, so that the driver waits for all ranks to raise it."""
    remember_attempt(number)
    try:
        return fn(world, *args)
    except Restart as planned:
        return planned


def _checked_sizes(world_size: int, sizes: Sequence[int] | None) -> Sequence[int]:
    if sizes is None:
        return [arguments.whole("world_size", world_size, "the number of ranks, 1 or more")]
    if not sizes or sizes[0] != world_size:
        raise ValueError(
            f"sizes={sizes!r}: the first attempt has world_size={world_size} ranks: begin with it, "
            f"as in [{world_size}, {max(1, world_size - 1)}]"
        )
    return [arguments.whole("sizes", size, "numbers of ranks, each 1 or more") for size in sizes]


def _is_planned_change(result: Run) -> bool:
    """Return whether the ranks raised Restart. RuntimeError where some did and others returned."""
    raised = [isinstance(value, Restart) for value in result.values]
    if any(raised) and not all(raised):
        raise RuntimeError(
            f"rank {raised.index(True)} raised elastic.Restart and rank {raised.index(False)} "
            "returned: all ranks must raise it, in the same step; PreemptionNotice.received() lets "
            "them agree on one"
        )
    return all(raised)


def _require_restart_helps(attempts: list[Attempt], restarts: int) -> None:
    """Raise the last attempt's error where it would come again, or restarts are used up."""
    error = attempts[-1].error
    assert error is not None
    num_failures = sum(attempt.error is not None for attempt in attempts)
    before = attempts[-2].error if len(attempts) > 1 else None
    if isinstance(error, (Mismatch, Deadlock)):
        why = "a restart would end in the same way"
    elif before is not None and _cause(error) is not None and _cause(error) == _cause(before):
        why = "the attempt before it ended with the same exception in the same line"
    elif num_failures > restarts:
        why = f"restarts={restarts} are used up"
    else:
        return
    error.attempts = attempts
    error.add_note(f"Not restarted after attempt {len(attempts) - 1}: {why}.")
    raise error


def _cause(error: RunError) -> tuple[object, ...] | None:
    """Type, message and line of what a rank raised; None for another failure.

    A process that was killed, and a timeout, say nothing about the next attempt.
    """
    if not isinstance(error, RankError) or error.site is None:
        return None
    return error.exception_type, error.site, error.traceback.rpartition("\n")[2]


def _first_line(error: RunError) -> str:
    return str(error).partition("\n")[0].rstrip(".")
