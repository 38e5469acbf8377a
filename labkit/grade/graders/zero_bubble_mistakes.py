"""Wrong rows for a zero-bubble schedule, by name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit.grade.graders.schedule_pipelines import Pipeline
from labkit.grade.graders.schedules import Mistake
from labkit.pipeline import Kind, Op, one_f_one_b

F, B, I, W = Kind  # noqa: E741
Count = Callable[[Pipeline, int], int]


@dataclass(frozen=True)
class Idea:
    """1F1B with split backwards, as it stands right: ZB-H1."""

    warmup: Count = lambda pipe, rank: pipe.num_ranks - rank - 1
    behind: Count = lambda pipe, rank: rank
    """How many weight gradients a rank puts off."""

    def row(self, pipeline: Pipeline, rank: int) -> Iterator[Op]:
        """What it makes of a rank's row."""
        m = pipeline.num_microbatches
        warmup = max(0, min(self.warmup(pipeline, rank), m))
        behind = max(0, min(self.behind(pipeline, rank), m))
        for microbatch in range(warmup):
            yield Op(F, rank, microbatch)
        for microbatch in range(m):
            if microbatch + warmup < m:
                yield Op(F, rank, microbatch + warmup)
            yield Op(I, rank, microbatch)
            if microbatch >= behind:
                yield Op(W, rank, microbatch - behind)
        for microbatch in range(m - behind, m):
            yield Op(W, rank, microbatch)


def _changed(change: Callable[[list[Op]], list[Op]]) -> Callable[[Pipeline, int], list[Op]]:
    """The right row, changed."""
    return lambda pipeline, rank: change(list(Idea().row(pipeline, rank)))


def _early_in_the_middle(pipeline: Pipeline, rank: int) -> list[Op]:
    """One forward more before the first I, on all ranks but the first and the last."""
    row = list(Idea().row(pipeline, rank))
    early = Op(F, rank, pipeline.num_ranks - rank)
    if 0 < rank < pipeline.num_ranks - 1 and early in row:
        row.remove(early)
        row.insert(row.index(Op(I, rank, 0)), early)
    return row


def _swapped(row: list[Op]) -> list[Op]:
    other = {F: F, I: W, W: I}
    return [Op(other[op.kind], op.stage, op.microbatch) for op in row]


def _w_before_i(pipeline: Pipeline, rank: int) -> list[Op]:
    halves = {F: (F,), B: (W, I)}
    whole = one_f_one_b(rank, pipeline.num_ranks, pipeline.num_microbatches)
    return [Op(kind, stage, i) for each, stage, i in whole for kind in halves[each]]


def _without_the_rest(pipeline: Pipeline, rank: int) -> list[Op]:
    row = list(Idea().row(pipeline, rank))
    return row[: len(row) - min(rank, pipeline.num_microbatches)]


def _gpipe(pipeline: Pipeline, rank: int) -> list[Op]:
    return [Op(kind, rank, i) for kind in (F, I, W) for i in range(pipeline.num_microbatches)]


def _gpipe_at_once(pipeline: Pipeline, rank: int) -> list[Op]:
    every = range(pipeline.num_microbatches)
    row = [Op(F, rank, i) for i in every]
    return row + [Op(kind, rank, i) for i in every for kind in (I, W)]


def _naive(pipeline: Pipeline, rank: int) -> list[Op]:
    return [Op(kind, rank, i) for i in range(pipeline.num_microbatches) for kind in (F, I, W)]


_SWAPPED = (
    "W before I",
    "the rank in front waits for I, and nobody waits for W: that order is the whole idea. And a W "
    "needs what the I has computed on its way through the stage",
)
_GPIPE = (
    "is GPipe",
    "taking in all microbatches first leaves enough to do, and holds m of them: go back as soon as "
    "it can be done, as 1F1B does",
)

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "keeps the backward whole",
        "a B is done in one go, and the rank in front waits for all of it, though it needs the I "
        "alone",
        lambda pipeline, rank: one_f_one_b(rank, pipeline.num_ranks, pipeline.num_microbatches),
        1,
    ),
    Mistake(
        "puts every W right behind its I",
        "the rank in front gets its gradient earlier, which is a part of it. But behind the last "
        "forward a rank then has nothing to do between two gradients that arrive, and its W are "
        "gone: rank r keeps some for that",
        Idea(behind=lambda pipe, rank: 0).row,
    ),
    Mistake(
        "puts every W at the end",
        "there is always something left to do, and nothing can be let go of: a microbatch is held "
        "until its W. Put off only as many as the gaps need, r of them on rank r",
        Idea(behind=lambda pipe, rank: pipe.num_microbatches).row,
    ),
    Mistake(
        "as many W put off on every rank",
        "rank r warms up with p - r - 1 forwards, and can put off r W within the p microbatches "
        "that it may hold",
        Idea(behind=lambda pipe, rank: pipe.num_ranks - 1).row,
    ),
    Mistake(
        "puts off the W of the first ranks",
        "the first rank warms up with p - 1 forwards, and has no room for a W put off; the last "
        "one has, and it is the one whose I everybody waits for",
        Idea(behind=lambda pipe, rank: pipe.num_ranks - 1 - rank).row,
    ),
    Mistake(
        "one W too many put off",
        "rank r holds p - r microbatches by 1F1B, so that there is room for r more",
        Idea(behind=lambda pipe, rank: rank + 1).row,
        3,
    ),
    Mistake(
        "one W too few put off",
        "rank r may hold p microbatches, p - r by 1F1B and r for their W. With fewer a rank comes "
        "to its I later, and the ranks in front with it",
        Idea(behind=lambda pipe, rank: rank - 1).row,
        3,
    ),
    Mistake(
        "the same warmup on every rank",
        "the last rank can go back at once. What it may hold is better used for W that are put off",
        Idea(lambda pipe, rank: pipe.num_ranks - 1, lambda pipe, rank: 0).row,
    ),
    Mistake(
        "the same warmup on every rank",
        "the last rank can go back at once. What it may hold is better used for W that are put off",
        Idea(lambda pipe, rank: pipe.num_ranks - 1).row,
    ),
    Mistake(
        "one forward too early on the ranks in the middle",
        "rank r has done p - r forwards when its first I comes. One more fits into the wait only "
        "where an I takes as long as an F: a shorter I has come before, and stands behind that "
        "forward, with all ranks in front waiting for it",
        _early_in_the_middle,
        3,
    ),
    Mistake(*_SWAPPED, _changed(_swapped)),
    Mistake(*_SWAPPED, _w_before_i),
    Mistake(
        "leaves out every W",
        "without them no weight has a gradient: I is for the rank in front, W for the optimizer",
        _changed(lambda row: [op for op in row if op.kind is not W]),
        1,
    ),
    Mistake(
        "forgets the W that were put off",
        "what has been put off is still to be done, when there is nothing else left",
        _without_the_rest,
        3,
    ),
    Mistake(
        "leaves out every I",
        "the rank in front waits for it, and so does the rank's own W",
        _changed(lambda row: [op for op in row if op.kind is not I]),
        1,
    ),
    Mistake(*_GPIPE, _gpipe, 1),
    Mistake(*_GPIPE, _gpipe_at_once, 1),
    Mistake(
        "one microbatch at a time",
        "a microbatch goes through and back before the next one begins",
        _naive,
        1,
    ),
)
