"""What the programs of find_the_deadlock do: real runs, several at a time, read off the journals.

A run ends when the doctor has proved that it cannot; other ranks may be on their way at that
moment, to where they get stuck as well. Such a run shows nothing yet, and is made again.
"""

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from labkit.comm import Group
from labkit.comm.operation import Operation, Timeline
from labkit.grade.graders.deadlock_programs import PROGRAMS
from labkit.launch import launch
from labkit.launch.diagnosis.waiting import blocked_in
from labkit.launch.errors import Deadlock

_AT_ONCE = 3  # ranks that wait use no time: the runs hardly disturb each other
_TIMEOUT_S = 60.0
_MOST_RUNS = 5


@dataclass(frozen=True, slots=True)
class Shown:
    """How a program ended on so many ranks."""

    program: str
    world_size: int
    waits: dict[int, str]
    """What the ranks that wait for ever wait in; empty where the program came to its end."""
    completed: tuple[frozenset[str], ...]
    """By rank: what it came through."""

    def __str__(self) -> str:
        """`rank 0 waited in recv from 1; ranks ...`"""
        if not self.waits:
            return "every rank returned"
        return "; ".join(f"rank {rank} waited in {what}" for rank, what in self.waits.items())


def run_all(jobs: Sequence[tuple[str, int]]) -> Generator[Shown, None, None]:
    """Programs on so many ranks, as they really end: in order, each as soon as it is there.

    Runs that nobody asks for any more are not begun.
    """
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        yield from pool.map(lambda job: run_program(*job), jobs)
    finally:
        pool.shutdown(cancel_futures=True)  # on Stop, too: waits for what is under way


def run_program(program: str, world_size: int) -> Shown:
    """How a program ends. Raises RuntimeError where several runs do not show it."""
    for _ in range(_MOST_RUNS):
        shown = _run_once(program, world_size)
        if shown is not None:
            return shown
    raise RuntimeError(
        f"{_MOST_RUNS} runs of {program} on {world_size} ranks were over before every rank had "
        "come to a rest; is this machine very busy? Try again"
    )


def in_a_region(world: Group, program: str) -> None:
    """Run on every rank: the program, in a region that ends where it returns."""
    with world.region(program):
        PROGRAMS[program](world)


def _run_once(program: str, world_size: int) -> Shown | None:
    """One run; None where a rank neither waited nor had returned."""
    try:
        run = launch(
            in_a_region,
            world_size,
            [(program,)],
            timeout=_TIMEOUT_S,
            device="cpu",
            stall=1.0,
            echo=False,
        )
        timelines: list[Timeline] = run.timeline
    except Deadlock as error:
        timelines = error.timeline
    waits = {}
    for rank, timeline in enumerate(timelines):
        operation = blocked_in(timeline.operations)
        if operation is not None:
            waits[rank] = in_words(operation)
        elif not timeline.regions or timeline.regions[0].end_s is None:
            return None
        elif any(each.failed for each in timeline.operations):
            return None  # its peer was gone: this is not how the program ends
    completed = tuple(
        frozenset(in_words(each) for each in timeline.operations if each.done_s is not None)
        for timeline in timelines
    )
    return Shown(program, world_size, waits, completed)


def in_words(operation: Operation) -> str:
    """As answers name it: `send to 2`, `recv from 0`, `all_reduce`."""
    if operation.is_collective:
        return operation.kind
    return f"{operation.kind} {'to' if operation.kind == 'send' else 'from'} {operation.peer}"
