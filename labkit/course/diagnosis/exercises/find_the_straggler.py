"""Grade find_the_straggler: drawn runs in which a rank is late, always or in places, or none is."""

from collections.abc import Iterator
from random import Random
from statistics import median

from labkit.grade import grader as g

Collective = list[tuple[int, int]]
Steps = list[list[Collective]]


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Yield a small run of each kind, then four. In the last case the gain is just enough."""
    kinds = ("late", "late in one place", "late little", "slow network")
    runs = [run(draw.rng, kind, is_small=True) for kind in kinds]
    runs += sorted((run(draw.rng, kind) for kind in 4 * kinds), key=lambda steps: len(str(steps)))
    for steps in runs:
        yield g.Case(f"{len(steps)} steps of {len(steps[0][0])} ranks", steps, 100)
    steps = run(draw.rng, "late")
    yield g.Case("a gain that is just enough", steps, right(steps, 0)[1])


def run(rng: Random, kind: str, is_small: bool = False) -> Steps:
    """Make a run of 5 or 7 steps (small: 3), with a straggler and a rank that looks like one."""
    n, num_steps, num_collectives = rng.randrange(3, 7), rng.choice((5, 7)), rng.randrange(3, 6)
    if is_small:
        n, num_steps, num_collectives = 3, 3, 2
    clocks = [rng.randrange(10**6) for _ in range(n)]
    straggler, other = rng.sample(range(n), 2)
    late, place = rng.randrange(250, 400), rng.randrange(num_collectives)
    now = 0
    steps: Steps = [[] for _ in range(num_steps)]
    for number, step in enumerate(steps):
        for at in range(num_collectives):
            arrivals = [now + 1000 + rng.randrange(20) for _ in range(n)]
            if kind == "late" and number in (1, num_steps - 2):
                arrivals[other] += 5000  # a checkpoint
            elif kind == "late" or (kind != "slow network" and at == place):
                arrivals[straggler] += late
            elif kind == "late in one place":
                arrivals[straggler] -= rng.randrange(200, 300)
            elif kind == "late little":
                arrivals[other] += 70
            now = max(arrivals) + rng.randrange(50, 90) + 4000 * (kind == "slow network")
            step.append([(t + clock, now + clock) for t, clock in zip(arrivals, clocks)])
    return steps


def right(steps: Steps, least: float) -> tuple[int, float] | None:
    """Return the rank with the largest gain, and the gain; None if it is below `least`."""
    gains = [
        median(sum(gain_of(rank, each) for each in step) for step in steps)
        for rank in range(len(steps[0][0]))
    ]
    gain = max(gains)
    return (gains.index(gain), gain) if gain >= least else None


def gain_of(rank: int, collective: Collective) -> int:
    """Return how much later a rank arrives than the last of the others, or 0.

    Clocks differ, so times are relative to the end of the collective.
    """
    arrivals = [at - end for at, end in collective]
    return max(0, arrivals.pop(rank) - max(arrivals))


def names_one_that_waits(s: g.Observed) -> bool:
    """Return whether the answer is a wrong rank that waits longer than the mean."""
    collectives = [collective for step in s.xs for collective in step]
    waits = [sum(end - at for at, end in its) for its in zip(*collectives)]
    return s.y[0] != s.right[0][0] and waits[s.y[0]] * len(waits) >= sum(waits)


def describe(s: g.Observed) -> str:
    """Return the two answers, and the waits of each step, as text."""
    lines = [f"got {s.y!r}, expected {s.right[0]!r}"]
    for number, step in enumerate(s.xs):
        waits = [[end - at for at, end in collective] for collective in step]
        lines.append(f"step {number}, waits by rank: {waits}")
    return "\n".join(lines)


GAIN = "gains[waits.index(last)][number] += second - last"
MEAN, MEDIAN = (f"__import__('statistics').{x}(sorted(waits)[1:])" for x in ("mean", "median"))
MISTAKES = [
    g.Mistake(
        "takes the rank that waits longest",
        "In the profile of the straggler the collectives are short: when it arrives, all others "
        "are there. The others wait for it, and theirs are long.",
        g.patch(GAIN, "for r, wait in enumerate(waits): gains[r][number] += wait - last"),
        wrong=names_one_that_waits,
    ),
    g.Mistake(
        "compares times of different clocks",
        "Each host has its own clock. Compare waits, which are differences of one clock, or shift "
        "the clocks so that the ends of a collective agree.",
        g.patch("[end - arrival for", "[-arrival for"),
    ),
    g.Mistake(
        "lets a slow step decide",
        "One checkpoint that takes long raises the mean and the sum of a rank that is on time in "
        "all other steps. Take the median over all steps: those in which its gain is 0 count too.",
        g.patches(
            "sorted(by_step)[len(by_step) // 2]",
            "sum(by_step)",
            "sum(by_step) / len(by_step)",
            "sum(by_step) // len(by_step)",
            "(sorted(filter(None, by_step)) or [0])[sum(map(bool, by_step)) // 2]",
            "__import__('statistics').median([each for each in by_step if each] or [0]) // 1",
        ),
        hint=2,
    ),
    g.Mistake(
        "names a rank in a healthy run",
        "In each collective some rank is the last. If the largest gain is below `least`, it is "
        "noise, and a slow network makes all ranks wait alike: return None.",
        g.patch(" if typical[rank] >= least else None", ""),
    ),
    g.Mistake(
        "measures the gain from another rank than the second to last",
        "Without the straggler the collective begins when the last of the other ranks arrives. It "
        "does not begin with the first rank, or at the mean or median.",
        [
            g.patch(GAIN, GAIN.replace("second", other))
            for other in ("max(waits)", MEAN, f"{MEAN} // 1", MEDIAN)
        ],
        hint=2,
    ),
    g.Mistake(
        "finds no straggler where there is one",
        "A rank delays the others by `least` or more in most steps, in all collectives of a step "
        "together. It need not be the last most often. The late rank is the one that waits least. "
        "All others wait long, and nearly equally long: between them there is no gain.",
        g.patch("sorted(waits)[:2]", "sorted(waits)[:-3:-1]", "second - last", "last - second"),
        wrong=lambda s: s.y is None and s.right[0] is not None,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    describe=describe,
    unexplained=(
        "another rank, or another gain",
        "work out the gains by hand: in each collective, only the rank that waits least has one. "
        "Add them up by step, and take each rank's median over all steps. The largest decides",
    ),
    shown="you name the rank for which the others wait, though it waits least itself, on clocks "
    "that differ, and none in a healthy run or on a slow network",
)
