"""Grade interleaved_schedule: a valid step, a v-th of 1F1B's bubble, hidden messages, memory."""

from labkit.grade.graded_schedules import (
    FORWARD_AND_BACKWARD,
    Cost,
    Rules,
    num_first_forwards,
    pipeline,
    starts_with,
)
from labkit.grade.grader import Case, Draw, Mistake, Observed, patch, patches


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


def has_more_forwards_first(s: Observed) -> bool:
    """Return whether some rank does more forwards first than its warmup and one, but not all."""
    p, m, v = s.args
    counts = enumerate(map(num_first_forwards, s.y))
    return any(warmup(rank, p, v) + 1 < count < v * m for rank, count in counts)


WITH_MESSAGES = tuple((f, i, w, 1.0) for f, i, w, _ in FORWARD_AND_BACKWARD)
RULES = Rules(
    time=time, memory=memory, costs=(*FORWARD_AND_BACKWARD, *WITH_MESSAGES), names_stages=True
)
WARMUP = "(virtual - 1) * num_ranks + 2 * (num_ranks - rank - 1)"
FORWARDS, GROUP = "range(0, num_microbatches, num_ranks)", "range(first, first + num_ranks)"
TURN, BACK = "@{turn * num_ranks + rank}", "@{(virtual - 1 - turn) * num_ranks + rank}"

MISTAKES = [
    Mistake(
        "gives each rank neighbouring stages",
        "Then all v stages of the first rank come before the second rank has anything to do, as "
        "with one large stage. With stage s on rank s mod p a microbatch reaches the last rank "
        "after p small stages.",
        patch(TURN, "@{rank * virtual + turn}", BACK, "@{rank * virtual + virtual - 1 - turn}"),
        wrong=lambda s: s.args[0] > 1 and any(cell.endswith("@1") for cell in s.y[0]),
    ),
    Mistake(
        "goes back through its first stage first",
        "Backward comes from the end of the model, so a rank's last stage gets its gradient first. "
        "Turn k of a group goes back through stage v - 1 - k of the rank.",
        patch(BACK, TURN),
        hint=2,
    ),
    Mistake(
        "makes no groups of p microbatches",
        "p microbatches pass through the first stage, then the same p through the second. After p "
        "forwards the first one has come around. With fewer in a group the ranks wait for it; with "
        "more no backward can start when the warmup ends.",
        patch(FORWARDS, "range(1)", GROUP, "range(num_microbatches)"),
        hint=2,
    ),
    Mistake(
        "has too few forwards before the first backward",
        "Before its first backward a microbatch must have passed all v turns: the warmup has "
        "(v - 1) p forwards, 2 (p - r - 1) for the ranks behind, and the steady phase starts with "
        "one more.",
        patches(WARMUP, "num_ranks - rank - 1", "2 * (num_ranks - rank - 1)"),
        hint=2,
    ),
    RULES.slow(
        "does all forwards, then all backwards",
        "That is GPipe with v stages per rank: the bubble is small, and all activations are held "
        "at once. Where m = p, too, rank r needs only (v - 1) p + 2 (p - r - 1) forwards in the "
        "warmup.",
        patch(WARMUP, "len(forwards)"),
        when=starts_with(lambda rank, p, m, v: v * m),
    ),
    RULES.slow(
        "has one forward for each rank behind, instead of two",
        "Without message times one is enough. But then each rank finishes a result just when its "
        "neighbour needs it, and each message delays a turn. With two, an input is already on its "
        "way while the rank computes something else.",
        patch(WARMUP, "(virtual - 1) * num_ranks + num_ranks - rank - 1"),
        when=starts_with(lambda rank, p, m, v: warmup(rank, p, v) - (p - rank - 1) + 1),
    ),
    RULES.slow(
        "has too many forwards before the first backward",
        "The warmup has (v - 1) p + 2 (p - r - 1) forwards, without the last of the v turns, and "
        "fewer on later ranks: the last one goes back as soon as its last stage has seen a "
        "microbatch. The steady phase starts with one more.",
        patch(WARMUP, f"{WARMUP} + num_ranks"),
        when=has_more_forwards_first,
    ),
]

GRADER = RULES.grader(
    MISTAKES,
    cases=cases,
    shown="each stage takes each microbatch forward and backward on its own rank, the bubble is "
    "(p - 1)/(v m) of the working time, messages are hidden except those of one microbatch, and no "
    "rank holds more activations than that needs",
)
