"""The driver's watch over a run: it ends when all ranks have returned, or with an error.

Four things end a run early: a rank fails, ranks wait in vain, the timeout passes, Stop is pressed.
"""

from __future__ import annotations

import time

from labkit.launch import failure
from labkit.launch.stall import StallWatch
from labkit.launch.supervise import Supervisor
from labkit.launch.uninterrupted import uninterrupted


def listen_to_the_end(
    supervisor: Supervisor, deadline_s: float, timeout_s: float, stall_s: float | None
) -> None:
    """Return when every rank has returned; raise what explains any other end.

    deadline_s: on the clock of time.monotonic(); timeout_s: what the reader asked for.
    stall_s: seconds without progress after which the doctor is asked; None: only proofs count.
    """
    watch = StallWatch(supervisor, stall_s)
    try:
        while not supervisor.is_over and not supervisor.has_failed:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                supervisor.examine()
                raise failure.run_timeout(supervisor, timeout_s)
            if supervisor.listen(min(remaining_s, watch.next_look_s)):
                watch.news()
            elif proof := watch.look():
                supervisor.examine()
                raise failure.deadlock(supervisor, proof)
        if supervisor.has_failed:
            supervisor.wait_for_consequences()
            supervisor.examine()
            raise failure.rank_error(supervisor)
    except KeyboardInterrupt:
        with uninterrupted(quietly=True):
            supervisor.examine()
        raise failure.interrupted(supervisor) from None
