"""Wrong rows for interleaved 1F1B, by name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit.grade.graders.schedule_pipelines import Pipeline
from labkit.grade.graders.schedules import Mistake
from labkit.pipeline import Kind, Op

F, B = Kind.F, Kind.B
Count = Callable[[Pipeline, int], int]
Stage = Callable[[Pipeline, int, int], int]


def _warmup(pipeline: Pipeline, rank: int) -> int:
    p = pipeline.num_ranks
    return 2 * (p - rank - 1) + (pipeline.virtual - 1) * p


def _stage(pipeline: Pipeline, rank: int, turn: int) -> int:
    return turn * pipeline.num_ranks + rank


@dataclass(frozen=True)
class Idea:
    """An interleaved schedule, as it stands right."""

    warmup: Count = _warmup
    stage: Stage = _stage
    in_a_round: Callable[[Pipeline], int] = lambda pipeline: pipeline.num_ranks
    backward_turns: bool = True
    """Whether backward begins with the rank's last stage."""

    def row(self, pipeline: Pipeline, rank: int) -> Iterator[Op]:
        """What it makes of a rank's row."""
        total = pipeline.num_microbatches * pipeline.virtual
        warmup = max(0, min(self.warmup(pipeline, rank), total))
        for n in range(warmup):
            yield self._nth(pipeline, rank, F, n)
        for n in range(warmup, total):
            yield self._nth(pipeline, rank, F, n)
            yield self._nth(pipeline, rank, B, n - warmup)
        for n in range(total - warmup, total):
            yield self._nth(pipeline, rank, B, n)

    def _nth(self, pipeline: Pipeline, rank: int, kind: Kind, n: int) -> Op:
        size = self.in_a_round(pipeline)
        rounds, within = divmod(n, size * pipeline.virtual)
        turn, microbatch = divmod(within, size)
        if kind is B and self.backward_turns:
            turn = pipeline.virtual - 1 - turn
        return Op(kind, self.stage(pipeline, rank, turn), rounds * size + microbatch)


def _first_stage_only(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    only = Pipeline(pipeline.num_ranks, pipeline.num_microbatches)
    return Idea(lambda pipeline, rank: pipeline.num_ranks - rank - 1).row(only, rank)


def _one_stage_at_a_time(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    p, m = pipeline.num_ranks, pipeline.num_microbatches
    for kind in (F, B):
        turns = range(pipeline.virtual)
        for turn in turns if kind is F else reversed(turns):
            yield from (Op(kind, turn * p + rank, microbatch) for microbatch in range(m))


def _depth_first(pipeline: Pipeline, rank: int) -> Iterator[Op]:
    stages = range(rank, pipeline.num_stages, pipeline.num_ranks)
    for microbatch in range(pipeline.num_microbatches):
        yield from (Op(F, stage, microbatch) for stage in stages)
        yield from (Op(B, stage, microbatch) for stage in reversed(stages))


def _without_cooldown(pipeline: Pipeline, rank: int) -> list[Op]:
    row = list(Idea().row(pipeline, rank))
    return row[: -min(_warmup(pipeline, rank), len(row) // 2)]


_BLOCKS = (
    "stages in blocks, and not dealt out",
    "with neighbouring stages on a rank it is the old pipeline with v-th parts: the first rank's v "
    "stages come before the second rank has anything. Stage s is on rank s mod p, so that a "
    "microbatch is at the last rank after p small stages",
)

MISTAKES: tuple[Mistake, ...] = (
    Mistake(*_BLOCKS, Idea(stage=lambda pipe, rank, turn: rank * pipe.virtual + turn).row, 1),
    Mistake(
        "numbers the stages on each rank by themselves",
        "a stage has one number in the whole model: the rank's stages are r, r + p, r + 2 p, ...",
        Idea(stage=lambda pipe, rank, turn: turn).row,
        3,
    ),
    Mistake(
        "takes all microbatches through a stage before the next one",
        "p microbatches are enough to keep p ranks busy: by then the first of them is through the "
        "last rank's stage and can enter the next turn. With all m the second turn begins late, "
        "and nothing can go back before",
        Idea(in_a_round=lambda pipe: pipe.num_microbatches).row,
    ),
    Mistake(
        "goes back through its first stage first",
        "backward comes from the end of the model: a rank's last stage gets its gradient first. "
        "Turn k of a round is stage v - 1 - k of the rank's own on the way back",
        Idea(backward_turns=False).row,
    ),
    Mistake(
        "the warmup of 1F1B",
        "before the first backward a microbatch must have gone through all v turns: (v - 1) p "
        "forwards, besides those that fill the way to the end and back",
        Idea(lambda pipe, rank: pipe.num_ranks - rank - 1).row,
        1,
    ),
    Mistake(
        "one forward for each rank behind, where it takes two",
        "if messages took no time, one would do. But then each rank ends an F, or a B, just when "
        "the next rank begins it, and a message that takes time makes everybody wait in every "
        "turn. With two, what a rank begins with has been under way while it did something else",
        Idea(
            lambda pipe, rank: pipe.num_ranks - rank - 1 + (pipe.virtual - 1) * pipe.num_ranks
        ).row,
    ),
    Mistake(
        "one forward too many before the first backward",
        "the warmup has 2 (p - r - 1) + (v - 1) p forwards; the steady phase begins with one more",
        Idea(lambda pipe, rank: _warmup(pipe, rank) + 1).row,
    ),
    Mistake(
        "one forward too few before the first backward",
        "the warmup has 2 (p - r - 1) + (v - 1) p forwards, and the steady phase begins with one "
        "more: that is when the first backward can come",
        Idea(lambda pipe, rank: _warmup(pipe, rank) - 1).row,
    ),
    Mistake(
        "a round too much in the warmup",
        "of the v turns the last one is not part of the warmup: with its first forward the steady "
        "phase begins, on the last rank",
        Idea(lambda pipe, rank: _warmup(pipe, rank) + pipe.num_ranks).row,
    ),
    Mistake(
        "the same warmup on every rank",
        "the last rank goes back as soon as its last stage has seen a microbatch; the first waits "
        "for the way there and back",
        Idea(lambda pipe, rank: _warmup(pipe, 0)).row,
    ),
    Mistake(
        "all forwards, then all backwards",
        "that is GPipe on v stages per rank: the bubble is small, and everything is held at once",
        _one_stage_at_a_time,
        1,
    ),
    Mistake(
        "all forwards, then all backwards",
        "that is GPipe on v stages per rank: the bubble is small, and everything is held at once",
        Idea(lambda pipe, rank: pipe.num_microbatches * pipe.virtual).row,
        1,
    ),
    Mistake(
        "one microbatch at a time",
        "a microbatch goes through and back before the next one begins",
        _depth_first,
        1,
    ),
    Mistake(
        "leaves out all stages but the first",
        "each rank has v stages, r, r + p, ..., and every microbatch goes through all of them",
        _first_stage_only,
        1,
    ),
    Mistake(
        "forgets the cooldown",
        "as many backwards as the warmup had forwards are left when the forwards are done",
        _without_cooldown,
        3,
    ),
)
