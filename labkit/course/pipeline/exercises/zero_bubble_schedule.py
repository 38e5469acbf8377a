"""Grade zero_bubble_schedule: a valid step, as fast as ZB-H1, and p microbatches held at most."""

from collections.abc import Callable

from labkit.grade.graded_schedules import Cost, Rules, drawn_pipelines, starts_with
from labkit.grade.grader import Observed, patch


def time(cost: Cost, p: int, m: int) -> float:
    """Return ZB-H1's time: F + I for each rank, there and back, less a W to fill it with."""
    f, i, w, _ = cost
    return m * (f + i + w) + (p - 1) * (f + i - w) + max(0, p - m) * w


def memory(p: int, m: int) -> list[int]:
    """On every rank what the first one holds in 1F1B."""
    return [min(p, m)] * p


def puts_off(count: Callable[[int, int], int]) -> Callable[[Observed], bool]:
    """Return a predicate: the warmup is that of 1F1B, and rank r is count(r, m) W behind its I."""

    def seen(s: Observed) -> bool:
        p, m = s.args
        first = [[cell for cell in row if cell[0] in "IW"].index("W0") for row in s.y]
        return is_like_1f1b(s) and first == [min(count(rank, m) + 1, m) for rank in range(p)]

    return seen


is_like_1f1b = starts_with(lambda rank, p, m: p - rank)
is_gpipe = starts_with(lambda rank, p, m: m)
puts_off_none, puts_off_all = puts_off(lambda rank, m: 0), puts_off(lambda rank, m: m)
puts_off_r = puts_off(lambda rank, m: rank)


def puts_off_others(s: Observed) -> bool:
    """Return whether all is like 1F1B except the number of W that are put off."""
    return is_like_1f1b(s) and not (puts_off_none(s) or puts_off_all(s) or puts_off_r(s))


# An I as long as an F, longer and shorter: a row that is fast for one may be slow for another.
COSTS = ((1, 1, 1, 0), (1, 2, 1, 0), (2, 2, 1, 0), (2, 1, 1, 0), (4, 2, 1, 0))
RULES = Rules(time=time, memory=memory, kinds="FBIW", costs=COSTS)
WARMUP = "min(num_ranks - rank - 1, num_microbatches)"
BEHIND = "min(rank, num_microbatches)"
I = '"I{microbatch}"'  # noqa: E741
IF_BEHIND = "if microbatch >= behind:"
AT_THE_END = "range(num_microbatches - behind, num_microbatches)"

MISTAKES = [
    RULES.slow(
        "keeps the backward whole",
        "With a B the rank before waits for I and W, though it needs I only.",
        patch(I, '"B{microbatch}"', IF_BEHIND, "if False:", AT_THE_END, "[]"),
        when=lambda s: "I" not in str(s.y),
        hint=1,
    ),
    RULES.slow(
        "puts every W right after its I",
        "The rank before gets its gradient earlier, which helps. But after its last forward a rank "
        "is idle between two gradients, and has no W left for that time. Rank r keeps r of them.",
        patch(BEHIND, "0"),
        when=puts_off_none,
    ),
    RULES.slow(
        "puts every W at the end",
        "There is always something left to do, but a microbatch is held until its W. Put off only "
        "as many as the idle times need: r of them on rank r.",
        patch(BEHIND, "num_microbatches"),
        when=puts_off_all,
    ),
    RULES.slow(
        "puts off another number of W than r",
        "Rank r holds p - r microbatches by 1F1B. Within the p that it may hold there is room for "
        "r W: for none on the first rank, and for most on the last, whose I all others wait for. "
        "With fewer put off a rank reaches its I later.",
        patch(BEHIND, "min(num_ranks - 1, num_microbatches)"),
        when=puts_off_others,
        hint=3,
    ),
    RULES.slow(
        "has another warmup than 1F1B",
        "Rank r needs p - r forwards before its first I, so the last rank can do its first I at "
        "once. Use the memory that it may hold for W that are put off.",
        patch(WARMUP, "min(num_ranks - 1, num_microbatches)", BEHIND, "0"),
        when=lambda s: s.args[0] > 1 and not (is_like_1f1b(s) or is_gpipe(s)),
    ),
    RULES.slow(
        "is GPipe",
        "With all forwards first there is enough to do at the end, but m microbatches are held. "
        "Start backwards as soon as possible, as 1F1B does.",
        patch(WARMUP, "num_microbatches"),
        # With few microbatches other warmups have all forwards, too.
        when=lambda s: s.args[1] > s.args[0] and is_gpipe(s),
    ),
]

GRADER = RULES.grader(
    MISTAKES,
    cases=drawn_pipelines,
    shown="each stage takes each microbatch forward and computes both gradients of it, the step is "
    "as fast as ZB-H1 for equal durations and others, and no rank holds more than p microbatches",
)
