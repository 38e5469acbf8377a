"""Blocks for checkpoint_block, drawn at random, and the gradients that they should get."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from labkit.grade.evidence import Case
from labkit.grade.graders.gradient_modules import module_of
from labkit.grade.graders.gradient_values import Gradients

LEAVES = ("up.weight", "up.bias", "down.weight", "down.bias")
X = "x"
"""Stands for the input, beside the names of parameters."""
_WIDER = 4


@dataclass(frozen=True)
class Given:
    """What a case is made of."""

    parameters: dict[str, Tensor]
    """Of all blocks: "0.up.weight" is block 0's."""
    frozen: Sequence[str]
    x: Tensor
    x_needs_gradient: bool
    output_gradient: Tensor
    dropout: float
    seed: int

    @property
    def names(self) -> list[str]:
        """Of all parameters."""
        return list(self.parameters)

    @property
    def num_blocks(self) -> int:
        """How many are one after the other."""
        return len(self.parameters) // len(LEAVES)

    @property
    def needed(self) -> list[str]:
        """What is to have a gradient."""
        trained = [name for name in self.names if name not in self.frozen]
        return [X, *trained] if self.x_needs_gradient else trained

    def expected(self, output_gradient: Tensor | None = None) -> tuple[Tensor, Gradients]:
        """The output and the gradients without checkpoints: the oracle."""
        module = module_of(self.parameters, self.frozen)
        x = self.x.clone().requires_grad_(self.x_needs_gradient)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            y = x
            for index in range(self.num_blocks):
                y = Block(module.get_submodule(str(index)), self.dropout)(y)
        y.backward(self.output_gradient if output_gradient is None else output_gradient)
        held = {X: x, **dict(module.named_parameters())}
        return y.detach(), {name: p.grad for name, p in held.items() if p.grad is not None}


class Block(nn.Module):
    """x + down(dropout(tanh(up(x)))), of the parameters of another module."""

    def __init__(
        self, parts: nn.Module, dropout: float, on_pass: Callable[[Tensor], None] | None = None
    ) -> None:
        """on_pass: gets what dropout keeps, in every forward pass."""
        super().__init__()
        self.up, self.down = parts.get_submodule("up"), parts.get_submodule("down")
        self._dropout, self._on_pass = dropout, on_pass

    def forward(self, x: Tensor) -> Tensor:
        """(rows, width) to the same."""
        hidden = torch.tanh(linear(x, *_of(self.up)))
        if self._dropout:
            keeps = torch.rand(hidden.shape) >= self._dropout
            hidden = hidden * keeps / (1 - self._dropout)
        else:
            keeps = torch.ones(1, dtype=torch.bool)
        if self._on_pass is not None:
            self._on_pass(keeps)
        return x + linear(hidden, *_of(self.down))


def _of(part: nn.Module) -> tuple[Tensor, Tensor]:
    return part.get_parameter("weight"), part.get_parameter("bias")


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    return Given(*case.arguments[0])


def random_cases(rng: random.Random) -> list[Case]:
    """One block, dropout, a frozen parameter, and three blocks whose input needs no gradient."""
    frozen = rng.choice(LEAVES)
    return [
        _case("one block without dropout", 1, [], True, 0.0, rng),
        _case("one block with dropout", 1, [], True, 0.25, rng),
        _case("three blocks, x needs no gradient", 3, [], False, 0.25, rng),
        _case(f"one block, {frozen} frozen", 1, [f"0.{frozen}"], True, 0.25, rng),
    ]


def _case(
    label: str,
    num_blocks: int,
    frozen: Sequence[str],
    x_needs_gradient: bool,
    dropout: float,
    rng: random.Random,
) -> Case:
    # x takes well above the 5,056 bytes of a generator's state.
    rows, width = rng.randrange(48, 64), rng.randrange(24, 32)
    generator = torch.Generator().manual_seed(rng.getrandbits(63))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    wide = _WIDER * width
    shapes: Mapping[str, tuple[int, ...]] = dict(
        zip(LEAVES, ((wide, width), (wide,), (width, wide), (width,)), strict=True)
    )
    parameters = {
        f"{index}.{leaf}": normal(*shape) / width**0.5
        for index in range(num_blocks)
        for leaf, shape in shapes.items()
    }
    x, output_gradient = normal(rows, width), normal(rows, width)
    seed = rng.getrandbits(31)
    arguments = (parameters, list(frozen), x, x_needs_gradient, output_gradient, dropout, seed)
    return Case(label, (arguments,), (0.0,))
