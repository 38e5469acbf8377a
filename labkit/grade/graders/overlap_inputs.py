"""Modules with two branches for overlap_backward, and marks in the journal for their gradients.

    x -> left  -+
                +-> head -> loss
    x -> right -+

Autograd goes back through the branch first that went forward last. So ranks that compute the
branches in different orders finish their gradients in different orders.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from labkit.grade.evidence import Case, CaseEvidence
from labkit.grade.graders.gradient_modules import left_in, module_of, num_hooks
from labkit.grade.graders.gradient_values import Gradients
from labkit.grade.watched_group import WatchedGroup

NAMES = ("left.weight", "left.bias", "right.weight", "right.bias", "head.weight", "head.bias")
READY = "\x02ready "
"""Regions with this and a parameter's name begin when its gradient is there."""
THROUGH = "\x02through"
"""A region that begins when backward is."""
_MAX_DELAY_S = 0.002


@dataclass(frozen=True)
class Given:
    """What the ranks of a case have."""

    parameters: dict[str, Tensor]
    frozen: list[str]
    batches: list[tuple[Tensor, Tensor, bool]]
    """By rank: x, y, and whether the left branch goes forward first."""

    @property
    def trained(self) -> list[str]:
        """Names, in the order of module.parameters()."""
        return [name for name in NAMES if name not in self.frozen]

    def gradients(self, rank: int) -> Gradients:
        """Of one rank alone: the serial oracle."""
        module = module_of(self.parameters, self.frozen)
        _loss(module, *self.batches[rank]).backward()
        return {n: p.grad for n, p in module.named_parameters() if p.grad is not None}

    def mean(self) -> Gradients:
        """What is right, on every rank."""
        its = [self.gradients(rank) for rank in range(len(self.batches))]
        return {name: torch.stack([each[name] for each in its]).mean(0) for name in self.trained}


def given_in(evidence: CaseEvidence) -> Given:
    """What the grader has drawn."""
    all_of = evidence.case.arguments
    parameters, frozen, *_ = all_of[0]
    return Given(parameters, frozen, [(x, y, left_first) for _, _, x, y, left_first in all_of])


def with_loss(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: forward, the call, then how many hooks it leaves, and what else is left."""
    parameters, frozen, x, y, left_first = arguments
    module = module_of(parameters, frozen)
    loss = _loss(module, x, y, left_first)
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    marked: list[str] = []

    def mark(parameter: Tensor) -> None:
        with group.region(f"{READY}{names[parameter]}"):
            if not marked:
                torch.autograd.Variable._execution_engine.queue_callback(through)
            marked.append(names[parameter])

    def through() -> None:
        with group.region(THROUGH):
            marked.clear()

    # Before the hooks of the code under test, and so they are called first.
    ours = [p.register_post_accumulate_grad_hook(mark) for p in names if p.requires_grad]
    function(module, loss, group)
    num_left = num_hooks(module) - len(ours)
    return [torch.tensor([num_left]), *left_in(module, NAMES)]


def _loss(module: nn.Module, x: Tensor, y: Tensor, left_first: bool) -> Tensor:
    branches = {}
    for name in ("left", "right") if left_first else ("right", "left"):
        weight, bias = (module.get_parameter(f"{name}.{leaf}") for leaf in ("weight", "bias"))
        branches[name] = torch.tanh(linear(x, weight, bias))
    head = [module.get_parameter(f"head.{leaf}") for leaf in ("weight", "bias")]
    return ((linear(branches["left"] * branches["right"], *head) - y) ** 2).mean()


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """One order on all ranks, frozen ones, different orders, a late rank; the last is altered."""
    n = world_size
    same = _case("one order on all ranks", [True] * n, [], rng)
    frozen = rng.sample(NAMES[:4], 2)
    some = _case(f"{' and '.join(frozen)} frozen", [True] * n, frozen, rng)
    orders = [rank % 2 == 0 for rank in range(n)]
    differ = _case("another order of gradients on odd ranks", orders, [], rng)
    late = rng.randrange(n)
    delayed = _case(f"rank {late} late, another order on odd ranks", orders, [], rng)
    delays_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
    cases = [same, some, differ, replace(delayed, delays_s=delays_s)]
    return cases if n == 1 else [*cases, replace(same, altered=(rng.randrange(n), 1))]


def _case(label: str, left_first: list[bool], frozen: list[str], rng: random.Random) -> Case:
    features, width, examples = rng.randrange(2, 4), rng.randrange(3, 6), rng.randrange(2, 5)
    generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    # Both branches alike: what gets mixed up between them fits, and nothing fails.
    branch = ((width, features), (width,))
    shapes = (*branch, *branch, (1, width), (1,))
    parameters = {name: normal(*shape) for name, shape in zip(NAMES, shapes, strict=True)}
    arguments = tuple(
        (parameters, frozen, normal(examples, features), normal(examples, 1), each)
        for each in left_first
    )
    return Case(label, arguments, (0.0,) * len(arguments))
