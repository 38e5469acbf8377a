"""What the search leaves out, it may leave out: by its bound, and by its memory of failures."""

import math
import random

import pytest

from labkit.pipeline import Costs, Problem, Schedule, least_makespan, simulate
from labkit.pipeline.partial import Partial
from labkit.pipeline.search_bound import Bound

# Partial schedules that differ in nothing but when a message arrives, and not in vain.
UNDER_WAY = Problem(
    (0, 1, 0, 1),
    2,
    Costs(
        forward=[3, 1, 3, 2],
        input_gradient=[2, 3, 3, 3],
        weight_gradient=[2, 4, 2, 4],
        send=[0, 1, 7],
    ),
    is_split=True,
)
PLACEMENTS = [(0, 1), (0, 1, 2), (0, 1, 0), (0, 1, 1, 0)]


def any_problem(draw: random.Random) -> Problem:
    placement = draw.choice(PLACEMENTS)

    def some(count, choices):
        return [draw.choice(choices) for _ in range(count)]

    costs = Costs(
        forward=some(len(placement), [1, 1, 2, 5]),
        input_gradient=some(len(placement), [1, 1, 2, 5]),
        weight_gradient=some(len(placement), [1, 1, 2, 5]),
        send=some(len(placement) - 1, [0, 1, 4]),
    )
    num_microbatches = 2 if len(placement) > 2 else draw.choice([2, 3])
    return Problem(placement, num_microbatches, costs, is_split=draw.random() < 0.6)


def walk(problem: Problem, draw: random.Random) -> tuple[list[int], int | None]:
    """Decisions at random: the bounds on the way, and the makespan, or None if it is blocked."""
    partial = Partial(problem, [math.inf] * problem.num_ranks)
    bound, bounds = Bound(partial), []
    while any(partial.left):
        decision = partial.next_decision()
        if decision is None:
            return bounds, None
        bounds.append(bound(decision.now))
        candidates = list(partial.candidates(decision.rank))
        waited = partial.is_waiting[decision.rank]
        ready = [
            e for e in candidates if (e[2] == decision.now if waited else e[2] <= decision.now)
        ]
        if ready and (len(ready) == len(candidates) or draw.random() < 0.8):
            kind, stage, _ = draw.choice(ready)
            partial.begin(decision, kind, stage)
        else:
            partial.wait(decision)
    rows = tuple(map(tuple, partial.rows))
    schedule = Schedule("walked", rows, problem.num_stages, problem.num_microbatches)
    makespan = max(partial.free)
    assert simulate(schedule, problem.costs).makespan == makespan, problem
    return bounds, makespan


def test_no_completion_is_shorter_than_the_bound_says():
    draw, num_completed, num_tight = random.Random(0), 0, 0
    for _ in range(50):
        problem = any_problem(draw)
        for _ in range(30):
            bounds, makespan = walk(problem, draw)
            if makespan is not None:
                num_completed += 1
                num_tight += bounds[len(bounds) // 2] == makespan
                assert max(bounds) <= makespan, problem
    assert num_completed > 700 and num_tight > 70


def test_what_failed_once_would_fail_again(monkeypatch):
    """Without the memory of what failed, the search finds the same makespan, only later."""
    draw = random.Random(1)
    problems = [any_problem(draw) for _ in range(40)]
    limits = [max(problem.least_memory) + draw.choice([0, 0, 1]) for problem in problems]

    problems.append(UNDER_WAY)
    limits.append(3)

    def makespans():
        return [
            simulate(least_makespan(problem, limit), problem.costs).makespan
            for problem, limit in zip(problems, limits)
        ]

    found = makespans()
    monkeypatch.setattr(Partial, "key", lambda self, now: (object(),))
    assert makespans() == found


@pytest.mark.parametrize("seed", range(3))
def test_what_was_decided_can_be_taken_back(seed):
    draw = random.Random(seed)
    problem = any_problem(draw)
    partial = Partial(problem, [math.inf] * problem.num_ranks)

    def state():
        return repr(sorted((k, v) for k, v in vars(partial).items() if k not in ("problem",)))

    seen, undo = [], []
    while any(partial.left) and (decision := partial.next_decision()):
        seen.append(state())
        ready = [e for e in partial.candidates(decision.rank) if e[2] <= decision.now]
        if ready:
            undo.append(partial.begin(decision, *ready[0][:2]))
        else:
            undo.append(partial.wait(decision))
    assert len(seen) > 6
    while undo:
        partial.restore(undo.pop())
        assert state() == seen.pop()
