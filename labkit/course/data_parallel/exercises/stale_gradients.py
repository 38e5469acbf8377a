"""Grade stale_gradients: staleness and version by arrival, from a log of what the server does."""

import random
from collections.abc import Sequence
from typing import Any

from labkit.grade import grader as g

STEP = 0
"""In the log; a worker's number there says that it was sent the newest parameters."""


def cases(draw: g.Draw) -> list[g.Case]:
    """Workers alone, in turns, at random, with a straggler; servers that wait; fixed paces."""
    rng = draw.rng
    orders = {
        "one worker": [1] * 4,
        "3 workers that take turns": rng.sample((1, 2, 3), 3) * 3,
        "a fast worker and a slow one": [1] * rng.randrange(3, 6) + [2, 1, 1, 2],
        "2 workers and a straggler": [1, 2] * 6 + [3] + [1, 2] * 3 + [3, 1],
        "4 workers in any order": [rng.randint(1, 4) for _ in range(16)],
        "5 workers, one of them fast": [rng.choice((1, 1, 1, 2, 3, 4, 5)) for _ in range(20)],
    }
    listed = [g.Case(label, order, function="asynchronous") for label, order in orders.items()]
    for n, k in ((3, 2), (3, 3), (5, 2), (4, 1)):
        label = f"the first {k} of {n} workers"
        listed.append(g.Case(label, drawn(n, k, rng), k, function="first_k"))
    for n in (2, 3, 3, 4):
        # No multiples of these up to the 17th are the same.
        hundredths = rng.sample((23, 29, 37, 53, 71, 89, 113, 151), n)
        seconds = {worker: its / 100 for worker, its in enumerate(hundredths, start=1)}
        label = f"workers of {seconds} seconds"
        listed.append(g.Case(label, seconds, rng.randrange(12, 18), function="timetable"))
    return listed


def drawn(n: int, k: int, rng: random.Random) -> list[int]:
    """Arrivals of workers that do not wait; the last worker is slow."""
    arrivals: list[int] = []
    while len(arrivals) < 16:
        waiting = replay(arrivals, k)[1]
        free = [worker for worker in range(1, n + 1) if worker not in waiting]
        arrivals.append(rng.choices(free, [1 if worker == n else 3 for worker in free])[0])
    return arrivals


def replay(arrivals: Sequence[int], k: int = 0) -> tuple[list[tuple[int, int]], list[int]]:
    """(staleness, version) of each arrival, and the workers that wait; k = 0: asynchronous."""
    log, waiting, answers = list(set(arrivals)), [], []
    for worker in arrivals:
        sent_at = max(at for at, entry in enumerate(log) if entry == worker)
        staleness = log[sent_at:].count(STEP)
        if staleness and k:
            log.append(worker)
        else:
            waiting.append(worker)
        if len(waiting) == max(k, 1):
            log += [STEP, *waiting]
            waiting = []
        answers.append((staleness, log.count(STEP)))
    return answers, waiting


def right(first: Any, second: int = 0) -> list[tuple[int, int]]:
    """From the log; a timetable from the order of all arrivals."""
    if not isinstance(first, dict):
        return replay(first, second)[0]
    times = sorted((i * its, worker) for worker, its in first.items() for i in range(1, second + 1))
    order = [worker for _, worker in times[:second]]
    return [(worker, staleness) for worker, (staleness, _) in zip(order, replay(order)[0])]


NEW, STALENESS = "held[worker] = version + 1", "(version - held[worker], version + 1)"
STALENESS_K = "staleness = version - held[worker]"
NEW_K = "            held.update(dict.fromkeys(waiting, version))\n"
MISTAKES = [
    g.Mistake(
        "counts a step of the worker's own",
        "A worker gets its parameters after the step with its own gradient, so that step is in "
        "them. Its next gradient makes a step only after it has arrived. Staleness counts the "
        "steps in between; for a worker alone it is 0.",
        [
            g.patch(NEW, "held[worker] = version"),
            g.patch(STALENESS, "(version + 1 - held[worker], version + 1)"),
        ],
        hint=2,
    ),
    g.Mistake(
        "ignores steps before a worker's first gradient",
        "Every worker has version 0 at the beginning. If its first gradient arrives after five "
        "steps, its staleness is 5.",
        [
            g.patch(STALENESS, "(version - (held[worker] or version), version + 1)"),
            g.patch(STALENESS_K, "staleness = version - (held[worker] or version)"),
        ],
        hint=3,
    ),
    g.Mistake(
        "gives all workers new parameters after a step",
        "A worker gets parameters only after it has sent its gradient. The others still compute "
        "with the version that they have: that is why gradients become stale.",
        [
            g.patch(NEW, "held = dict.fromkeys(arrivals, version + 1)"),
            g.patch(NEW_K, "            held = dict.fromkeys(arrivals, version)\n"),
        ],
        hint=2,
    ),
    g.Mistake(
        "counts gradients instead of steps",
        "This server waits for k gradients of its newest parameters, and makes one step with their "
        "mean. So the version grows by 1 with every k of them.",
        g.patch("waiting: list[int] = []", "return asynchronous(arrivals)"),
        hint=3,
    ),
    g.Mistake(
        "uses late gradients",
        "A gradient of staleness 1 or more is not among the k of a step, and its worker does not "
        "wait.",
        g.patch("if staleness:", "if False:"),
        hint=2,
    ),
    g.Mistake(
        "leaves a worker without new parameters",
        "All k workers of a step get the new parameters, and a late worker gets the newest ones at "
        "once. Its next gradient belongs to them.",
        [
            g.patch("held[worker] = version  # late", "pass  # late"),
            g.patch(NEW_K, "            held[worker] = version\n"),
        ],
        hint=3,
    ),
    g.Mistake(
        "lets gradients arrive at other times",
        "All workers start at time 0, and none waits for another one. The gradients of a worker "
        "arrive at 1, 2, 3, ... times its seconds, so a fast worker delivers more than others.",
        g.patches(
            "range(1, num_updates + 1)",
            "range(num_updates)",
            "range(1, 1 - num_updates // -len(seconds))",
        ),
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=("asynchronous", "first_k", "timetable"),
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.data_parallel",),
    shown="you know how stale each gradient is, for workers in any order and at any pace, and "
    "which gradients a server that waits for k of them does not use",
)
