"""Modules with gradients for average_gradients: plain, tied, frozen, unused on a rank, mixed."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from labkit.grade.evidence import Case, CaseEvidence
from labkit.grade.graders.gradient_modules import left_in, module_of
from labkit.grade.watched_group import WatchedGroup

Tensor = torch.Tensor
_MAX_DELAY_S = 0.002
# Up to which numbers are drawn: sums of a few, each times 4 ranks, are exact, and in no smaller
# dtype. In the first case all are small, and a sum that is wrong can be read.
_SMALL = 10
_LARGEST = {torch.float32: 2**19, torch.float64: 2**48, torch.bfloat16: _SMALL}


@dataclass(frozen=True)
class Given:
    """What the ranks of a case have."""

    parameters: dict[str, Tensor]
    gradients: list[dict[str, Tensor]]
    """By rank; without those that the rank's loss did not use."""
    frozen: tuple[str, ...] = ()
    tied: Mapping[str, str] | None = None

    @property
    def trained(self) -> list[str]:
        """Names of what has a gradient, a tied one by its first name."""
        return [name for name in self.parameters if name not in self.frozen]

    def gradient(self, rank: int, name: str) -> Tensor:
        """Of one rank; none counts as zeros."""
        given = self.gradients[rank].get(name)
        return torch.zeros_like(self.parameters[name]) if given is None else given


def given_in(evidence: CaseEvidence) -> Given:
    """What the grader has drawn."""
    all_of = evidence.case.arguments
    parameters, _, frozen, tied = all_of[0]
    return Given(parameters, [each[1] for each in all_of], tuple(frozen), tied)


def with_module(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: a module whose backward has been, the call, and what is left."""
    parameters, gradients, frozen, tied = arguments
    module = module_of(parameters, frozen, tied)
    for name, gradient in gradients.items():
        module.get_parameter(name).grad = gradient.clone()
    function(module, group)
    return left_in(module, list(parameters))


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Simple ones first. In the last, what one rank hands to a collective is changed."""
    plain = _given(world_size, rng, largest=dict.fromkeys(_LARGEST, _SMALL))
    unused = _without_gradient(_given(world_size, rng), rng)
    tied = replace(_given(world_size, rng), tied={"head.weight": "embedding.weight"})
    frozen = _frozen(_given(world_size, rng), rng)
    mixed = _given(world_size, rng, (torch.float32, torch.float64, torch.bfloat16))
    late = rng.randrange(world_size)
    delays_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(world_size))
    altered = replace(_case("float32", plain), altered=(rng.randrange(world_size), 1))
    return [
        _case("float32", plain),
        _case("embedding and head tied", tied),
        _case(f"{' and '.join(frozen.frozen)} frozen", frozen),
        *([] if world_size == 1 else [_case(_unused_label(unused), unused)]),
        replace(_case(f"mixed dtypes, rank {late} late", mixed), delays_s=delays_s),
        *([] if world_size == 1 else [altered]),
    ]


def _given(
    world_size: int,
    rng: random.Random,
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    largest: Mapping[torch.dtype, int] = _LARGEST,
) -> Given:
    width, vocabulary = rng.randrange(2, 5), rng.randrange(5, 8)
    shapes = {
        "embedding.weight": (vocabulary, width),
        "layer.first.weight": (2 * width, width),
        "layer.first.bias": (2 * width,),
        "layer.second.weight": (width, 2 * width),
        "layer.second.bias": (width,),
        "scale": (),
    }
    kinds = {name: dtypes[i % len(dtypes)] for i, name in enumerate(shapes)}

    def whole(name: str) -> Tensor:
        """Multiples of the number of ranks: a mean of them is exact in any of the dtypes."""
        generator = torch.Generator().manual_seed(rng.getrandbits(63))
        numbers = torch.randint(1, largest[kinds[name]], shapes[name], generator=generator)
        signs = torch.randint(0, 2, shapes[name], generator=generator) * 2 - 1
        return (numbers * signs * world_size).to(kinds[name])

    gradients = [{name: whole(name) for name in shapes} for _ in range(world_size)]
    return Given({name: whole(name) for name in shapes}, gradients)


def _frozen(given: Given, rng: random.Random) -> Given:
    frozen = ("embedding.weight", rng.choice(("layer.first.bias", "layer.second.weight")))
    gradients = [
        {name: value for name, value in each.items() if name not in frozen}
        for each in given.gradients
    ]
    return replace(given, frozen=frozen, gradients=gradients)


def _without_gradient(given: Given, rng: random.Random) -> Given:
    rank, layer = rng.randrange(len(given.gradients)), rng.choice(("first", "second"))
    gradients = [dict(each) for each in given.gradients]
    for leaf in ("weight", "bias"):
        del gradients[rank][f"layer.{layer}.{leaf}"]
    return replace(given, gradients=gradients)


def unused_in(given: Given) -> dict[int, list[str]]:
    """By rank, the parameters that are trained and have no gradient there."""
    unused = {
        rank: [name for name in given.trained if name not in each]
        for rank, each in enumerate(given.gradients)
    }
    return {rank: names for rank, names in unused.items() if names}


def _unused_label(given: Given) -> str:
    return "; ".join(
        f"rank {r} does not use {' and '.join(n)}" for r, n in unused_in(given).items()
    )


def _case(label: str, given: Given) -> Case:
    arguments = tuple(
        (given.parameters, gradients, list(given.frozen), dict(given.tied or {}))
        for gradients in given.gradients
    )
    return Case(label, arguments, (0.0,) * len(arguments))
