"""A timeout that passes when a run's ranks have come to rest, and not after some seconds.

    run(waits, 2, timeout=600)      ranks start ... wait for each other, all of them asleep
    the driver's clock              0.1  0.2  ...  0.7 s,  then 1,000,000 s: the timeout has passed

On a slow machine ranks are still starting after a second. On a fast one nobody waits for it.
"""

import contextlib
import threading
import time
from types import SimpleNamespace

import pytest

from labkit.launch import listen, supervise
from labkit.launch.supervise import Supervisor
from tests.processes import Stillness

_EVERY_S, _AHEAD_S = 0.05, 1e6


class Passing(threading.local):
    """State of a thread that runs ranks: whether it waits for the ranks, and its clock's time."""

    ahead_s = 0.0
    passed_at_s = None
    """When the timeout passed, on the clock of time.monotonic()."""
    stillness = None
    may_pass = staticmethod(lambda: True)


@pytest.fixture(scope="module")
def timeout_when_still():
    """`with timeout_when_still(): run(...)`: the run's timeout passes once all ranks are asleep.

    Of runs in this thread only, so that several may go on side by side. The grace that other ranks
    have after a failure passes as the timeout does. may_pass: another condition.
    """
    now = Passing()

    def listen_and_look(supervisor, timeout_s):
        if now.stillness is None:
            return listens(supervisor, timeout_s)
        has_reported = listens(supervisor, min(timeout_s, _EVERY_S))
        pids = [rank.process.process.pid for rank in supervisor.ranks if rank.is_active]
        is_still = bool(supervisor.ready_s) and not has_reported and now.stillness.look(pids)
        if is_still and now.may_pass() and not now.ahead_s:
            now.ahead_s, now.passed_at_s = _AHEAD_S, time.monotonic()
        return has_reported

    @contextlib.contextmanager
    def passing(may_pass=lambda: True):
        now.stillness, now.may_pass = Stillness(), may_pass
        try:
            yield now
        finally:
            now.ahead_s, now.stillness = 0.0, None

    listens = Supervisor.listen
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + now.ahead_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Supervisor, "listen", listen_and_look)
        patch.setattr(listen, "time", clock)
        patch.setattr(supervise, "time", clock)
        yield passing
