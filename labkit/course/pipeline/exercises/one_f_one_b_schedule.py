"""Grade one_f_one_b_schedule: a valid step, GPipe's time, and p - r microbatches held on rank r."""

from labkit.course.pipeline.exercises.gpipe_schedule import time
from labkit.grade.graded_schedules import Rules, drawn_pipelines, starts_with
from labkit.grade.grader import Mistake, Observed, patch, patches


def memory(p: int, m: int) -> list[int]:
    """One for each rank from this one to the last."""
    return [min(p - rank, m) for rank in range(p)]


def goes_back_in_another_order(s: Observed) -> bool:
    """Return whether some rank's backwards are not in the order of the microbatches."""
    backwards = [[int(cell[1:]) for cell in row if cell[0] == "B"] for row in s.y]
    return any(order != sorted(order) for order in backwards)


is_1f1b, is_gpipe = starts_with(lambda r, p, m: p - r), starts_with(lambda r, p, m: m)
is_one_at_a_time = starts_with(lambda rank, p, m: 1)
is_same_on_all = starts_with(lambda rank, p, m: p)


def has_another_warmup(s: Observed) -> bool:
    """Return whether the warmup is neither 1F1B's nor that of another named schedule."""
    named = is_1f1b(s) or is_gpipe(s) or is_one_at_a_time(s) or is_same_on_all(s)
    return s.args[0] > 1 and not named


RULES = Rules(time=time, memory=memory)
WARMUP = "min(num_ranks - rank - 1, num_microbatches)"
OTHER_WARMUPS = ("num_ranks - rank", "2 * (num_ranks - rank - 1)")
COOLDOWN = "range(num_microbatches - warmup, num_microbatches)"

MISTAKES = [
    RULES.slow(
        "runs one microbatch at a time",
        "F and B of the same microbatch in turn is 1F1B on the last rank only. The other ranks "
        "need more forwards first, or they wait for each microbatch to reach the last rank and "
        "come back.",
        patch(WARMUP, "0"),
        when=is_one_at_a_time,
    ),
    RULES.slow(
        "is GPipe",
        "The bubble is the same, but each rank holds all m microbatches. 1F1B does the backward of "
        "one microbatch before it starts the next forward.",
        patch(WARMUP, "num_microbatches"),
        # With few microbatches other warmups have all forwards, too.
        when=lambda s: s.args[1] > s.args[0] and is_gpipe(s),
    ),
    RULES.slow(
        "has the same warmup on every rank",
        "The last rank can do its first backward at once. The first rank waits longest, so the "
        "warmup is p - r - 1.",
        patch(WARMUP, "min(num_ranks - 1, num_microbatches)"),
        when=lambda s: s.args[1] > s.args[0] and is_same_on_all(s),
    ),
    RULES.slow(
        "has too many or too few forwards before the first backward",
        "Rank r has p - r - 1 forwards in the warmup, one for each rank behind it, and one more "
        "when the steady phase starts: then the first gradient arrives. With fewer the rank is "
        "idle until then, with more it holds more. Two for each rank belong to interleaved 1F1B.",
        patches(WARMUP, *(f"min({other}, num_microbatches)" for other in OTHER_WARMUPS)),
        when=has_another_warmup,
    ),
    RULES.slow(
        "takes the latest microbatch back first",
        "Microbatches come back in the order in which they went in, in the cooldown too: the ranks "
        "behind finished the oldest long ago, while the latest has not reached them yet.",
        patch(COOLDOWN, f"reversed({COOLDOWN})"),
        when=goes_back_in_another_order,
        hint=3,
    ),
    Mistake(
        "has the longest warmup on the last rank",
        "The last rank computes its first gradient itself, at once. Rank 0 waits longest for one. "
        "The warmup is p - r - 1, not r.",
        patch(WARMUP, "min(rank, num_microbatches)"),
        hint=2,
    ),
    Mistake(
        "forgets that there may be fewer microbatches than ranks",
        "The warmup has min(p - r - 1, m) forwards. With few microbatches it has all of them.",
        patch(WARMUP, "num_ranks - rank - 1"),
        wrong=lambda s: s.args[1] < s.args[0],
        hint=3,
    ),
]

GRADER = RULES.grader(
    MISTAKES,
    cases=drawn_pipelines,
    shown="each stage takes each microbatch forward and backward, the bubble is GPipe's, (p - 1)/m "
    "of the working time, and rank r holds at most p - r microbatches, however many there are",
)
