"""Grade stale_gradients: staleness and version by arrival, from a log of what the server does."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.grade.grader import Case, Draw, Mistake, Questions, patch

Pairs = list[tuple[int, int]]
STEP = 0
"""In the log; a worker's number there says that it was sent the newest parameters."""


def cases(draw: Draw) -> list[Case]:
    """Workers alone, in turns, at random, with a straggler; servers that wait; fixed paces."""
    rng = draw.rng
    straggler = [1, 2] * 6 + [3] + [1, 2] * 3 + [3, 1]
    orders = {
        "one worker": [1] * 4,
        "3 workers that take turns": rng.sample((1, 2, 3), 3) * 3,
        "a fast worker and a slow one": [1] * rng.randrange(3, 6) + [2, 1, 1, 2],
        "2 workers and a straggler": straggler,
        "4 workers in any order": [rng.randint(1, 4) for _ in range(16)],
        "5 workers, one of them fast": [rng.choice((1, 1, 1, 2, 3, 4, 5)) for _ in range(20)],
    }
    return [
        *(Case(label, order, function="asynchronous") for label, order in orders.items()),
        *(
            Case(f"the first {k} of {n} workers", drawn(n, k, rng), k, function="first_k")
            for n, k in ((3, 2), (3, 3), (5, 2), (4, 1))
        ),
        *(
            Case(f"workers of {its} seconds", its, rng.randrange(12, 18), function="timetable")
            for its in (paces(n, rng) for n in (2, 3, 3, 4))
        ),
    ]


def drawn(n: int, k: int, rng: random.Random) -> list[int]:
    """Arrivals of workers that do not wait; the last worker is slow."""
    arrivals: list[int] = []
    while len(arrivals) < 16:
        waiting = replay(arrivals, k)[1]
        free = [worker for worker in range(1, n + 1) if worker not in waiting]
        arrivals.append(rng.choices(free, [1 if worker == n else 3 for worker in free])[0])
    return arrivals


def paces(n: int, rng: random.Random) -> dict[int, float]:
    """Seconds of each worker; no two gradients arrive at nearly the same time."""
    while True:
        seconds = {worker: round(rng.uniform(0.2, 1.6), 3) for worker in range(1, n + 1)}
        times = sorted(i * its for its in seconds.values() for i in range(1, 20))
        if all(b - a > 1e-3 for a, b in zip(times, times[1:])):
            return seconds


def replay(
    arrivals: Sequence[int],
    k: int,
    *,
    uses_late: bool = False,
    own_step_counts: bool = False,
    starts_at_first_arrival: bool = False,
    late_gets_nothing: bool = False,
    all_get_parameters: bool = False,
    last_gets_parameters: bool = False,
    steps: int = 1,
) -> tuple[Pairs, list[int]]:
    """(staleness, version) of each arrival, and who waits in the end. The options are mistakes."""
    log, waiting, answers = list(set(arrivals)), [], []
    for i, worker in enumerate(arrivals):
        if starts_at_first_arrival and worker not in arrivals[:i]:
            log.append(worker)
        sent_at = max(at for at, entry in enumerate(log) if entry == worker)
        staleness = log[sent_at:].count(STEP)
        if staleness == 0 or uses_late:
            waiting.append(worker)
        elif not late_gets_nothing:
            log.append(worker)
        if len(waiting) == k:
            sent = set(arrivals) if all_get_parameters else waiting
            sent = [worker] if last_gets_parameters else sent
            log += [*sent, *[STEP] * steps] if own_step_counts else [*[STEP] * steps, *sent]
            waiting = []
        answers.append((staleness, log.count(STEP)))
    return answers, waiting


def server(**mistakes: bool) -> Callable[..., Pairs]:
    """A formula: replay with mistakes, for asynchronous(arrivals) and first_k(arrivals, k)."""

    def formula(arrivals: list[int], k: int = 0) -> Pairs:
        return replay(arrivals, k or 1, **{"uses_late": k == 0, **mistakes})[0]

    return formula


def right(first: Any, second: int = 0) -> Pairs:
    """From the log."""
    return timed(first, second) if isinstance(first, dict) else server()(first, second)


def timed(seconds: dict[int, float], num_updates: int, start: int = 1) -> Pairs:
    """(worker, staleness) of gradients that arrive at start, start + 1, ... times the seconds."""
    numbers = range(start, start + num_updates)
    times = sorted((i * seconds[worker], worker) for worker in seconds for i in numbers)
    return of_order([worker for _, worker in times[:num_updates]])


def of_order(order: list[int]) -> Pairs:
    """(worker, staleness) with an asynchronous server."""
    return [(worker, staleness) for worker, (staleness, _) in zip(order, server()(order))]


def changed(change: Callable[[int, int], tuple[int, int]]) -> Callable[..., Pairs]:
    """A formula: the right answers, each changed."""
    return lambda *args: [change(*pair) for pair in server()(*args)]


def version_before(*args: Any) -> Pairs:
    """The right answers, each with the version of the one before it."""
    pairs = server()(*args)
    versions = [0, *(version for _, version in pairs)]
    return [(staleness, version) for (staleness, _), version in zip(pairs, versions)]


def workers_between(arrivals: list[int]) -> Pairs:
    """The number of different workers that arrived since a worker's last arrival."""
    answers = []
    for i, worker in enumerate(arrivals):
        last = max((at for at in range(i) if arrivals[at] == worker), default=-1)
        answers.append((len(set(arrivals[last + 1 : i])), i + 1))
    return answers


MISTAKES = [
    Mistake(
        "counts the worker's own last step",
        "A worker gets its parameters after the step with its own gradient, so that step is in "
        "them. Staleness counts the steps that come later.",
        hint=2,
        formula=server(own_step_counts=True),
        made_by=patch("held[worker] = version + 1", "held[worker] = version"),
    ),
    Mistake(
        "counts the step that the gradient makes",
        "Staleness is taken when a gradient arrives, before the server makes a step with it. A "
        "worker alone has staleness 0.",
        hint=3,
        formula=changed(lambda staleness, version: (staleness + 1, version)),
        made_by=patch(
            "(version - held[worker], version + 1)", "(version + 1 - held[worker], version + 1)"
        ),
    ),
    Mistake(
        "ignores steps before a worker's first gradient",
        "Every worker has version 0 at the beginning. If its first gradient arrives after five "
        "steps, its staleness is 5.",
        hint=3,
        formula=server(starts_at_first_arrival=True),
        made_by=patch(
            "    for version, worker in enumerate(arrivals):\n",
            "    held = {}\n    for version, worker in enumerate(arrivals):\n"
            "        held.setdefault(worker, version)\n",
        ),
    ),
    Mistake(
        "gives the version before the arrival",
        "The version in an answer is the one after the arrival, with the step if it made one.",
        hint=3,
        formula=version_before,
        made_by=patch("held[worker], version + 1)", "held[worker], version)"),
    ),
    Mistake(
        "counts workers instead of steps",
        "A fast worker may arrive several times in between, and the server makes a step each time. "
        "Count the steps.",
        hint=2,
        formula=workers_between,
        made_by=patch(
            "(version - held[worker], version + 1)",
            "(len(set(arrivals[held[worker]:version])), version + 1)",
        ),
    ),
    Mistake(
        "takes all workers for equally fast",
        "The staleness is n - 1 only where workers take turns. Here each has its own pace.",
        hint=1,
        formula=lambda arrivals: [(len(set(arrivals)) - 1, i + 1) for i in range(len(arrivals))],
        made_by=patch("(version - held[worker], version + 1)", "(len(held) - 1, version + 1)"),
    ),
    Mistake(
        "gives all workers new parameters after a step",
        "A worker gets parameters only after it has sent its gradient. The others still compute "
        "with the version that they have: that is why gradients become stale.",
        hint=2,
        formula=server(all_get_parameters=True),
        made_by=patch(
            "held.update(dict.fromkeys(waiting, version))",
            "held = dict.fromkeys(arrivals, version)",
        ),
    ),
    Mistake(
        "steps with every gradient",
        "That is the asynchronous server. This server waits until it has k gradients of its newest "
        "parameters.",
        hint=1,
        formula=lambda arrivals, k: server()(arrivals),
        function="first_k",
        made_by=patch(
            "version, held, updates = 0, dict.fromkeys(arrivals, 0), []",
            "return asynchronous(arrivals)\n    version, held, updates = 0, {}, []",
        ),
    ),
    Mistake(
        "counts gradients instead of steps",
        "k gradients make one step, with their mean. So the version grows by 1.",
        hint=3,
        formula=lambda arrivals, k: replay(arrivals, k, steps=k)[0],
        function="first_k",
        made_by=patch("version += 1", "version += k"),
    ),
    Mistake(
        "uses late gradients",
        "A gradient of staleness 1 or more is not among the k of a step, and its worker does not "
        "wait.",
        hint=2,
        formula=server(uses_late=True),
        function="first_k",
        made_by=patch(
            "            held[worker] = version  # late: the worker gets the newest parameters at "
            "once\n        else:\n            waiting",
            "            pass\n        waiting",
        ),
    ),
    Mistake(
        "gives late workers no new parameters",
        "A worker whose gradient is late gets the newest parameters at once. Its next gradient "
        "belongs to them.",
        hint=3,
        formula=server(late_gets_nothing=True),
        function="first_k",
        made_by=patch("held[worker] = version  # late", "pass  # late"),
    ),
    Mistake(
        "gives new parameters to one of the k workers",
        "All k workers of a step have waited for it, and all of them get the new parameters.",
        hint=3,
        formula=server(last_gets_parameters=True),
        function="first_k",
        made_by=patch("held.update(dict.fromkeys(waiting, version))", "held[worker] = version"),
    ),
    Mistake(
        "lets first gradients arrive at time 0",
        "All workers start at time 0. The first gradient of a worker arrives when it has computed "
        "for its seconds.",
        hint=3,
        formula=lambda *args: timed(*args, start=0),
        function="timetable",
        made_by=patch("range(1, num_updates + 1)", "range(num_updates)"),
    ),
    Mistake(
        "lets the workers take turns",
        "No worker waits for another one. The gradients of a worker arrive at 1, 2, 3, ... times "
        "its seconds.",
        hint=1,
        formula=lambda seconds, num: of_order(
            [sorted(seconds, key=seconds.__getitem__)[i % len(seconds)] for i in range(num)]
        ),
        function="timetable",
        made_by=patch(
            "[worker for _, worker in sorted(times)[:num_updates]]",
            "(sorted(seconds, key=seconds.get) * num_updates)[:num_updates]",
        ),
    ),
]

GRADER = Questions(
    name="stale_gradients",
    functions=("asynchronous", "first_k", "timetable"),
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.data_parallel",),
    shown="you know how stale each gradient is, for workers in any order and at any pace, and "
    "which gradients a server that waits for k of them does not use",
)
