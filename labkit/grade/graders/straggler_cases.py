"""Stuck jobs, run for real: what a cluster's tools would show of them, and what is the matter."""

import dataclasses
import functools
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from labkit.comm.operation import Operation, Timeline
from labkit.grade.exchange import new_exchange
from labkit.grade.graders.straggler_jobs import LATEST_PAUSE_S, STORIES, Plan
from labkit.grade.graders.straggler_photo import PHOTO, photographed, read_photo
from labkit.launch import launch
from labkit.launch.diagnosis.waiting import View, circle, waits
from labkit.launch.errors import RunError
from labkit.launch.ranks.stage import Stage

STRAGGLER, DEADLOCK = "straggler", "deadlock"
_STRAGGLERS = ("compute", "input", "pair", "ahead")
_CULPRIT_NOT_BLOCKED = ("compute", "pair", "left", "silent")
_NUM_RANKS = 5
_AT_ONCE = 3
_PHOTO_AFTER_S = 3 * LATEST_PAUSE_S + 0.15
_MOST_RUNS = 4
_TIMEOUT_S = 30.0

Shown = list[dict[str, Any]]
"""By rank, what tools show: plain data, described in the exercise."""


@dataclass(frozen=True, slots=True)
class Case:
    """One job."""

    story: str
    shown: Shown
    is_deadlock: bool
    ranks: frozenset[int]
    """Those to look at; any of them is right."""
    has_busy_core: bool = False
    """As planned: what is measured says it, too, but two busy cores come in any order."""

    @property
    def kind(self) -> str:
        """`straggler` or `deadlock`."""
        return DEADLOCK if self.is_deadlock else STRAGGLER


def draw(rng: random.Random) -> list[Plan]:
    """A plan for each story, in an order of their own."""
    while True:
        plans = [_plan(story, rng) for story in STORIES]
        # Rank 0 is not blocked in all of them: to blame it, or the first that is blocked, differs.
        if any(plan.order[0] == 0 for plan in plans if plan.story in _CULPRIT_NOT_BLOCKED):
            rng.shuffle(plans)
            return plans


def _plan(story: str, rng: random.Random) -> Plan:
    order = rng.sample(range(_NUM_RANKS), _NUM_RANKS)
    a, b, c, d, e = order
    # Whoever starts at one end of the ranks starts outside of a circle, in one of these. And the
    # first, or the last, that is blocked and waited for, only leads into the circle.
    if story == "sends":
        e, a, b, c, d = 0, *rng.sample(range(1, _NUM_RANKS - 1), 3), _NUM_RANKS - 1
    if story == "aside":
        d, (a, b, c, e) = 0, rng.sample(range(1, _NUM_RANKS), 4)
    if story == "crossed":
        e, (a, b, c, d) = _NUM_RANKS - 1, rng.sample(range(_NUM_RANKS - 1), 4)
    if story == "input":
        # The first rank that waits is the last of the chain: it leads to the culprit over others.
        d, c, b = sorted((b, c, d))
    if story in ("pair", "ahead"):
        # Who takes b for missing, comes to it before a; and so does who takes c for missing.
        b, c, a = sorted((a, b, c))
    if story == "ahead" and d == 0:
        d, e = e, d  # otherwise two ways to read the waits come to the same rank
    busy = {"crossed": (rng.randrange(_NUM_RANKS),), "left": (rng.choice((b, c, d, e)),)}
    return Plan(
        story,
        (a, b, c, d, e),
        num_steps=rng.randrange(1, 4),
        num_pair_steps=rng.randrange(5, 9),
        pauses_s=tuple(rng.uniform(0, LATEST_PAUSE_S) for _ in range(_NUM_RANKS)),
        busy=busy.get(story, ()),
    )


def run_all(plans: Sequence[Plan]) -> list[Case]:
    """Every job, some at a time."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        return list(pool.map(run_plan, plans))
    finally:
        # On Stop: those under way end by themselves, a second later, and nobody waits for them.
        pool.shutdown(wait=False, cancel_futures=True)


def run_plan(plan: Plan) -> Case:
    """One job. Raises RuntimeError where it never shows what it should: a machine at its limits."""
    after_s = _PHOTO_AFTER_S
    for _ in range(_MOST_RUNS):
        case = _run_once(plan, after_s)
        if case is not None and _is_as_planned(case, plan):
            return case
        after_s *= 2  # some rank was not where it gets stuck yet
    raise RuntimeError(
        f"{_MOST_RUNS} runs of a job ({plan.story}) do not show what they should; is this machine "
        "very busy? Try again"
    )


def _is_as_planned(case: Case, plan: Plan) -> bool:
    a, b, c, *_ = plan.order
    ranks = {"sends": {a, b, c}, "aside": {a, b}, "crossed": {a, b}}.get(plan.story, {a})
    return case.ranks == ranks and case.is_deadlock == (plan.story not in _STRAGGLERS)


def _run_once(plan: Plan, after_s: float) -> Case | None:
    """The job as the photos and the journals show it; None where a rank is not in the picture."""
    with new_exchange() as exchange:
        try:
            launch(
                photographed,
                len(plan.order),
                [(plan, exchange.folder, after_s)],
                timeout=_TIMEOUT_S,
                device="cpu",
                echo=False,
                ends_deadlocks=False,  # a late photo of one would find nobody there
            )
        except RunError as error:  # the end of the job is that its ranks leave
            timelines = error.timeline
        photos = [read_photo(exchange.folder, rank) for rank in range(len(plan.order))]
    views, shown = [], []
    for rank, (photo, timeline) in enumerate(zip(photos, timelines, strict=True)):
        regions = [region for region in timeline.regions if region.name == PHOTO]
        if photo is None or not regions:
            return None
        operations = _until(timeline, regions[0].start_s)
        views.append(View(Stage.RETURNED if photo["returned"] else Stage.RUNNING, operations))
        shown.append(_shown(rank, photo, views[-1], regions[0].start_s))
    return _judged(plan, shown, views)


def _until(timeline: Timeline, now_s: float) -> list[Operation]:
    """The journal as it was at a moment."""
    return [
        operation
        if operation.done_s is not None and operation.done_s <= now_s
        else dataclasses.replace(operation, done_s=None)
        for operation in timeline.operations
        if operation.posted_s <= now_s
    ]


def _judged(plan: Plan, shown: Shown, views: Sequence[View]) -> Case | None:
    """What the wait-for graph says."""
    found = waits(views)
    case = functools.partial(Case, plan.story, shown, has_busy_core=plan.has_busy_core)
    if ring := circle(found):
        return case(is_deadlock=True, ranks=frozenset(wait.rank for wait in ring))
    ends = {rank for wait in found.values() for rank in wait.missing if rank not in found}
    gone = frozenset(rank for rank in ends if views[rank].stage.is_over)
    if not ends:
        return None
    return case(is_deadlock=bool(gone), ranks=gone or frozenset(ends))


def _shown(rank: int, photo: dict[str, object], view: View, now_s: float) -> dict[str, Any]:
    last, blocked = view.operations[-1], view.waits_in
    posted: dict[str, int] = {}
    for operation in view.operations:
        if operation.is_collective:
            posted[operation.group_name] = operation.sequence
    since_s = last.posted_s if last.done_s is None else last.done_s
    state = "returned" if photo["returned"] else "running" if blocked is None else "blocked"
    return {
        "rank": rank,
        "state": state,
        "operation": last.kind,
        "peer": last.peer,
        "group": last.group_name,
        "members": list(last.group),
        "number": last.sequence,
        "posted": posted,
        "seconds": round(now_s - since_s, 3),
        "cpu": photo["cpu"],
        "stack": photo["stack"],
    }
