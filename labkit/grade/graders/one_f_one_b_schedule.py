"""Grade one_f_one_b_schedule: a valid step, GPipe's time, and p - r microbatches held on rank r."""

from labkit.grade.graded_schedules import Rules, drawn_pipelines, forwards_first, microbatches
from labkit.grade.grader import Mistake, Observed, Outcome, patch
from labkit.grade.graders.gpipe_schedule import time


def memory(p: int, m: int) -> list[int]:
    """One for each rank from this one to the last."""
    return [min(p - rank, m) for rank in range(p)]


RULES = Rules(time=time, memory=memory)
WARMUP = "min(num_ranks - rank - 1, num_microbatches)"
STEADY = 'yield f"F{microbatch}"\n        yield f"B{microbatch - warmup}"'
COOLDOWN = "range(num_microbatches - warmup, num_microbatches)"


def has_all(s: Observed) -> list[bool]:
    """By rank, whether it has F and B of each microbatch once."""
    expected = [*range(s.args[1])]
    return [all(sorted(microbatches(row, kind)) == expected for kind in "FB") for row in s.y]


def first_backwards(s: Observed) -> list[int]:
    """By rank, the microbatch that goes back first."""
    return [microbatches(row, "B")[0] for row in s.y]


def forgets_few_microbatches(s: Observed) -> bool:
    """Whether only ranks with more ranks behind them than microbatches have wrong cells."""
    p, m = s.args
    return not all(has_all(s)) and all(has_all(s)[max(0, p - m) :])


def forgets_cooldown(s: Observed) -> bool:
    """Whether each rank with a warmup lacks as many backwards, and nothing else."""
    p, m = s.args
    return all(
        microbatches(row, "F") == [*range(m)]
        and microbatches(row, "B") == [*range(max(0, m - (p - rank - 1)))]
        for rank, row in enumerate(s.y)
    )


MISTAKES = [
    RULES.starts_with(
        "runs one microbatch at a time",
        "F and B of the same microbatch in turn is 1F1B on the last rank only. The other ranks "
        "need more forwards first, or they wait for each microbatch to reach the last rank and "
        "come back.",
        lambda rank, p, m: 1,
        patch(WARMUP, "0"),
    ),
    RULES.starts_with(
        "is GPipe",
        "The bubble is the same, but each rank holds all m microbatches. 1F1B does the backward of "
        "one microbatch before it starts the next forward.",
        lambda rank, p, m: m,
        patch(WARMUP, "num_microbatches"),
    ),
    RULES.starts_with(
        "one forward too many before the first backward",
        "Rank r has p - r - 1 forwards in the warmup, one for each rank behind it. The steady "
        "phase starts with one more forward: p - r before the first backward.",
        lambda rank, p, m: p - rank + 1,
        patch(WARMUP, "min(num_ranks - rank, num_microbatches)"),
    ),
    RULES.starts_with(
        "one forward too few before the first backward",
        "When the first gradient arrives at rank r, the rank has had time for p - r forwards: "
        "p - r - 1 in the warmup and the first of the steady phase. With fewer it is idle.",
        lambda rank, p, m: p - rank - 1,
        patch(WARMUP, "max(0, min(num_ranks - rank - 2, num_microbatches))"),
    ),
    RULES.starts_with(
        "has the same warmup on every rank",
        "The last rank can do its first backward at once. The first rank waits longest, so the "
        "warmup is p - r - 1.",
        lambda rank, p, m: p,
        patch(WARMUP, "min(num_ranks - 1, num_microbatches)"),
    ),
    RULES.starts_with(
        "has twice the warmup",
        "One forward for each rank behind is enough: while microbatch 0 is on its way back, the "
        "rank works through the steady phase. Two for each rank belong to interleaved 1F1B.",
        lambda rank, p, m: 2 * (p - rank - 1) + 1,
        patch(WARMUP, "min(2 * (num_ranks - rank - 1), num_microbatches)"),
    ),
    RULES.starts_with(
        "has the longest warmup on the last rank",
        "The last rank computes its first gradient itself, at once. Rank 0 waits longest for one. "
        "The warmup is p - r - 1, not r.",
        lambda rank, p, m: rank + 1,
        patch(WARMUP, "min(rank, num_microbatches)"),
        Outcome.WRONG,
    ),
    Mistake(
        "forgets that there may be fewer microbatches than ranks",
        "The warmup has min(p - r - 1, m) forwards. With few microbatches it has all of them.",
        hint=3,
        seen=forgets_few_microbatches,
        made_by=patch(WARMUP, "num_ranks - rank - 1"),
    ),
    Mistake(
        "takes the last microbatches back in reverse",
        "Microbatches come back in the order in which they went in, in the cooldown too. A rank "
        "that wants the last one first is idle until it arrives.",
        hint=3,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            any((order := microbatches(row, "B")) != sorted(order) for row in s.y)
            and (s.args[1] < s.args[0] or not any(first_backwards(s)))
            and RULES.is_over(s)
        ),
        made_by=patch(COOLDOWN, f"reversed({COOLDOWN})"),
    ),
    Mistake(
        "takes the latest microbatch back first",
        "The oldest microbatch comes back first: the ranks behind finished it long ago, while the "
        "latest has not reached them yet.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            any(first_backwards(s))
            and first_backwards(s) == [count - 1 for count in forwards_first(s.y)]
            and RULES.is_over(s)
        ),
        made_by=patch("{microbatch - warmup}", "{microbatch}", COOLDOWN, "range(warmup)"),
    ),
    Mistake(
        "forgets the cooldown",
        "After the last forward as many backwards are left as the warmup had forwards.",
        hint=3,
        seen=forgets_cooldown,
        made_by=patch(COOLDOWN, "range(0)"),
    ),
    Mistake(
        "puts the backward before the forward in the steady phase",
        "The last rank has no warmup, so it has nothing to take back at first: forward first, then "
        "backward.",
        hint=3,
        seen=lambda s: s.y[-1][0] == "B0" and all(has_all(s)),
        made_by=patch(STEADY, 'yield f"B{microbatch - warmup}"\n        yield f"F{microbatch}"'),
    ),
]

GRADER = RULES.grader(
    "one_f_one_b_schedule",
    MISTAKES,
    cases=drawn_pipelines,
    shown="each stage takes each microbatch forward and backward, the bubble is GPipe's, (p - 1)/m "
    "of the working time, and rank r holds at most p - r microbatches, however many there are",
)
