"""Layouts that do not fit: by which wrong count of memory they would.

Who finds layouts by a count fills GPUs by that count. So of all counts by which every layout fits,
the one by which those that do not are fullest is taken for the learner's; first of counts that
forget what only few layouts have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from labkit import calc
from labkit.calc.planner.gpu_memory import in_flight, rank_parts
from labkit.grade.graders.layout_answers import Given, Wrong

_OF_HEAD = ("head inputs", "logits and loss", "gradients of the loss")
_NEARLY_FULL = 0.9
_STATES = ("parameters", "gradients", "master", "moments")


@dataclass(frozen=True)
class Rank:
    """What a rank of the pipeline holds, by the planner."""

    parts: dict[str, float]
    num_in_flight: float
    given: Given

    @classmethod
    def of(cls, given: Given, rank: int) -> "Rank":
        """Of a layout."""
        job, layout = given.task.job, given.layout
        parts = {name: part.value for name, part in rank_parts(job, layout, rank).items()}
        return cls(parts, in_flight(job, layout)[rank], given)

    def sum(self, *names: str) -> float:
        """Bytes of some parts, or of all."""
        return sum(self.parts.get(name, 0.0) for name in names or self.parts)

    def without(self, *names: str) -> float:
        """Bytes of all but some."""
        return self.sum() - self.sum(*names)

    def with_activations(self, factor: float) -> float:
        """Bytes of all, with activations so many times over."""
        return self.sum() + (factor - 1) * self.parts["activations"]


class Count(NamedTuple):
    """A wrong way to count what a rank holds."""

    name: str
    explanation: str
    nbytes: Callable[[Rank], float]
    is_seldom: bool = False
    """Whether it is about something that few layouts have, or few ranks: where it explains all that
    do not fit, that is no accident."""


def _sharded(rank: Rank) -> float:
    """As if all were sharded over dp."""
    task, layout = rank.given
    shards = Rank.of(Given(task, replace(layout, zero=3)), 0)
    return rank.without(*_STATES, "whole units") + shards.sum(*_STATES)


def _gradients_too(rank: Rank) -> float:
    layout = rank.given.layout
    share = 1 / layout.dp if layout.zero == 1 else 1.0
    return rank.without("gradients") + share * rank.sum("gradients")


def _as_1f1b(rank: Rank) -> float:
    layout = rank.given.layout
    if layout.virtual == 1:
        return rank.sum()
    num = layout.num_microbatches(rank.given.task.job.global_batch)
    return rank.with_activations(min(layout.pp, num) / rank.num_in_flight)


COUNTS: tuple[Count, ...] = (
    Count(
        "takes data parallelism for sharding",
        "dp makes copies: each of its ranks has all of its N parameters, with their "
        "gradients and optimizer states. Only ZeRO shards over dp: 1 the optimizer, 2 gradients as "
        "well, 3 parameters as well",
        _sharded,
    ),
    Count(
        "forgets the master copy",
        "in mixed precision the optimizer keeps three float32 numbers for each parameter, 12 "
        "bytes: two moments and a master copy of the weight. It is in optimizer_bytes already",
        lambda rank: rank.without("master"),
    ),
    Count(
        "counts no optimizer",
        "the optimizer's 12 bytes per parameter are the largest of the states, sharded or not",
        lambda rank: rank.without("master", "moments"),
    ),
    Count(
        "counts no gradients",
        "each parameter has a gradient, of gradient_bytes; zero 1 does not shard it",
        lambda rank: rank.without("gradients"),
    ),
    Count(
        "shards gradients with zero 1",
        "zero 1 shards the optimizer's bytes only. Gradients are whole up to zero 2",
        _gradients_too,
    ),
    Count(
        "counts activations of one microbatch",
        "the first rank of a pipeline has pp microbatches in flight before its first backward, and "
        "keeps the activations of each; interleaved pp + (pp - 1) / virtual",
        lambda rank: rank.with_activations(1 / rank.num_in_flight),
    ),
    Count(
        "counts no activations",
        "states alone do not fill a GPU: what layers keep for backward is often as much, times "
        "microbatches in flight",
        lambda rank: rank.without("activations"),
    ),
    Count(
        "cuts activations of a layer twice by tp",
        "tokens of a microbatch times bytes of a token, divided by tp once",
        lambda rank: rank.with_activations(1 / rank.given.layout.tp),
    ),
    Count(
        "takes interleaving for no more memory",
        "interleaved, the first rank has pp + (pp - 1) / virtual microbatches in flight, not pp",
        _as_1f1b,
    ),
    Count(
        "forgets the logits",
        "the last rank has the head: for each word and token 2 bytes of logits, 4 of the loss, and "
        "8 of gradients as backward begins. A large vocabulary is several layers",
        lambda rank: rank.without(*_OF_HEAD),
        is_seldom=True,
    ),
    Count(
        "forgets what ZeRO has whole",
        "with zero 2 a gradient is whole until it is reduced, with zero 3 parameters are whole "
        "while they compute",
        lambda rank: rank.without("whole units"),
        is_seldom=True,
    ),
    Count(
        "forgets the layer that is recomputed",
        "with full recomputation one layer's activations are there again, all of them, while it "
        "goes backward",
        lambda rank: rank.without("recomputed layer"),
        is_seldom=True,
    ),
)


def over_bytes(given: Given) -> float:
    """That the fullest GPU lacks."""
    return max(0.0, given.task.held_bytes(given.layout) - given.task.job.room_bytes)


def why_too_large(every: Sequence[Given], too_large: Sequence[Given]) -> Wrong:
    """By the learner's count, if one of COUNTS explains all layouts; else by the largest part."""
    first = calc.verdict(too_large[0].task.job, too_large[0].layout)
    seen = f"{too_large[0].layout}: {first.reason}{_help(too_large[0])}"
    found = []
    for count in COUNTS:
        if all(_share(count, given) <= 1 for given in every):
            fullness = sum(_share(count, given) for given in too_large) / len(too_large)
            found.append((count.is_seldom, fullness, count))
    if not found:
        term = "optimizer" if first.term in ("master", "moments") else first.term
        return Wrong(f"does not fit: {term}", seen, 2)
    count = max(found, key=lambda each: each[:2])[-1]
    others = [each.name for _, full, each in found if full > _NEARLY_FULL and each is not count]
    more = f" (Who {' or '.join(others)} would end there as well.)" if others else ""
    return Wrong(count.name, f"{count.explanation}. {seen}{more}", 2)


def _share(count: Count, given: Given) -> float:
    """Of the memory, on the rank that is fullest by a count."""
    ranks = {0, min(1, given.layout.pp - 1), given.layout.pp - 1}
    held = max(count.nbytes(Rank.of(given, rank)) for rank in sorted(ranks))
    return held / given.task.job.room_bytes


def _help(given: Given) -> str:
    """The smallest change, where it is one that the exercise knows."""
    change = calc.smallest_layout_change(given.task.job, given.layout)
    most = given.task.job.machines.gpus_per_node
    if change is None or change.layout.cp > 1 or change.layout.tp > most:
        return ""
    said = ", ".join(f"{knob} {was} -> {now}" for knob, (was, now) in change.moved.items())
    return f". The smallest change with which it fits: {said}; then {change.verdict.memory}"
