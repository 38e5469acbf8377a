"""Grade checkpoint_interval: drawn jobs, with saves from seconds to a third of the MTBF."""

import itertools
from typing import Any

from labkit import calc
from labkit.grade import grader as g

FUNCTIONS = ("mtbf_s", "best_interval_s", "lost_share")


def cases(draw: g.Draw) -> list[g.Case]:
    """Return the same jobs for each function, with the calculator's answers; intervals near the
    best."""
    rng = draw.rng
    mtbfs, losses, bests = [], [], []
    # Idle seconds of a save, in times of the job's MTBF.
    for number, idle in enumerate((0.0001, 0.001, 0.004, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)):
        num_nodes, days = rng.choice((16, 128, 1024, 2048)), rng.randrange(60, 500)
        mtbf = days * 86400 / num_nodes
        blocking = (1.0, 0.05, 0.2, 0.5)[number % 4]
        job = {
            "num_nodes": num_nodes,
            "node_mtbf_days": days,
            "write_s": round(idle * mtbf / blocking, 2),
            "blocking": blocking,
            "detect_min": round(mtbf / 60 * rng.uniform(0.02, 0.1), 2),
            "restart_min": round(mtbf / 60 * rng.uniform(0.05, 0.2), 2),
        }
        blocked = job["write_s"] * blocking
        down = 60 * (job["detect_min"] + job["restart_min"]) + job["write_s"] - blocked
        best = float(calc.checkpoint_interval(blocked, mtbf, "daly"))
        interval = round(best * rng.choice((0.4, 0.8, 1.2, 2)), 1)
        loss = float(calc.lost_share(interval, blocked, mtbf, down, "daly"))
        label = f"{job}, interval_s={interval}"
        mtbfs.append(g.Case(f"{job}", job, function="mtbf_s", known=mtbf))
        losses.append(g.Case(label, job, interval, function="lost_share", known=loss))
        bests.append(g.Case(f"{job}", job, function="best_interval_s", known=best))
    # lost_share comes before best_interval_s, which may search with it.
    return mtbfs + losses + bests


def same(got: Any, right: float, case: g.Case) -> bool:
    """The interval to 1%: the loss hardly changes there."""
    tolerance = 0.01 if case.function == "best_interval_s" else 0.001
    return isinstance(got, int | float) and abs(got - right) <= tolerance * abs(right)


WRITE = 'write_s, mtbf = job["write_s"] * job["blocking"]'
DOWN = '60 * (job["detect_min"] + job["restart_min"])'
DALY = "young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_s"
ROOT = "math.sqrt(2 * write_s * mtbf)"
MISTAKES = [
    g.Mistake(
        "takes the mean time of one node for the job's",
        "Any node that fails stops the whole job, so with n nodes failures come n times as often.",
        g.patch(' * 86400 / job["num_nodes"]', " * 86400"),
    ),
    g.Mistake(
        "takes the whole write for the idle time",
        "While the rest of a save is written, training goes on. What costs is the idle time: "
        "write_s * blocking.",
        [
            g.patch(WRITE, 'write_s, mtbf = job["write_s"]'),
            g.patch('blocked = job["write_s"] * job["blocking"]', 'blocked = job["write_s"]'),
            g.patch("expm1((interval_s + blocked)", 'expm1((interval_s + job["write_s"])'),
        ],
    ),
    g.Mistake(
        "forgets the factor 2",
        "A failure comes in the middle of an interval on average, so T / 2 is lost: the least of "
        "W / T + T / (2 M) is at sqrt(2 W M).",
        g.patch(ROOT, "math.sqrt(write_s * mtbf)", DALY, "young"),
        hint=2,
    ),
    g.Mistake(
        "uses Young's formula where the write is not small",
        "sqrt(2 W M) is the least of a first order, for W and T much below M. With W = M / 10 it "
        "is 17% too long: search for the least loss, or use Daly's formula.",
        [g.patch(DALY, "young"), g.patch(DALY, "young - write_s")],
        hint=2,
    ),
    g.Mistake(
        "counts the write as work",
        "The interval is seconds of work, from the end of a save to the begin of the next one. "
        "From save to save it is longer by the idle time.",
        g.patch("+ ratio / 9) - write_s", "+ ratio / 9)"),
        hint=2,
    ),
    g.Mistake(
        "has the restart in the interval",
        "Each failure costs the restart, however often you save. It multiplies the time of all "
        "turns, and moves no optimum.",
        [
            g.patch(f"{WRITE}, mtbf_s(job)", f"{WRITE}, mtbf_s(job) + {DOWN}", DALY, "young"),
            g.patch(WRITE, f"{WRITE} + {DOWN}"),
        ],
        hint=2,
    ),
    g.Mistake(
        "puts the wrong part of the write into R",
        "W, the idle time, is in the turn already. R has the rest, write_s * (1 - blocking): a "
        "save counts when it is complete, and a failure before that loses this work, too.",
        [g.patch(" + beside", ""), g.patch(" + beside", ' + job["write_s"]')],
        hint=2,
    ),
    g.Mistake(
        "loses time to first order only",
        "W / T + (T / 2 + R) / M is for times much below M. It counts failures in time that "
        "is lost already, and passes 1. The contract has the exact mean of a turn.",
        g.patches(
            "1 - interval_s / turn",
            *(
                form.format(f"blocked / ({turn}) + (({half}) / 2 + down) / mtbf")
                for turn, half in itertools.product(
                    ("interval_s", "interval_s + blocked"), repeat=2
                )
                for form in ("{}", "min(1.0, {})")
            ),
        ),
        hint=2,
    ),
]

GRADER = g.Questions(
    functions=FUNCTIONS,
    cases=cases,
    right=lambda *_, known: known,
    mistakes=MISTAKES,
    same=same,
    closed=("labkit.calc",),
    shown="your interval loses the least time, also where a save takes a third of the time between "
    "failures, and you say how much",
)
