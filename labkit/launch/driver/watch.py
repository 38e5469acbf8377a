"""The driver's watch over a run: it ends when all ranks have returned, or with an error.

Four things end a run early: a rank fails, ranks wait in vain, the timeout passes, Stop is pressed.
What they left unfinished is told when all have returned.
"""

from __future__ import annotations

import time

from labkit.launch.diagnosis import failure
from labkit.launch.diagnosis.consult import consult
from labkit.launch.driver import left_over
from labkit.launch.driver.stall import StallWatch
from labkit.launch.driver.supervise import Supervisor
from labkit.launch.driver.uninterrupted import uninterrupted
from labkit.launch.told import tell

# The first question about torch's own operations makes a rank import for a second or more.
_PATIENCE_S = 6.0


def listen_to_the_end(
    supervisor: Supervisor,
    deadline_s: float,
    timeout_s: float,
    watch: StallWatch,
    *,
    echo: bool = True,
) -> None:
    """Return when every rank has returned; raise what explains any other end.

    deadline_s: on the clock of time.monotonic(); timeout_s: what the reader asked for.
    watch: for ranks that wait in vain.
    echo: whether a line is printed when ranks have waited that long for a slow one, and for what
    they have left behind.
    """
    try:
        _listen(supervisor, deadline_s, timeout_s, watch, echo)
        if supervisor.has_failed:
            supervisor.wait_for_consequences()
            supervisor.evidence.examine()
            raise failure.rank_error(supervisor)
    except KeyboardInterrupt:
        with uninterrupted(quietly=True):
            supervisor.evidence.examine()
        raise failure.interrupted(supervisor) from None
    if echo and supervisor.nothing_follows:
        supervisor.evidence.read_journals()
        left_over.tell(supervisor.evidence.timeline)


def _listen(
    supervisor: Supervisor, deadline_s: float, timeout_s: float, watch: StallWatch, echo: bool
) -> None:
    """Return when every rank has returned, or one has failed."""
    has_told = not echo
    while not supervisor.is_over and not supervisor.has_failed:
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            why = consult(supervisor.evidence, _PATIENCE_S)
            raise failure.run_timeout(supervisor, why, timeout_s)
        if supervisor.listen(min(remaining_s, watch.next_look_s)):
            watch.news()
        elif verdict := watch.look():
            if verdict.is_proof:
                raise failure.cannot_end(supervisor, verdict)
            if not has_told:
                tell(f"{verdict.text}. The timeout is {timeout_s:g} s.")
                has_told = True
