"""Gradients on the ranks of a mesh for global_grad_norm: sharded, copied, tied, absent, extreme.

The axes come in any order, so that a rank's number says nothing of where it is.
"""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.grade.evidence import Case

AXES = ("dp", "pp", "tp")
_MAX_DELAY_S = 0.002


class Held(NamedTuple):
    """One parameter of a rank, by what matters of it."""

    gradient: Tensor | None
    copied_over: tuple[str, ...]
    is_tied: bool


@dataclass(frozen=True)
class Given:
    """What the ranks of a case have."""

    sizes: Mapping[str, int]
    """By axis, slowest first."""
    held: list[list[Held]]
    """By rank."""
    max_norm: float

    def place(self, rank: int) -> dict[str, int]:
        """The coordinates of a rank."""
        everyone = itertools.product(*map(range, self.sizes.values()))
        return dict(zip(self.sizes, next(itertools.islice(everyone, rank, None))))

    def counts(self, rank: int, held: Held) -> bool:
        """Whether this rank is the first of those that have the same gradient."""
        place = self.place(rank)
        is_last = place["pp"] == self.sizes["pp"] - 1 and self.sizes["pp"] > 1
        is_first = all(place[axis] == 0 for axis in held.copied_over)
        return is_first and not (held.is_tied and is_last)

    def norm(self) -> float:
        """Of the whole gradient: the oracle."""
        squares = [
            squared(each.gradient)
            for rank, all_of in enumerate(self.held)
            for each in all_of
            if self.counts(rank, each)
        ]
        return float(sum(squares)) ** 0.5


def squared(gradient: Tensor | None) -> float:
    """The sum of squares, in float64."""
    return 0.0 if gradient is None else float(gradient.double().square().sum())


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    sizes, max_norm = case.arguments[0][0], case.arguments[0][4]
    held = [
        [Held(*each) for each in zip(gradients, map(tuple, copied), tied, strict=True)]
        for _, gradients, copied, tied, _ in case.arguments
    ]
    return Given(sizes, held, max_norm)


@dataclass(frozen=True)
class Plan:
    """How a case is drawn."""

    what: str
    sizes: tuple[int, int, int]
    """dp, pp, tp"""
    is_zero: bool = False
    """Whether gradients are sharded over dp, and not averaged."""
    order: tuple[str, ...] | None = None
    """Of the axes, slowest first; None: any."""
    scale: float = 1.0
    share: float = 0.1
    """max_norm as a share of the norm; 1 or more: nothing is clipped."""
    empty: tuple[int, ...] = ()
    """Stages without parameters."""
    absent: float = 0.0
    """How likely a parameter has no gradient."""
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    is_late: bool = False
    is_altered: bool = False


@dataclass
class _Draw:
    """Gradients by what they are, so that copies are equal."""

    plan: Plan
    rng: random.Random
    made: dict[Any, Tensor | None] = field(default_factory=dict)

    def gradient(self, *key: Any) -> Tensor | None:
        if key not in self.made:
            generator = torch.Generator().manual_seed(self.rng.getrandbits(63))
            shape = self._shape(key[0])
            numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
            dtype = self.rng.choice(self.plan.dtypes)
            is_absent = self.rng.random() < self.plan.absent
            self.made[key] = None if is_absent else (numbers * self.plan.scale).to(dtype)
        return self.made[key]

    def stage(self, place: Mapping[str, int], num_stages: int) -> Iterator[Held]:
        """A stage's matrices and biases, sharded over tp, its norms and a gate, which are not, and
        tied embeddings. One matrix has no rows: there were fewer of them than shards."""
        dp, pp, tp = (place[axis] for axis in AXES)
        shard = (dp,) if self.plan.is_zero else ()
        averaged = () if self.plan.is_zero else ("dp",)
        if pp in self.plan.empty:
            return
        for layer in range(2):
            yield Held(self.gradient("matrix", layer, pp, tp, *shard), averaged, False)
            yield Held(self.gradient("bias", layer, pp, tp, *shard), averaged, False)
            norm = self.gradient("norm", layer, pp, *shard)
            yield Held(norm, (*averaged, "tp"), False)
        yield Held(self.gradient("gate", pp, *shard), (*averaged, "tp"), False)
        yield Held(self.gradient("no rows", pp, tp, *shard), averaged, False)
        if pp in (0, num_stages - 1):
            yield Held(self.gradient("embedding", tp, *shard), averaged, True)

    def _shape(self, kind: str) -> tuple[int, ...]:
        width = self.rng.randrange(3, 9)
        if kind in ("norm", "bias"):
            return (width,)
        if kind == "gate":
            return ()
        return (0 if kind == "no rows" else self.rng.randrange(1, 5), width)


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Meshes of every kind, and gradients that are absent, zero, huge or tiny."""
    return [_case(plan, rng) for plan in _plans(world_size, rng)]


def _plans(n: int, rng: random.Random) -> list[Plan]:
    if n == 8:
        both = (2, 2, 2)
        return [
            Plan("averaged", both, order=AXES[::-1]),
            Plan("sharded over dp", both, is_zero=True),
        ]
    if n == 3:
        return [
            Plan("averaged", (1, 1, 3)),
            Plan("three stages", (1, 3, 1), absent=0.3),
            Plan("sharded over dp", (3, 1, 1), is_zero=True, share=3.0),
        ]
    if n == 1:
        return [Plan("one rank", (1, 1, 1)), Plan("not clipped", (1, 1, 1), share=1.5)]
    mesh, edges = (1, 2, 2), [(1, 2, 2), (2, 2, 1), (2, 1, 2)]
    return [
        Plan("averaged", mesh),
        Plan("averaged, not clipped", (2, 1, 2), share=rng.uniform(1.2, 4)),
        Plan("sharded over dp", (2, 1, 2), is_zero=True),
        Plan("sharded over dp", (2, 2, 1), is_zero=True, is_late=True),
        Plan("averaged", (2, 2, 1)),
        Plan("gradients absent", mesh, absent=0.4),
        Plan("a stage without parameters", (1, 4, 1), empty=(rng.choice((1, 2)),)),
        Plan("gradients of 1e25", rng.choice(edges), scale=1e25),
        Plan("gradients of 1e-30", rng.choice(edges), scale=1e-30),
        Plan("bfloat16 and float32", mesh, dtypes=(torch.bfloat16, torch.float32)),
        Plan("gradients of 0", mesh, scale=0.0),
        Plan("averaged", mesh, is_altered=True),
    ]


def _case(plan: Plan, rng: random.Random) -> Case:
    draw, order = _Draw(plan, rng), plan.order or rng.sample(AXES, len(AXES))
    sizes = {axis: plan.sizes[AXES.index(axis)] for axis in order}
    places = list(itertools.product(*map(range, sizes.values())))
    held = [list(draw.stage(dict(zip(sizes, place)), sizes["pp"])) for place in places]
    norm = Given(sizes, held, 1.0).norm()
    max_norm = plan.share * norm if norm else 1.0
    arguments = tuple(
        (
            sizes,
            [each.gradient for each in its],
            [rng.sample(each.copied_over, len(each.copied_over)) for each in its],
            [each.is_tied for each in its],
            max_norm,
        )
        for its in held
    )
    n = len(places)
    late = rng.randrange(n) if plan.is_late else None
    delays_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    mesh = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    case = Case(f"{mesh}, {plan.what}", arguments, delays_s)
    return replace(case, altered=(rng.randrange(n), 1)) if plan.is_altered else case
