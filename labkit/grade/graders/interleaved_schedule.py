"""Grade interleaved_schedule: a valid step, a v-th of 1F1B's bubble, hidden messages, memory."""

from labkit.grade.graded_schedules import FORWARD_AND_BACKWARD, Cost, Rules, pipeline
from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, patch

WRONG = Outcome.WRONG


def cases(draw: Draw) -> list[Case]:
    """One group of p microbatches and several, two to four stages on each rank, and one rank."""
    rng = draw.rng
    sizes = [(2, 2, 2), (rng.randrange(3, 5), 2, 2), (2, rng.randrange(3, 6), 2), (3, 2, 3)]
    sizes += [(rng.randrange(3, 5), 1, 2), (4, 1, 3), (rng.randrange(5, 8), 2, 2)]
    sizes += [(1, rng.randrange(1, 6), 2), (1, rng.randrange(2, 6), rng.randrange(3, 5))]
    sizes += [(rng.randrange(3, 5), rng.randrange(2, 4), rng.randrange(3, 5))]
    return [pipeline(p, p * num_groups, v) for p, num_groups, v in sizes]


def time(cost: Cost, p: int, m: int, v: int) -> float:
    """Fill and drain with small stages, and one microbatch's messages there and back."""
    *durations, message = cost
    return (v * m + p - 1) * sum(durations) + (2 * (p * v - 1) * message if p > 1 else 0)


def warmup(rank: int, p: int, v: int) -> int:
    """Forwards before the steady phase."""
    return (v - 1) * p + 2 * (p - rank - 1)


def memory(p: int, m: int, v: int) -> list[int]:
    """One more than the warmup, or all there are."""
    return [min(warmup(rank, p, v) + 1, v * m) for rank in range(p)]


WITH_MESSAGES = tuple((f, i, w, 1.0) for f, i, w, _ in FORWARD_AND_BACKWARD)
RULES = Rules(
    time=time, memory=memory, costs=(*FORWARD_AND_BACKWARD, *WITH_MESSAGES), names_stages=True
)


def stages(s: Observed, kind: str = "F") -> list[list[int]]:
    """By rank, the stages of its cells of one kind, in order."""
    return [[int(cell.split("@")[1]) for cell in row if cell[0] == kind] for row in s.y]


def group_sizes(s: Observed) -> list[int]:
    """By rank, the forwards through its first stage before one through its second."""
    return [
        next(index for index, stage in enumerate(mine) if stage != mine[0]) for mine in stages(s)
    ]


WARMUP = "(virtual - 1) * num_ranks + 2 * (num_ranks - rank - 1)"
FORWARDS = "range(0, num_microbatches, num_ranks)"
GROUP = "range(first, first + num_ranks)"

MISTAKES = [
    Mistake(
        "gives each rank neighbouring stages",
        "Then all v stages of the first rank come before the second rank has anything to do, as "
        "with one large stage. With stage s on rank s mod p a microbatch reaches the last rank "
        "after p small stages.",
        seen=lambda s: (
            s.args[0] > 1
            and all(
                {*mine} == {*range(rank * s.args[2], (rank + 1) * s.args[2])}
                for rank, mine in enumerate(stages(s))
            )
        ),
        made_by=patch(
            "@{turn * num_ranks + rank}",
            "@{rank * virtual + turn}",
            "@{(virtual - 1 - turn) * num_ranks + rank}",
            "@{rank * virtual + virtual - 1 - turn}",
        ),
    ),
    Mistake(
        "goes back through its first stage first",
        "Backward comes from the end of the model, so a rank's last stage gets its gradient first. "
        "Turn k of a group goes back through stage v - 1 - k of the rank.",
        hint=2,
        seen=lambda s: all(mine[0] == rank < max(mine) for rank, mine in enumerate(stages(s, "B"))),
        made_by=patch("(virtual - 1 - turn) * num_ranks", "turn * num_ranks"),
    ),
    Mistake(
        "makes no groups of p microbatches",
        "p microbatches pass through the first stage, then the same p through the second. After p "
        "forwards the first one has come around. With fewer in a group the ranks wait for it; with "
        "more no backward can start when the warmup ends.",
        hint=2,
        seen=lambda s: s.args[0] not in group_sizes(s),
        made_by=patch(FORWARDS, "range(1)", GROUP, "range(num_microbatches)"),
    ),
    RULES.starts_with(
        "does all forwards, then all backwards",
        "That is GPipe with v stages per rank. The bubble is small, and all activations are held "
        "at once.",
        lambda rank, p, m, v: v * m if m > p else 0,
        patch(WARMUP, "len(forwards)"),
    ),
    Mistake(
        "takes all microbatches through a stage before the next one",
        "Then the first backward comes late, and the rank holds more activations. With p "
        "microbatches in a group the first one has come around after p forwards.",
        hint=2,
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            group_sizes(s) == [s.args[1]] * s.args[0]
            and 1 < s.args[0] < s.args[1]
            and RULES.is_over(s)
        ),
        made_by=patch(
            FORWARDS,
            "range(1)",
            GROUP,
            "range(num_microbatches)",
            WARMUP,
            "(virtual - 1) * num_microbatches + 2 * (num_ranks - rank - 1)",
        ),
    ),
    RULES.starts_with(
        "has the warmup of 1F1B",
        "Before the first backward a microbatch must have passed all v turns: that is (v - 1) p "
        "forwards, besides those for the ranks behind.",
        lambda rank, p, m, v: p - rank,
        patch(WARMUP, "num_ranks - rank - 1"),
        WRONG,
    ),
    RULES.starts_with(
        "one forward too few before the first backward",
        "The warmup has (v - 1) p + 2 (p - r - 1) forwards, and the steady phase starts with one "
        "more. Only then can the first backward come.",
        lambda rank, p, m, v: warmup(rank, p, v),
        patch(WARMUP, f"{WARMUP} - 1"),
        WRONG,
    ),
    RULES.starts_with(
        "has one forward for each rank behind, instead of two",
        "Without message times one is enough. But then each rank finishes a result just when its "
        "neighbour needs it, and each message delays a turn. With two, an input is already on its "
        "way while the rank computes something else.",
        lambda rank, p, m, v: warmup(rank, p, v) - (p - rank - 1) + 1,
        patch(WARMUP, "(virtual - 1) * num_ranks + num_ranks - rank - 1"),
    ),
    RULES.starts_with(
        "one forward too many before the first backward",
        "The warmup has (v - 1) p + 2 (p - r - 1) forwards. The steady phase starts with one more.",
        lambda rank, p, m, v: warmup(rank, p, v) + 2,
        patch(WARMUP, f"{WARMUP} + 1"),
    ),
    RULES.starts_with(
        "has a group too many in the warmup",
        "The last of the v turns is not in the warmup. On the last rank the steady phase starts "
        "with the first forward of that turn.",
        lambda rank, p, m, v: warmup(rank, p, v) + p + 1 if m > p else 0,
        patch(WARMUP, f"{WARMUP} + num_ranks"),
    ),
    RULES.starts_with(
        "has the same warmup on every rank",
        "The last rank goes back as soon as its last stage has seen a microbatch. The first rank "
        "waits longest.",
        lambda rank, p, m, v: warmup(0, p, v) + 1 if m > p else 0,
        patch(WARMUP, "(virtual - 1) * num_ranks + 2 * (num_ranks - 1)"),
    ),
    RULES.starts_with(
        "has nothing but warmup where m = p",
        "With one group, too, rank r needs only (v - 1) p + 2 (p - r - 1) forwards in the warmup. "
        "More of them hold more activations.",
        lambda rank, p, m, v: v * m if m == p else 0,
        patch(WARMUP, f"{WARMUP} + (num_microbatches == num_ranks) * len(forwards)"),
    ),
]

GRADER = RULES.grader(
    "interleaved_schedule",
    MISTAKES,
    cases=cases,
    shown="each stage takes each microbatch forward and backward on its own rank, the bubble is "
    "(p - 1)/(v m) of the working time, messages are hidden except those of one microbatch, and no "
    "rank holds more activations than that needs",
)
