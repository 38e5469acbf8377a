"""Whether the hosts of a job are all there: each knocks at the next one's door.

host 0 --> host 1 --> host 2 --> host 0      by its first rank: nobody is knocked at by all
"""

from __future__ import annotations

import time

from labkit.comm.hosts.roll_call import Place
from labkit.launch.hosts.door import knock
from labkit.launch.hosts.hosted_rank import HostedSpec

_EVERY_S = 2.0
_AGAIN_S = 0.5
_WAIT_S = 1.5
_KNOCKS = 3


class NextHost:
    """The one after ours."""

    def __init__(self, spec: HostedSpec) -> None:
        """spec: of one of our ranks; its host's first does the knocking."""
        self._place = _door_after(spec) if spec.environment.local_rank == 0 else None
        self._next_knock_s = time.monotonic() + _EVERY_S
        self._num_unanswered = 0

    def is_gone(self) -> bool:
        """Knock, if it is time to; whether nobody has answered several times."""
        if self._place is None or time.monotonic() < self._next_knock_s:
            return False
        is_silent = knock(self._place.address, self._place.door, _WAIT_S) is not None
        self._num_unanswered = self._num_unanswered + 1 if is_silent else 0
        self._next_knock_s = time.monotonic() + (_AGAIN_S if is_silent else _EVERY_S)
        return self._num_unanswered >= _KNOCKS


def _door_after(spec: HostedSpec) -> Place | None:
    """Of the first rank on the next host; None where there is one host only."""
    places = spec.call.places
    hosts = sorted({place.host_number for place in places})
    if len(hosts) == 1:
        return None
    after = hosts[(hosts.index(spec.environment.host_number) + 1) % len(hosts)]
    return next(place for place in places if place.host_number == after)
