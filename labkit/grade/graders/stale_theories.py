"""Wrong ideas of staleness, and what each of them makes of an order of arrivals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Updates = list[tuple[int, int]]
"""(staleness, version) by arrival."""


@dataclass(frozen=True)
class Theory:
    """A mistake, and the answer by it."""

    name: str
    explanation: str
    updates: Callable[[Sequence[int], int], Updates]
    """From the arrivals and k."""
    hint: int = 2


def simulate(
    arrivals: Sequence[int],
    k: int = 0,
    *,
    own_counts: bool = False,
    from_first_arrival: bool = False,
    late_counts: bool = False,
    late_keeps_its_own: bool = False,
    steps_per_step: int = 1,
) -> Updates:
    """The server as it is, but for mistakes. k = 0: asynchronous."""
    version, held, updates = 0, dict.fromkeys(arrivals, 0), []
    waiting: list[int] = []
    seen: set[int] = set()
    for worker in arrivals:
        if from_first_arrival and worker not in seen:
            seen.add(worker)
            held[worker] = version
        staleness = version - held[worker]
        is_used = not k or not staleness or late_counts
        if is_used:
            waiting.append(worker)
        elif not late_keeps_its_own:
            held[worker] = version
        if len(waiting) == max(k, 1) and is_used:
            held.update(dict.fromkeys(waiting, version if own_counts else version + steps_per_step))
            version += steps_per_step
            waiting.clear()
        updates.append((staleness, version))
    return updates


def _map(arrivals: Sequence[int], k: int, change: Callable[[int, int], tuple[int, int]]) -> Updates:
    return [change(staleness, version) for staleness, version in simulate(arrivals, k)]


def _others_in_between(arrivals: Sequence[int], k: int) -> Updates:
    """How many different workers have arrived since a worker's last arrival."""
    updates = []
    for at, (worker, (_, version)) in enumerate(zip(arrivals, simulate(arrivals, k), strict=True)):
        before = list(arrivals[:at])
        since = before[len(before) - before[::-1].index(worker) :] if worker in before else before
        updates.append((len(set(since)), version))
    return updates


def _behind_the_fastest(arrivals: Sequence[int], k: int) -> Updates:
    """How many gradients fewer a worker has sent than the one that has sent most."""
    counts, updates = dict.fromkeys(arrivals, 0), []
    for worker, (_, version) in zip(arrivals, simulate(arrivals, k), strict=True):
        updates.append((max(counts.values()) - counts[worker], version))
        counts[worker] += 1
    return updates


def _all_others(arrivals: Sequence[int], k: int) -> Updates:
    others = len(set(arrivals)) - 1
    return _map(arrivals, k, lambda staleness, version: (others, version))


_OWN_COUNTS = Theory(
    "counts the worker's own last update",
    "a worker gets its parameters after the server's step with its gradient. That step is in them: "
    "staleness counts the steps that come after it",
    lambda arrivals, k: simulate(arrivals, k, own_counts=True),
)
_THIS_COUNTS = Theory(
    "counts the step that the gradient makes",
    "it is one too many everywhere. Staleness is counted when a gradient arrives, before the "
    "server steps with it: a worker alone has staleness 0",
    lambda arrivals, k: _map(arrivals, k, lambda staleness, version: (staleness + 1, version)),
)
_FIRST_IGNORED = Theory(
    "ignores steps before a worker's first gradient",
    "a worker's first gradient belongs to version 0, which all workers got at the beginning. "
    "Whoever arrives after five steps has computed with parameters that are five steps old",
    lambda arrivals, k: simulate(arrivals, k, from_first_arrival=True),
)
_VERSION_BEFORE = Theory(
    "gives the version before the arrival",
    "version is asked for when the arrival has been dealt with: after the step, if there is one",
    lambda arrivals, k: [
        (staleness, before)
        for (staleness, _), before in zip(
            simulate(arrivals, k),
            [0, *(version for _, version in simulate(arrivals, k))],
            strict=False,
        )
    ],
    hint=3,
)
_VERSION_FROM_ONE = Theory(
    "counts versions from 1",
    "the parameters that all workers get at the beginning are version 0: version is the number of "
    "steps that have been made",
    lambda arrivals, k: _map(arrivals, k, lambda staleness, version: (staleness, version + 1)),
    hint=3,
)
_COMMON = (_OWN_COUNTS, _THIS_COUNTS, _FIRST_IGNORED, _VERSION_BEFORE, _VERSION_FROM_ONE)
ASYNCHRONOUS = (
    *_COMMON,
    Theory(
        "counts workers instead of steps",
        "it is the number of different workers that have come in between. A fast one may have made "
        "the server step several times meanwhile",
        _others_in_between,
    ),
    Theory(
        "takes all workers for equally fast",
        "it is n - 1, which is right in the long run where workers take turns. Here they do not",
        _all_others,
    ),
    Theory(
        "measures how far a worker is behind",
        "it is how many gradients fewer the worker has sent than the fastest one. Staleness is not "
        "about that: it counts steps of the server since this worker got its parameters",
        _behind_the_fastest,
    ),
)
FIRST_K = (
    *_COMMON,
    Theory(
        "steps with every gradient",
        "that is what an asynchronous server does. This one waits until k gradients of its newest "
        "parameters are there",
        lambda arrivals, k: simulate(arrivals),
    ),
    Theory(
        "counts gradients instead of steps",
        "k gradients make one step, with their mean, and so the version one more",
        lambda arrivals, k: simulate(arrivals, k, steps_per_step=k),
    ),
    Theory(
        "steps with late gradients, too",
        "a gradient of older parameters is thrown away: it is not among the k of a step",
        lambda arrivals, k: simulate(arrivals, k, late_counts=True),
    ),
    Theory(
        "gives late workers no new parameters",
        "whose gradient came too late gets the newest parameters at once, and its next gradient "
        "belongs to them",
        lambda arrivals, k: simulate(arrivals, k, late_keeps_its_own=True),
    ),
    Theory(
        "drops what it should measure",
        "late gradients have a staleness, too: they are thrown away because it is above 0",
        lambda arrivals, k: _map(arrivals, k, lambda staleness, version: (0, version)),
    ),
)
