"""Listening to the ranks of a session while one cell runs on some of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from labkit.comm import Timeline
from labkit.comm.follow_journal import JournalFollower
from labkit.comm.read_journal import read_journal
from labkit.doctor.stage import Stage
from labkit.launch.driver.engine import RankProcess
from labkit.launch.driver.evidence import Evidence
from labkit.launch.driver.rank_state import Rank
from labkit.launch.driver.supervise import Supervisor
from labkit.launch.ranks.output import RankOutput
from labkit.launch.run_directory import RunDirectory


class History:
    """What is known of the journals of a session's ranks, from cell to cell.

    Each is read once, and not again by every cell that lasts.
    """

    def __init__(self, directory: RunDirectory, world_size: int) -> None:
        """Of ranks that have done nothing yet."""
        ranks = range(world_size)
        self.journals = [JournalFollower(directory.of_rank(rank, "journal")) for rank in ranks]
        self.seen = [0] * world_size
        """How many records of each journal ended cells have left behind."""


class CellSupervisor(Supervisor):
    """Ranks that take part are RUNNING from the beginning, the others IDLE.

    The journals go back to the first cell of the session: a cell may wait for what an earlier one
    has posted. `of_this_cell` is the part of them that began with the cell.
    """

    nothing_follows = False

    def __init__(
        self,
        processes: Sequence[RankProcess],
        directory: RunDirectory,
        on: Collection[int],
        history: History,
        echo: bool,
    ) -> None:
        """on: the ranks that take part. history: of the session's journals; kept up to date."""
        self._seen = history.seen
        ranks = [
            Rank(
                process,
                RankOutput(process.rank, process.output, echo),
                Stage.RUNNING if process.rank in on else Stage.IDLE,
            )
            for process in processes
        ]
        super().__init__(ranks, directory)
        self.evidence = Evidence(ranks, directory, history.journals)
        self.ready_s = time.monotonic()

    def listen(self, timeout_s: float) -> bool:
        """As for a run; an idle rank has nothing to report but its death."""
        has_reported = super().listen(timeout_s)
        return self.look_for_deaths() or has_reported

    def look_for_deaths(self) -> bool:
        """Whether an idle rank is no more, and was when this was last asked."""
        dead = [
            rank
            for rank in self.ranks
            if rank.stage is Stage.IDLE and not rank.process.process.is_alive()
        ]
        for rank in dead:
            rank.stage, rank.ended_s = Stage.DIED, time.monotonic()
        return bool(dead)

    def read_cell(self) -> list[Timeline]:
        """`of_this_cell` without reading what earlier cells have done; for once, at its end.

        Most cells are over before anybody asks the doctor, who needs the earlier ones too: a
        session may go on for 100,000 operations, and each costs 5 us to read and 1 KB to keep.
        """
        found = []
        for number, first in enumerate(self._seen):
            timeline = read_journal(self.directory.of_rank(number, "journal"), first)
            self._seen[number] += len(timeline.operations) + len(timeline.regions)
            found.append(since(timeline, self.ready_s))
        return found

    def of_this_cell(self) -> list[Timeline]:
        """What each rank began since the cell was sent, on the clock of time.monotonic()."""
        return [since(timeline, self.ready_s) for timeline in self.evidence.timeline]

    def finish_outputs(self) -> None:
        """Show what was printed last."""
        for rank in self.ranks:
            rank.output.read()
            rank.output.finish()


def since(timeline: Timeline, start_s: float) -> Timeline:
    """The part of a timeline that began at `start_s` or later."""
    return Timeline(
        [operation for operation in timeline.operations if operation.posted_s >= start_s],
        [region for region in timeline.regions if region.start_s >= start_s],
        timeline.start_s,
        timeline.end_s,
    )
