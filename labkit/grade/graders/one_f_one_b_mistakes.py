"""Wrong rows for 1F1B, by name."""

import itertools
from collections.abc import Callable, Iterable, Iterator

from labkit.grade.graders.schedule_pipelines import Pipeline
from labkit.grade.graders.schedules import Mistake
from labkit.pipeline import Kind, Op, gpipe, naive

F, B = Kind.F, Kind.B
Count = Callable[[Pipeline, int], int]


def _right(pipeline: Pipeline, rank: int) -> int:
    return min(pipeline.num_ranks - rank - 1, pipeline.num_microbatches)


def _row(
    rank: int, num_microbatches: int, warmup: int, backwards: Iterable[int] | None = None
) -> Iterator[Op]:
    """1F1B with this warmup; backwards in this order."""
    order = iter(range(num_microbatches) if backwards is None else backwards)
    for microbatch in range(warmup):
        yield Op(F, rank, microbatch)
    for microbatch in range(warmup, num_microbatches):
        yield Op(F, rank, microbatch)
        yield from (Op(B, rank, back) for back in itertools.islice(order, 1))
    for microbatch in order:
        yield Op(B, rank, microbatch)


def _with_warmup(count: Count) -> Callable[[Pipeline, int], Iterator[Op]]:
    def row(pipeline: Pipeline, rank: int) -> Iterator[Op]:
        m = pipeline.num_microbatches
        return _row(rank, m, max(0, min(count(pipeline, rank), m)))

    return row


def _unclipped(pipeline: Pipeline, rank: int) -> list[Op]:
    """Of a warmup that is longer than there are microbatches."""
    m, warmup = pipeline.num_microbatches, pipeline.num_ranks - rank - 1
    row = [Op(F, rank, i) for i in range(warmup)]
    for i in range(warmup, m):
        row += [Op(F, rank, i), Op(B, rank, i - warmup)]
    return row + [Op(B, rank, i) for i in range(max(0, m - warmup), m)]


def _unclipped_by_count(pipeline: Pipeline, rank: int) -> list[Op]:
    """The same, with a cooldown as long as the warmup."""
    m, warmup = pipeline.num_microbatches, pipeline.num_ranks - rank - 1
    row, num_back = [Op(F, rank, i) for i in range(warmup)], 0
    for i in range(warmup, m):
        row += [Op(F, rank, i), Op(B, rank, num_back)]
        num_back += 1
    return row + [Op(B, rank, num_back + i) for i in range(warmup)]


def _cooldown_reversed(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    m, warmup = pipeline.num_microbatches, _right(pipeline, rank)
    return _row(rank, m, warmup, [*range(m - warmup), *reversed(range(m - warmup, m))])


def _latest_first(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    m, warmup = pipeline.num_microbatches, _right(pipeline, rank)
    return _row(rank, m, warmup, [*range(warmup, m), *reversed(range(warmup))])


def _own_first(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    m, warmup = pipeline.num_microbatches, _right(pipeline, rank)
    return _row(rank, m, warmup, [*range(warmup, m), *range(warmup)])


def _without_cooldown(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    m, warmup = pipeline.num_microbatches, _right(pipeline, rank)
    return _row(rank, m, warmup, range(m - warmup))


def _one_less(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    m = pipeline.num_microbatches - 1
    return _row(rank, m, min(m, _right(pipeline, rank)))


def _backward_then_forward(pipeline: Pipeline, rank: int) -> list[Op]:
    m, warmup = pipeline.num_microbatches, _right(pipeline, rank)
    row = [Op(F, rank, i) for i in range(warmup)]
    for i in range(m - warmup):
        row += [Op(B, rank, i), Op(F, rank, warmup + i)]
    return row + [Op(B, rank, i) for i in range(m - warmup, m)]


_M_LESS_THAN_P = (
    "forgets that there may be fewer microbatches than ranks",
    "with m < p - r - 1 the warmup is all there is: it has min(p - r - 1, m) forwards",
)
_LATEST = (
    "takes the latest microbatch back first",
    "the one that went in first comes back first: the ranks behind are long done with it, while "
    "the latest has its way through all of them still before it",
)

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "one microbatch at a time",
        "F and B of the same microbatch, one behind the other, is 1F1B on the last rank alone. All "
        "others need forwards of their own first, or they wait until each microbatch has gone "
        "through and come back",
        lambda pipeline, rank: naive(rank, pipeline.num_ranks, pipeline.num_microbatches),
        1,
    ),
    Mistake(
        "is GPipe",
        "its bubble is the same, but it takes in all microbatches before it lets go of one: "
        "memory grows with m. 1F1B lets go of one before it takes in the next",
        lambda pipeline, rank: gpipe(rank, pipeline.num_ranks, pipeline.num_microbatches),
        1,
    ),
    Mistake(
        "one forward too many before the first backward",
        "rank r warms up with p - r - 1 forwards, as many as there are ranks behind it. The steady "
        "phase begins with a forward of its own: p - r in all when the first backward comes",
        _with_warmup(lambda pipeline, rank: pipeline.num_ranks - rank),
    ),
    Mistake(
        "one forward too few before the first backward",
        "the first microbatch is back on rank r when p - r forwards could have been done there: "
        "p - r - 1 in the warmup, and the first of the steady phase. With fewer the rank stands "
        "still instead, and the ranks behind it with it",
        _with_warmup(lambda pipeline, rank: pipeline.num_ranks - rank - 2),
    ),
    Mistake(
        "the same warmup on every rank",
        "the last rank can go back at once, and the first has to wait for the way there and back: "
        "the warmup is p - r - 1, and memory goes down with the rank",
        _with_warmup(lambda pipeline, rank: pipeline.num_ranks - 1),
    ),
    Mistake(
        "the longest warmup on the last rank",
        "the last rank gets its first gradient from itself, at once; rank 0 is the one that waits "
        "longest. The warmup is p - r - 1, not r",
        _with_warmup(lambda pipeline, rank: rank),
    ),
    Mistake(
        "twice the warmup",
        "for each rank behind, one forward is enough: while microbatch 0 is on its way back, the "
        "rank does what the steady phase has for it. Two for each is interleaved 1F1B's",
        _with_warmup(lambda pipeline, rank: 2 * (pipeline.num_ranks - rank - 1)),
    ),
    Mistake(*_M_LESS_THAN_P, _unclipped, 3),
    Mistake(*_M_LESS_THAN_P, _unclipped_by_count, 3),
    Mistake(
        "takes the last ones back in reverse",
        "in the cooldown, too, microbatches come back in the order in which they went in: who "
        "waits for the last one first, waits longest",
        _cooldown_reversed,
        3,
    ),
    Mistake(*_LATEST, _latest_first),
    Mistake(*_LATEST, _own_first),
    Mistake(
        "forgets the cooldown",
        "as many backwards as the warmup had forwards are left when the forwards are done",
        _without_cooldown,
        3,
    ),
    Mistake("forgets the last microbatch", "m microbatches are 0 to m - 1", _one_less, 3),
    Mistake(
        "a backward before the forward in the steady phase",
        "with p - r - 1 forwards in the warmup, the last rank has none, and nothing that it could "
        "take back: forward first, then backward",
        _backward_then_forward,
        3,
    ),
)
