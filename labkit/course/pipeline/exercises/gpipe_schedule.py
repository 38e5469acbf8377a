"""Grade gpipe_schedule: a valid step, all forwards first, and the bubble of (p - 1)/m."""

from labkit.grade.graded_schedules import Cost, Rules, drawn_pipelines
from labkit.grade.grader import Mistake, patch, program


def time(cost: Cost, p: int, m: int) -> float:
    """m microbatches, and p - 1 more to fill and to drain the pipeline."""
    return (m + p - 1) * sum(cost[:3])


RULES = Rules(time=time, all_forwards_first=True)
ROW = "return forwards + backwards"

MISTAKES = [
    Mistake(
        "runs one microbatch at a time",
        "Each microbatch goes forward and backward before the next one starts. One rank of p works "
        "at any time, and microbatches save nothing.",
        patch(ROW, "return [cell for pair in zip(forwards, backwards) for cell in pair]"),
    ),
    Mistake(
        "is 1F1B",
        "The first backward comes before the last forward. 1F1B is the better schedule, but a "
        "different one: in GPipe all microbatches go forward first.",
        patch(
            ROW,
            "w = min(num_ranks - rank - 1, num_microbatches)\n"
            "    pairs = zip(forwards[w:], backwards)\n"
            "    return forwards[:w] + [cell for pair in pairs for cell in pair]"
            " + backwards[num_microbatches - w :]",
        ),
    ),
    Mistake(
        "divides the microbatches among the ranks",
        "That is data parallelism. In a pipeline each rank has some of the layers, and every "
        "microbatch passes through all ranks: each rank has m forwards and m backwards.",
        [
            patch(ROW, f"part = {part}\n    return forwards[part] + backwards[part]")
            for part in (
                "slice(rank, None, num_ranks)",
                "slice(*(r * num_microbatches // num_ranks for r in (rank, rank + 1)))",
                "slice(*(r * (num_microbatches // num_ranks) for r in (rank, rank + 1)))",
            )
        ],
    ),
    Mistake(
        "has other microbatches than 0 to m - 1",
        "The m microbatches are 0 to m - 1 on every rank, for any number of ranks. range(m) has "
        "all of them.",
        [
            program(
                "def gpipe_schedule(rank, p, m):\n"
                f'    return [f"{{kind}}{{i}}" for kind in "FB" for i in {numbers}]\n'
            )
            for numbers in ("range(m - 1)", "range(1, m)", "range(1, m + 1)", "range(p)")
        ],
        hint=3,
    ),
    Mistake(
        "has no backwards",
        "A step has a backward for each forward, in the same row.",
        patch(ROW, "return forwards"),
        hint=2,
    ),
    Mistake(
        "puts all backwards before the forwards",
        "A backward uses what its forward has kept, so the forwards come first.",
        patch(ROW, "return backwards + forwards"),
        hint=2,
    ),
    RULES.slow(
        "has another order of microbatches on each rank",
        "A rank passes microbatches on in the order in which it computes them. A rank that wants "
        "another one first waits for it, while one that has arrived is not computed.",
        patch(ROW, "return forwards + (backwards[::-1] if rank % 2 else backwards)"),
        when=lambda s: any(row != s.y[0] for row in s.y),
    ),
]

GRADER = RULES.grader(
    MISTAKES,
    cases=drawn_pipelines,
    shown="each stage takes each microbatch forward and backward, all forwards come first, and the "
    "bubble is (p - 1)/m of the working time, for any cost of a forward and a backward",
)
