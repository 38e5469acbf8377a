"""Orders of arrivals, drawn for each check, and what the parameter server made of them."""

import random
from dataclasses import dataclass

from labkit.data_parallel.parameter_server import Asynchronous, Synchronous
from labkit.grade.answers import Question
from labkit.grade.graders.stale_replay import Update, replay

_CLEARLY_APART_S = 1e-3


@dataclass(frozen=True)
class Known:
    """An order of arrivals, and what the server wrote down."""

    arrivals: list[int]
    updates: list[Update]
    k: int = 0
    """0: asynchronous."""


def draw(rng: random.Random) -> list[Question[Known]]:
    """All that is asked, the plainest first of each kind."""
    return [
        *[_asynchronous(arrivals, label) for arrivals, label in _orders(rng)],
        *[_first_k(n, k, rng) for n, k in ((3, 2), (3, 3), (5, 2), (4, 1))],
        *[_timetable(seconds, rng) for seconds in _paces(rng)],
    ]


def arrivals_of(seconds: dict[int, float], num_updates: int) -> list[int]:
    """Who comes when: the worker with the earliest time, each time."""
    at, arrivals = dict(seconds), []
    for _ in range(num_updates):
        worker = min(at, key=lambda each: at[each])
        arrivals.append(worker)
        at[worker] += seconds[worker]
    return arrivals


def _asynchronous(arrivals: list[int], label: str) -> Question[Known]:
    known = Known(arrivals, replay(arrivals, Asynchronous()))
    return Question("asynchronous", (arrivals,), label, known)


def _orders(rng: random.Random) -> list[tuple[list[int], str]]:
    turns = rng.sample((1, 2, 3), 3)
    slow = rng.randrange(6, 10)
    straggler = [1, 2] * slow
    straggler.insert(slow, 3)
    fast_first = [1] * rng.randrange(3, 6) + [2, 1, 1, 2]
    return [
        ([1] * 4, "one worker"),
        (turns * 3, "3 workers that take turns"),
        (fast_first, "a fast worker and a slow one"),
        ([*straggler, 3, 1], "2 workers, and a straggler"),
        ([rng.randint(1, 4) for _ in range(16)], "4 workers in any order"),
        ([rng.choice((1, 1, 1, 2, 3, 4, 5)) for _ in range(20)], "5 workers, one of them fast"),
    ]


def _first_k(n: int, k: int, rng: random.Random) -> Question[Known]:
    """Random arrivals of workers that do not wait, up to a step, with late ones among them."""
    arrivals = _draw_first_k(n, k, rng)
    known = Known(arrivals, replay(arrivals, Synchronous(k)), k)
    return Question("first_k", (arrivals, k), f"the first {k} of {n} workers", known)


def _draw_first_k(n: int, k: int, rng: random.Random) -> list[int]:
    held, version = dict.fromkeys(range(1, n + 1), 0), 0
    waiting: list[int] = []
    arrivals: list[int] = []
    while len(arrivals) < 14 or waiting or (k < n and len(set(arrivals)) < n):
        # The last worker is slow: it is late more often than once.
        weights = {w: 1 if w == n else 3 for w in held if w not in waiting}
        worker = rng.choices(list(weights), list(weights.values()))[0]
        arrivals.append(worker)
        if held[worker] < version:
            held[worker] = version
            continue
        waiting.append(worker)
        if len(waiting) == k:
            version += 1
            held.update(dict.fromkeys(waiting, version))
            waiting.clear()
    return arrivals


def _paces(rng: random.Random) -> list[dict[int, float]]:
    """Seconds of each worker; nobody arrives at nearly the same time as another."""
    kinds = [(2, 0.8, 1.6), (3, 0.9, 1.1), (3, 0.2, 2.0), (4, 0.1, 1.0)]
    paces = []
    for n, least, most in kinds:
        while True:
            pace = {w: round(rng.uniform(least, most), 3) for w in range(1, n + 1)}
            if _are_apart(pace):
                paces.append(pace)
                break
    return paces


def _are_apart(pace: dict[int, float]) -> bool:
    times = sorted(i * its for its in pace.values() for i in range(1, 40))
    return all(b - a > _CLEARLY_APART_S for a, b in zip(times, times[1:], strict=False)) and (
        max(pace.values()) < 39 * min(pace.values())
    )


def _timetable(seconds: dict[int, float], rng: random.Random) -> Question[Known]:
    num_updates = rng.randrange(12, 18)
    arrivals = arrivals_of(seconds, num_updates)
    known = Known(arrivals, replay(arrivals, Asynchronous()))
    return Question("timetable", (seconds, num_updates), f"workers of {seconds} seconds", known)


def rounds_of(seconds: dict[int, float], num_updates: int) -> list[int]:
    """Who comes when, if all wait for the slowest: the fastest first, in each round."""
    order = sorted(seconds, key=lambda each: seconds[each])
    return [order[i % len(order)] for i in range(num_updates)]
