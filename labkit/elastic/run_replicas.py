"""The driver of replicas: each one in a thread, which restarts it when it dies.

    thread 0   attempt 0 -------------------------------------------------> returned
    thread 1   attempt 0 -------------------------------------------------> returned
    thread 2   attempt 0 ------- killed | attempt 1 ----------------------> returned
    thread 3   attempt 0 -------------------------- killed | attempt 1 ---> returned

An attempt is a run of the lab's with one rank: a process of its own, with a world of size 1. So a
replica is a failure domain, and the others are not touched when it ends. What connects them is the
coordinator (quorum.py) and the group that each quorum makes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from labkit import arguments
from labkit.comm import Group, owned_folder
from labkit.elastic.quorum import Commit, Coordinator, Healing, NoReplicaLeft, Quorum
from labkit.elastic.replica_steps import Place, Replica
from labkit.elastic.restarts import Attempt
from labkit.launch import RankError, RunError
from labkit.launch.request import check_args, check_function
from labkit.launch.run import RunThread, remember_attempt


@dataclass(frozen=True)
class ReplicasRun:
    """The result of `run_replicas`."""

    values: list[Any]
    """The value of each replica; None for one that has failed, or was frozen at the end."""
    attempts: list[list[Attempt]]
    """The starts of each replica."""
    quorums: list[Quorum]
    """One for each process group: who its members were, and from which step on."""
    commits: list[Commit]
    healings: list[Healing]


def run_replicas(
    fn: Callable[..., Any],
    num_replicas: int,
    args: Sequence[Any] = (),
    *,
    restarts: int = 3,
    timeout: float = 120,
    patience_s: float = 5.0,
) -> ReplicasRun:
    """Call `fn(replica, *args)` in `num_replicas` processes; each fails and restarts alone.

    restarts: of each replica. timeout: seconds for all of it. patience_s: how long an operation may
    last, and the silence of a replica, before the others go on without it. A replica that computes
    longer than the others by more than this makes every step void.

    A replica that returns ends the job: those that die after that are not started again, and those
    that are frozen are killed when no other one is left.
    Raises NoReplicaLeft where none returned, and RunTimeout.
    """
    check_function(fn)
    check_args(args)
    arguments.whole("num_replicas", num_replicas, "the number of replicas, 1 or more")
    arguments.whole("restarts", restarts, "0 or more", least=0)
    folder = owned_folder.make(Path(tempfile.gettempdir()), "replicas")
    coordinator = Coordinator(num_replicas, patience_s)
    end_s = coordinator.began_s + timeout
    heartbeat_address = coordinator.monitor.address
    place = Place(coordinator.address, coordinator.key, heartbeat_address, str(folder), patience_s)
    job = _Job(fn, args, place, restarts, end_s, coordinator)
    lives = [_Life(number, job) for number in range(num_replicas)]
    try:
        for life in lives:
            life.start()
        while any(life.is_alive() and not life.is_left_behind() for life in lives):
            time.sleep(0.02)
    finally:
        job.is_over = True
        for life in lives:  # only those left behind, unless Stop was pressed
            life.end()
        coordinator.close()
        shutil.rmtree(folder, ignore_errors=True)
    _require_one_returned(lives, coordinator)
    return ReplicasRun(
        [life.value for life in lives],
        [life.attempts for life in lives],
        coordinator.quorums,
        coordinator.commits,
        coordinator.healings,
    )


@dataclass
class _Job:
    """State that all replicas share. is_over: none is started any more."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    place: Place
    restarts: int
    end_s: float
    coordinator: Coordinator
    is_over: bool = False


class _Life(RunThread):
    """The attempts of one replica, one after the other."""

    def __init__(self, number: int, job: _Job) -> None:
        super().__init__()
        self._number, self._job = number, job
        self.attempts: list[Attempt] = []
        self.value: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Until it returns, or is not to be started again."""
        try:
            while self._may_start():
                self.error = self._attempt()
                if self.error is None:
                    self._job.is_over = True
                if not isinstance(self.error, RankError) or _has_no_state(self.error):
                    return
        except Exception as error:  # the call cannot be made
            self.error = error
        finally:
            self._job.coordinator.give_up(self._number)

    def _may_start(self) -> bool:
        is_over = self._job.is_over or self._job.coordinator.is_over
        return not is_over and len(self.attempts) <= self._job.restarts

    def is_left_behind(self) -> bool:
        """Return whether another replica has returned, and nobody knows if this one will go on."""
        states = self._job.coordinator.monitor.states()
        return self._job.is_over and states[self._number] == "frozen"

    def _attempt(self) -> RunError | None:
        """One start; what ended it, or None where it returned."""
        job, start_s, error = self._job, time.monotonic(), None
        try:
            main = partial(_main, job.fn, self._number, len(self.attempts), job.place)
            result = self.launch(main, 1, job.args, timeout=max(job.end_s - start_s, 0.01))
            self.value = result.values[0]
        except RunError as failure:
            error = failure
        self.attempts.append(Attempt(1, start_s, time.monotonic(), error))
        return error


def _has_no_state(error: Exception | None) -> bool:
    """Return whether a replica ended because nobody is left to heal it."""
    return isinstance(error, RankError) and isinstance(error.exception, NoReplicaLeft)


def _require_one_returned(lives: Sequence[_Life], coordinator: Coordinator) -> None:
    """Raise what explains that no replica returned."""
    errors = [life.error for life in lives]
    if None in errors:
        return
    for error in errors:
        if error is not None and not isinstance(error, RankError):
            raise error
    attempts = [attempt for life in lives for attempt in life.attempts]
    attempts.sort(key=lambda attempt: attempt.end_s)
    *_, cause = [attempt.error for attempt in attempts if not _has_no_state(attempt.error)]
    raise NoReplicaLeft(
        f"no replica is left after {len(coordinator.commits)} committed steps: restart from a "
        f"checkpoint. The last one ended with: {cause}"
    ) from cause


def _main(
    fn: Callable[..., Any], number: int, attempt: int, place: Place, world: Group, *args: Any
) -> Any:
    """In the process of a replica."""
    remember_attempt(attempt)
    return fn(Replica(number, place), *args)
