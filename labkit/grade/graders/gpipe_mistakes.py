"""Wrong rows for GPipe, by name."""

from collections.abc import Iterator

from labkit.grade.graders.schedule_pipelines import Pipeline
from labkit.grade.graders.schedules import Mistake
from labkit.pipeline import Kind, Op, naive, one_f_one_b

F, B = Kind.F, Kind.B


def _in_order(rank: int, forwards: range | list[int], backwards: range | list[int]) -> Iterator[Op]:
    for microbatch in forwards:
        yield Op(F, rank, microbatch)
    for microbatch in backwards:
        yield Op(B, rank, microbatch)


def _naive(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    return naive(rank, pipeline.num_ranks, pipeline.num_microbatches)


def _one_f_one_b(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    return one_f_one_b(rank, pipeline.num_ranks, pipeline.num_microbatches)


def _of_one_rank(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    mine = range(rank, pipeline.num_microbatches, pipeline.num_ranks)
    return _in_order(rank, mine, mine)


def _one_less(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    some = range(pipeline.num_microbatches - 1)
    return _in_order(rank, some, some)


def _from_one(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    some = range(1, pipeline.num_microbatches + 1)
    return _in_order(rank, some, some)


def _as_many_as_ranks(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    some = range(pipeline.num_ranks)
    return _in_order(rank, some, some)


def _forwards_only(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    return _in_order(rank, range(pipeline.num_microbatches), [])


def _backwards_first(pipeline: Pipeline, rank: int) -> list[Op]:
    every = range(pipeline.num_microbatches)
    row = list(_in_order(rank, every, every))
    return row[len(every) :] + row[: len(every)]


def _shifted(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    m = pipeline.num_microbatches
    order = [(rank + i) % m for i in range(m)]
    return _in_order(rank, order, order)


def _shifted_forwards(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    m = pipeline.num_microbatches
    return _in_order(rank, [(rank + i) % m for i in range(m)], range(m))


def _turned_on_odd_ranks(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    every = list(range(pipeline.num_microbatches))
    return _in_order(rank, every, every[::-1] if rank % 2 else every)


_ORDER = (
    "puts microbatches in another order on each rank",
    "a rank passes microbatches on in the order in which they come. One that begins with another "
    "waits for it, while the one that has come lies there",
)

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "one microbatch at a time",
        "a microbatch goes through and back before the next one begins: of p ranks one works, and "
        "microbatches bring nothing",
        _naive,
        1,
    ),
    Mistake(
        "is 1F1B",
        "the first backward comes before the last forward. That is the better schedule, and "
        "another one: GPipe takes all microbatches forward first",
        _one_f_one_b,
        1,
    ),
    Mistake(
        "divides the microbatches among the ranks",
        "that is data parallelism. In a pipeline a rank has some of the layers, and every "
        "microbatch goes through all of them: each rank has m forwards and m backwards",
        _of_one_rank,
        1,
    ),
    Mistake("forgets the last microbatch", "m microbatches are 0 to m - 1", _one_less, 3),
    Mistake("counts microbatches from 1", "m microbatches are 0 to m - 1", _from_one, 3),
    Mistake(
        "takes ranks for microbatches",
        "each rank has as many forwards as there are microbatches, whatever the number of ranks",
        _as_many_as_ranks,
        3,
    ),
    Mistake(
        "never goes back",
        "a step has a backward for each forward, in the same row",
        _forwards_only,
        2,
    ),
    Mistake(
        "goes back before it has gone forward",
        "a backward needs what its forward has kept",
        _backwards_first,
        2,
    ),
    Mistake(*_ORDER, _shifted, 2),
    Mistake(*_ORDER, _shifted_forwards, 2),
    Mistake(*_ORDER, _turned_on_odd_ranks, 2),
)
