"""Grade gpipe_schedule: a valid step, all forwards first, and the bubble of (p - 1)/m."""

from labkit.grade.graded_schedules import Cost, Rules, drawn_pipelines, forwards_first, microbatches
from labkit.grade.grader import Mistake, Observed, Outcome, patch, program


def time(cost: Cost, p: int, m: int) -> float:
    """m microbatches, and p - 1 more to fill and to drain the pipeline."""
    return (m + p - 1) * sum(cost[:3])


RULES = Rules(time=time, all_forwards_first=True)


def all_have(s: Observed, expected: list[int]) -> bool:
    """Whether every rank has F and B of these microbatches, once each."""
    return all(sorted(microbatches(row, kind)) == expected for row in s.y for kind in "FB")


def shares(s: Observed) -> list[list[int]]:
    """By rank, the microbatches that it has a forward of."""
    return [microbatches(row, "F") for row in s.y]


MISTAKES = [
    Mistake(
        "runs one microbatch at a time",
        "Each microbatch goes forward and backward before the next one starts. One rank of p works "
        "at any time, and microbatches save nothing.",
        seen=lambda s: (
            all_have(s, [*range(s.args[1])])
            and s.args[1] > 1
            and forwards_first(s.y) == [1] * s.args[0]
        ),
        made_by=patch(
            "return forwards + backwards",
            "return [cell for pair in zip(forwards, backwards) for cell in pair]",
        ),
    ),
    Mistake(
        "is 1F1B",
        "The first backward comes before the last forward. 1F1B is the better schedule, but a "
        "different one: in GPipe all microbatches go forward first.",
        seen=lambda s: (
            all_have(s, [*range(s.args[1])])
            and forwards_first(s.y)
            == [min(s.args[0] - rank, s.args[1]) for rank in range(s.args[0])]
        ),
        made_by=patch(
            "return forwards + backwards",
            "w = min(num_ranks - rank - 1, num_microbatches)\n"
            "    pairs = zip(forwards[w:], backwards)\n"
            "    return forwards[:w] + [c for pair in pairs for c in pair]"
            " + backwards[num_microbatches - w :]",
        ),
    ),
    Mistake(
        "divides the microbatches among the ranks",
        "That is data parallelism. In a pipeline each rank has some of the layers, and every "
        "microbatch passes through all ranks: each rank has m forwards and m backwards.",
        seen=lambda s: s.args[0] > 1 and sorted(sum(shares(s), [])) == [*range(s.args[1])],
        made_by=patch(
            "return forwards + backwards",
            "return forwards[rank::num_ranks] + backwards[rank::num_ranks]",
        ),
    ),
    Mistake(
        "forgets the last microbatch",
        "The m microbatches are 0 to m - 1. range(m) has all of them.",
        hint=3,
        seen=lambda s: all_have(s, [*range(s.args[1] - 1)]),
        made_by=program(
            "def gpipe_schedule(rank, p, m):\n"
            '    return [f"{kind}{i}" for kind in "FB" for i in range(m - 1)]\n'
        ),
    ),
    Mistake(
        "counts microbatches from 1",
        "The m microbatches are 0 to m - 1.",
        hint=3,
        seen=lambda s: all_have(s, [*range(1, s.args[1] + 1)]),
        made_by=program(
            "def gpipe_schedule(rank, p, m):\n"
            '    return [f"{kind}{i}" for kind in "FB" for i in range(1, m + 1)]\n'
        ),
    ),
    Mistake(
        "takes the number of ranks for the number of microbatches",
        "Each rank has as many forwards as there are microbatches, for any number of ranks.",
        hint=3,
        seen=lambda s: all_have(s, [*range(s.args[0])]),
        made_by=program(
            "def gpipe_schedule(rank, p, m):\n"
            '    return [f"{kind}{i}" for kind in "FB" for i in range(p)]\n'
        ),
    ),
    Mistake(
        "has no backwards",
        "A step has a backward for each forward, in the same row.",
        hint=2,
        seen=lambda s: all(row and forwards_first([row]) == [len(row)] for row in s.y),
        made_by=patch("return forwards + backwards", "return forwards"),
    ),
    Mistake(
        "puts all backwards before the forwards",
        "A backward uses what its forward has kept, so the forwards come first.",
        hint=2,
        seen=lambda s: (
            all_have(s, [*range(s.args[1])])
            and all([cell[0] for cell in row] == sorted(cell[0] for cell in row) for row in s.y)
        ),
        made_by=patch("return forwards + backwards", "return backwards + forwards"),
    ),
    Mistake(
        "has another order of microbatches on each rank",
        "A rank passes microbatches on in the order in which it computes them. A rank that wants "
        "another one first waits for it, while one that has arrived is not computed.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            any(
                microbatches(row, kind) != microbatches(s.y[0], kind)
                for row in s.y
                for kind in "FB"
            )
            and RULES.is_over(s)
        ),
        made_by=patch(
            "return forwards + backwards",
            "return forwards + (backwards[::-1] if rank % 2 else backwards)",
        ),
    ),
]

GRADER = RULES.grader(
    "gpipe_schedule",
    MISTAKES,
    cases=drawn_pipelines,
    shown="each stage takes each microbatch forward and backward, all forwards come first, and the "
    "bubble is (p - 1)/m of the working time, for any cost of a forward and a backward",
)
