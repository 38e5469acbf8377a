"""Grade zero_bubble_schedule: a valid step, as fast as ZB-H1, and p microbatches held at most."""

from collections.abc import Callable

from labkit.grade.graded_schedules import Cost, Rules, drawn_pipelines, forwards_first, microbatches
from labkit.grade.grader import Mistake, Observed, Outcome, patch


def time(cost: Cost, p: int, m: int) -> float:
    """That of ZB-H1: F + I for each rank on the way there and back, less a W to fill it with."""
    f, i, w, _ = cost
    return m * (f + i + w) + (p - 1) * (f + i - w) + max(0, p - m) * w


def memory(p: int, m: int) -> list[int]:
    """On every rank what the first one holds in 1F1B."""
    return [min(p, m)] * p


# An I as long as an F, longer and shorter: a row that is fast for one may be slow for another.
COSTS = ((1, 1, 1, 0), (1, 2, 1, 0), (2, 2, 1, 0), (2, 1, 1, 0), (4, 2, 1, 0))
RULES = Rules(time=time, memory=memory, kinds="FBIW", costs=COSTS)
WARMUP = "min(num_ranks - rank - 1, num_microbatches)"
BEHIND = "min(rank, num_microbatches)"
IF_BEHIND = "if microbatch >= behind:"
AT_THE_END = "range(num_microbatches - behind, num_microbatches)"


def puts_off(
    name: str, why: str, count: Callable[[int, int, int], int], behind: str, hint: int = 2
) -> Mistake:
    """A mistake: rank r is count(r, p, m) W behind its I, by another `behind` in the solution."""

    def seen(s: Observed) -> bool:
        p, m = s.args
        first = [[cell for cell in row if cell[0] in "IW"].index("W0") for row in s.y]
        expected = [min(count(rank, p, m) + 1, m) for rank in range(p)]
        warmup = [min(p - rank, m) for rank in range(p)]  # another one is another mistake
        return (
            p > 1
            and forwards_first(s.y) == warmup
            and first == [max(1, each) for each in expected]
            and RULES.is_over(s)
        )

    made_by = patch(BEHIND, f"max(0, min({behind}, num_microbatches))")
    return Mistake(name, why, seen, made_by, hint=hint, outcome=Outcome.OVER_BUDGET)


def has(s: Observed, kind: str) -> list[list[int]]:
    """By rank, the microbatches of its cells of one kind."""
    return [microbatches(row, kind) for row in s.y]


MISTAKES = [
    Mistake(
        "keeps the backward whole",
        "With a B the rank before waits for I and W, though it needs I only.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: not any(has(s, "I")) and RULES.is_over(s),
        made_by=patch(
            '"I{microbatch}"', '"B{microbatch}"', IF_BEHIND, "if False:", AT_THE_END, "[]"
        ),
    ),
    puts_off(
        "puts every W right after its I",
        "The rank before gets its gradient earlier, which helps. But after its last forward a rank "
        "is idle between two gradients, and has no W left for that time. Rank r keeps r of them.",
        lambda rank, p, m: 0,
        "0",
    ),
    puts_off(
        "puts every W at the end",
        "There is always something left to do, but a microbatch is held until its W. Put off only "
        "as many as the idle times need: r of them on rank r.",
        lambda rank, p, m: m,
        "num_microbatches",
    ),
    puts_off(
        "puts off the same number of W on every rank",
        "Rank r starts with p - r forwards. Within the p microbatches that it may hold there is "
        "room for r W.",
        lambda rank, p, m: p - 1,
        "num_ranks - 1",
    ),
    puts_off(
        "puts off the W of the first ranks",
        "The first rank starts with p forwards and has no room for a W that is put off. The last "
        "rank has room, and all others wait for its I.",
        lambda rank, p, m: p - 1 - rank,
        "num_ranks - 1 - rank",
    ),
    puts_off(
        "puts off one W too many",
        "Rank r holds p - r microbatches by 1F1B, so there is room for r more.",
        lambda rank, p, m: rank + 1,
        "rank + 1",
        3,
    ),
    puts_off(
        "puts off one W too few",
        "Rank r may hold p microbatches: p - r by 1F1B, and r for their W. With fewer it reaches "
        "its I later, and the ranks before it wait.",
        lambda rank, p, m: rank - 1,
        "rank - 1",
        3,
    ),
    RULES.starts_with(
        "has the same warmup on every rank",
        "The last rank can do its first I at once. Use the memory that it may hold for W that are "
        "put off.",
        lambda rank, p, m: p,
        patch(WARMUP, "min(num_ranks - 1, num_microbatches)", BEHIND, "0"),
    ),
    RULES.starts_with(
        "is GPipe",
        "With all forwards first there is enough to do at the end, but m microbatches are held. "
        "Start backwards as soon as possible, as 1F1B does.",
        lambda rank, p, m: m,
        patch(WARMUP, "num_microbatches"),
    ),
    RULES.starts_with(
        "runs one microbatch at a time",
        "A microbatch passes through all ranks and back before the next one starts. One rank of p "
        "works at any time.",
        lambda rank, p, m: 1,
        patch(WARMUP, "0", BEHIND, "0"),
    ),
    Mistake(
        "puts W before I",
        "The rank before waits for I and no rank waits for W, so I comes first. And W uses "
        "gradients that I computes.",
        hint=2,
        seen=lambda s: all([cell for cell in row if cell[0] != "F"][0][0] == "W" for row in s.y),
        made_by=patch(
            '"I{microbatch}"\n        if',
            '"W{microbatch}"\n        if',
            '"W{microbatch - b',
            '"I{microbatch - b',
            '"W{microbatch}"\n    #',
            '"I{microbatch}"\n    #',
        ),
    ),
    Mistake(
        "leaves out every W",
        "Without W no weight has a gradient: I is for the rank before, W for the optimizer.",
        seen=lambda s: not any(has(s, "W")) and not any(has(s, "B")),
        made_by=patch(IF_BEHIND, "if False:", AT_THE_END, "[]"),
    ),
    Mistake(
        "forgets the W that were put off",
        "A W that was put off is still to be done, when nothing else is left.",
        hint=3,
        seen=lambda s: (
            has(s, "I") == [[*range(s.args[1])]] * s.args[0]
            and has(s, "W") == [[*range(s.args[1] - rank)] for rank in range(s.args[0])]
        ),
        made_by=patch(AT_THE_END, "[]"),
    ),
]

GRADER = RULES.grader(
    "zero_bubble_schedule",
    MISTAKES,
    cases=drawn_pipelines,
    shown="each stage takes each microbatch forward and computes both gradients of it, the step is "
    "as fast as ZB-H1 for equal durations and others, and no rank holds more than p microbatches",
)
