"""Grade checkpoint_interval: drawn jobs, with saves from seconds to a third of the MTBF."""

import math
import types
from collections.abc import Callable, Mapping
from typing import Any

from labkit import calc
from labkit.grade.grader import Case, Draw, Mistake, Questions, patch

Job = Mapping[str, float]
FUNCTIONS = ("mtbf_s", "best_interval_s", "lost_share")
# lost_share comes before best_interval_s, which may search with it.
# Idle seconds of a save, in times of the job's MTBF.
WRITES = (0.0001, 0.001, 0.004, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
BLOCKING = (1.0, 0.05, 0.2, 0.5)


def cases(draw: Draw) -> list[Case]:
    """The same jobs for each function; intervals around the best one."""
    jobs = [a_job(draw, write, BLOCKING[n % len(BLOCKING)]) for n, write in enumerate(WRITES)]
    mtbfs, bests = (
        [Case(f"{job}", job, function=name, known=name) for job in jobs] for name in FUNCTIONS[:2]
    )
    losses = []
    for job in jobs:
        best_s = right(job, known="best_interval_s")
        interval_s = round(best_s * draw.rng.choice((0.4, 0.8, 1.2, 2)), 1)
        label = f"{job}, interval_s={interval_s}"
        losses.append(Case(label, job, interval_s, function="lost_share", known="lost_share"))
    return [*mtbfs, *losses, *bests]


def a_job(draw: Draw, write: float, blocking: float) -> Job:
    """A job whose saves block for `write` times its MTBF."""
    rng = draw.rng
    num_nodes, days = rng.choice((16, 128, 1024, 2048)), rng.randrange(60, 500)
    mtbf = days * 86400 / num_nodes
    return {
        "num_nodes": num_nodes,
        "node_mtbf_days": days,
        "write_s": round(write * mtbf / blocking, 2),
        "blocking": blocking,
        "detect_min": round(mtbf / 60 * rng.uniform(0.02, 0.1), 2),
        "restart_min": round(mtbf / 60 * rng.uniform(0.05, 0.2), 2),
    }


def right(job: Job, interval_s: float = 0.0, *, known: str) -> float:
    """The answer of the function `known`, by the calculator."""
    mtbf, blocked = RIGHT["mtbf"](job), RIGHT["blocked"](job)
    if known == "mtbf_s":
        return mtbf
    if known == "best_interval_s":
        return float(calc.checkpoint_interval(blocked, mtbf, "daly"))
    down = RIGHT["down"](job) + RIGHT["beside"](job)
    return float(calc.lost_share(interval_s, blocked, mtbf, down, "daly"))


RIGHT: dict[str, Callable[[Job], float]] = {
    "mtbf": lambda job: job["node_mtbf_days"] * 86400 / job["num_nodes"],
    "blocked": lambda job: job["write_s"] * job["blocking"],
    "down": lambda job: 60 * (job["detect_min"] + job["restart_min"]),
    "beside": lambda job: job["write_s"] * (1 - job["blocking"]),
}


def lost(**others: Callable[[Job], float]) -> Callable[[Job, float], float]:
    """The formula of the loss with RIGHT, but for `others`."""
    its = types.SimpleNamespace(**{**RIGHT, **others})

    def formula(job: Job, interval_s: float) -> float:
        mtbf, down = its.mtbf(job), its.down(job) + its.beside(job)
        turn = mtbf * math.exp(down / mtbf) * math.expm1((interval_s + its.blocked(job)) / mtbf)
        return 1 - interval_s / turn

    return formula


def best(
    write: Callable[[Job], float] = RIGHT["blocked"],
    mtbf: Callable[[Job], float] = RIGHT["mtbf"],
    factor: float = 1.0,
) -> list[Callable[[Job], float]]:
    """Formulas of the interval: Young's, Daly's and the exact one, with this mistake."""

    def formula(method: str) -> Callable[[Job], float]:
        return lambda job: factor * float(calc.checkpoint_interval(write(job), mtbf(job), method))

    exact = [lambda job: factor * exact_interval(write(job) / mtbf(job)) * mtbf(job)]
    return [formula(method) for method in calc.checkpoints.METHODS] + exact


def exact_interval(write: float) -> float:
    """The best interval in times of the MTBF: (1 - x) e^x = e^-write, by halving."""
    low, high = 0.0, 1.0
    for _ in range(50):
        x = (low + high) / 2
        low, high = (x, high) if (1 - x) * math.exp(x) > math.exp(-write) else (low, x)
    return low


def of_one_node(job: Job, *_: Any) -> float:
    """Seconds between the failures of a node."""
    return job["node_mtbf_days"] * 86400


WHOLE_WRITE = best(write=lambda job: job["write_s"])
ONE_NODE = best(mtbf=of_one_node)
NO_FACTOR_2 = best(factor=1 / math.sqrt(2))


def first_order(job: Job, interval_s: float, base: str = "interval") -> float:
    """Young's loss, with the idle time as a share of the work or of the turn."""
    mtbf, down = RIGHT["mtbf"](job), RIGHT["down"](job) + RIGHT["beside"](job)
    blocked = RIGHT["blocked"](job)
    turn = interval_s + (blocked if base == "turn" else 0)
    return blocked / turn + (interval_s / 2 + down) / mtbf


def same(got: Any, right: float, case: Case) -> bool:
    """The interval to 1%: the loss hardly changes there."""
    tolerance = 0.01 if case.function == "best_interval_s" else 0.001
    return isinstance(got, int | float) and abs(got - right) <= tolerance * abs(right)


MTBF, RETURNED = ' * 86400 / job["num_nodes"]', "+ ratio / 9) - write_s"
DOWN = '60 * (job["detect_min"] + job["restart_min"])'
MISTAKES = [
    Mistake(
        "takes the mean time of one node for the job's",
        "Any node that fails stops the whole job, so with n nodes failures come n times as often.",
        formula=[of_one_node, *ONE_NODE, lost(mtbf=of_one_node)],
        made_by=patch(MTBF, " * 86400"),
    ),
    Mistake(
        "mixes units",
        "All answers in seconds: a day has 86,400, and a minute of detection or restart 60.",
        hint=3,
        formula=[
            lambda job, *_, factor=factor: job["node_mtbf_days"] * factor / job["num_nodes"]
            for factor in (1, 24, 1440, 3600)
        ]
        + [lost(down=lambda job: job["detect_min"] + job["restart_min"])],
        made_by=patch("86400", "3600"),
    ),
    Mistake(
        "takes the whole write for the idle time",
        "While the rest of a save is written, training goes on. What costs is the idle time: "
        "write_s * blocking.",
        formula=[
            *WHOLE_WRITE,
            lost(blocked=lambda job: job["write_s"]),
            lost(blocked=lambda job: job["write_s"], beside=lambda job: 0),
            lost(blocked=RIGHT["beside"], beside=RIGHT["blocked"]),
        ],
        made_by=patch(
            'write_s, mtbf = job["write_s"] * job["blocking"]', 'write_s, mtbf = job["write_s"]'
        ),
    ),
    Mistake(
        "forgets the factor 2",
        "A failure comes in the middle of an interval on average, so T / 2 is lost: the least of "
        "W / T + T / (2 M) is at sqrt(2 W M).",
        hint=2,
        formula=NO_FACTOR_2
        + best(write=lambda job: RIGHT["blocked"](job) / 2)
        + [
            lambda job: (best()[1](job) + (1 - math.sqrt(2)) * RIGHT["blocked"](job)) / math.sqrt(2)
        ],
        function="best_interval_s",
        made_by=patch("math.sqrt(2 * write_s * mtbf)", "math.sqrt(write_s * mtbf)"),
    ),
    Mistake(
        "uses Young's formula where the write is not small",
        "sqrt(2 W M) is the least of a first order, for W and T much below M. With W = M / 10 it "
        "is 17% too long: search for the least loss, or use Daly's formula.",
        hint=2,
        formula=[best()[0], lambda job: best()[0](job) - RIGHT["blocked"](job)],
        function="best_interval_s",
        made_by=patch(f"young * (1 + math.sqrt(ratio) / 3 {RETURNED}", "young"),
    ),
    Mistake(
        "counts the write as work",
        "The interval is seconds of work, from the end of a save to the begin of the next one. "
        "From save to save it is longer by the idle time.",
        hint=2,
        formula=lambda job: best()[1](job) + RIGHT["blocked"](job),
        function="best_interval_s",
        made_by=patch(RETURNED, "+ ratio / 9)"),
    ),
    Mistake(
        "has the restart in the interval",
        "Each failure costs the restart, however often you save. It multiplies the time of all "
        "turns, and moves no optimum.",
        hint=2,
        formula=best(write=lambda job: RIGHT["blocked"](job) + RIGHT["down"](job))
        + best(mtbf=lambda job: RIGHT["mtbf"](job) + RIGHT["down"](job))
        + best(mtbf=lambda job: RIGHT["mtbf"](job) - RIGHT["down"](job)),
        function="best_interval_s",
        made_by=patch('job["blocking"], mtbf_s(job)', f'job["blocking"], mtbf_s(job) + {DOWN}'),
    ),
    Mistake(
        "leaves out the detection or the restart",
        "Until a failure is noticed nothing is trained, and neither is until the first step.",
        hint=3,
        formula=[
            lost(down=lambda job: 60 * job["restart_min"]),
            lost(down=lambda job: 60 * job["detect_min"]),
            lost(down=lambda job: 0),
        ],
        function="lost_share",
        made_by=patch(DOWN, '60 * job["restart_min"]'),
    ),
    Mistake(
        "lets a save count from its begin",
        "A save counts when it is complete. A failure before that goes back one save further: "
        "write_s * (1 - blocking) seconds of work more.",
        hint=2,
        formula=lost(beside=lambda job: 0),
        function="lost_share",
        made_by=patch(" + beside", ""),
    ),
    Mistake(
        "has the idle time in R",
        "The turn has W already. R has only the rest of the write, in which training goes on: "
        "write_s * (1 - blocking).",
        hint=2,
        formula=lost(beside=lambda job: job["write_s"]),
        function="lost_share",
        made_by=patch('beside = job["write_s"] - blocked', 'beside = job["write_s"]'),
    ),
    Mistake(
        "loses time to first order only",
        "W / T + (T / 2 + R) / M is for times much below M. It counts failures in time that "
        "is lost already, and passes 1. The contract has the exact mean of a turn.",
        formula=[first_order, lambda job, interval_s: first_order(job, interval_s, "turn")],
        function="lost_share",
        made_by=patch(
            "return 1 - interval_s / turn",
            "return blocked / interval_s + (interval_s / 2 + down) / mtbf",
        ),
    ),
]

GRADER = Questions(
    name="checkpoint_interval",
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    same=same,
    closed=("labkit.calc",),
    shown="your interval loses the least time, also where a save takes a third of the time between "
    "failures, and you say how much",
)
