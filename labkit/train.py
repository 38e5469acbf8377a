"""The training loop of all strategies, and the serial step: the oracle of every one of them.

    fit           step(batch 0), step(batch 1), ...
    train_step    batch -> loss -> backward -> optimizer.step        one process, the whole batch

A strategy has a step of its own on the same global batches, and says how the ranks' parts of the
losses add up and how their parameters are put together: see train_*.py in each room. It is right
when it follows `train_serial` step by step. How closely it can, no more than rounding decides: sums
taken in another order differ by a few eps, and the steps amplify that.
Choose SGD to see a wrong average: AdamW divides each gradient by its own running size, so a sum in
the place of a mean changes almost nothing there.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit import arguments
from labkit.comm import Group
from labkit.data import Batch, Batches, Corpus, counted
from labkit.model import GPT, GPTConfig
from labkit.optimizer import SGD, AdamW, Optimizer

OptimizerName = Literal["adamw", "sgd"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of training a GPT. Raises ValueError for a value that cannot train anything."""

    num_steps: int = 20
    num_sequences: int = 8  # in the global batch, over all ranks
    optimizer: OptimizerName = "adamw"
    learning_rate: float = 3e-3
    momentum: float = 0.0  # SGD's
    seed: int = 0  # for parameters and batches
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        arguments.whole("num_steps", self.num_steps, "0 or more", least=0)
        arguments.whole("num_sequences", self.num_sequences, "1 or more")
        arguments.number(
            "learning_rate", self.learning_rate, "above 0; 3e-3 is usual here", above=0
        )
        arguments.number("momentum", self.momentum, "0 or more, below 1", least=0, below=1)
        if self.optimizer not in get_args(OptimizerName):
            names = " or ".join(get_args(OptimizerName))
            raise ValueError(f"optimizer={self.optimizer!r} is not known; choose {names}")
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise ValueError(
                f"dtype={self.dtype!r} has no gradients; choose torch.float32 or float64"
            )

    def batches(self, corpus: Corpus | None, context: int) -> Batches:
        """Return the global batches of this run; None: of Python's standard library."""
        if corpus is None:
            corpus = Corpus.standard_library()
        return Batches(corpus, self.num_sequences, context, self.seed)

    def make_optimizer(self, parameters: Iterable[Tensor]) -> Optimizer:
        """Return a fresh optimizer over `parameters`."""
        optimizer_class, options = self.optimizer_class()
        return optimizer_class(parameters, **options)

    def optimizer_class(self) -> tuple[Callable[..., Optimizer], dict[str, Any]]:
        """Return the optimizer's class, and its settings by name."""
        if self.optimizer == "sgd":
            return SGD, {"learning_rate": self.learning_rate, "momentum": self.momentum}
        return AdamW, {"learning_rate": self.learning_rate}


@dataclass(frozen=True, eq=False)
class Trained:
    """Result of a training run: the global loss before each step, and the parameters at the end.

    The parameters are detached copies on the CPU, by their names in GPT.
    """

    losses: list[float]
    parameters: dict[str, Tensor] = field(repr=False)

    def largest_difference(self, other: "Trained") -> float:
        """Return the largest absolute difference between two sets of parameters.

        Raises ValueError if their names differ.
        """
        if self.parameters.keys() != other.parameters.keys():
            names = sorted(self.parameters.keys() ^ other.parameters.keys())
            raise ValueError(f"only one of the two has {names}; compare runs of one GPTConfig")
        return max(
            (mine - other.parameters[name]).abs().max().item()
            for name, mine in self.parameters.items()
        )


Part = TypeVar("Part")


def fit(
    step: Callable[[Batch], Part],
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
) -> list[Part]:
    """Return the training loop: `step` on one global batch after the other, the same on every rank.

    Returns what the steps returned. corpus: None for Python's standard library.
    """
    batches = settings.batches(corpus, config.context)
    return [step(batches.at(index)) for index in range(settings.num_steps)]


def summed_losses(parts: list[Any], group: Group) -> list[Any]:
    """Return the global losses on every rank, of which each rank of `group` has a part.

    parts: for each step a number, or a list of numbers.
    Wire: one all-reduce for all steps. One per step would be a message that no step waits for.
    """
    losses = torch.tensor(parts, dtype=torch.float64, device=group.device)
    return group.all_reduce(losses).tolist()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of the next token, in nats, over the targets that count.

    An empty batch, the share of a rank without sequences, has the loss 0 and zero gradients.
    """
    logits_BTV = model(batch.inputs_BT)
    total = F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets_BT.flatten(), reduction="sum")
    return total / counted(batch.targets_BT).sum().clamp(min=1)


def train_step(
    model: nn.Module, optimizer: Optimizer, batch: Batch, max_norm: float | None = None
) -> float:
    """One step on one batch; the loss before it. No other process is involved.

    max_norm: of the whole gradient, which is scaled down to it where it is longer; None: never.
    """
    optimizer.zero_grad()
    value = loss(model, batch)
    value.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return value.item()


def train_serial(
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    device: torch.device | str = "cpu",
    max_norm: float | None = None,
) -> Trained:
    """Train a GPT in this process. corpus: None for Python's standard library.

    max_norm: see train_step.
    """
    model = GPT(config, settings.seed, settings.dtype).to(device)
    optimizer = settings.make_optimizer(model.parameters())

    def step(batch: Batch) -> float:
        return train_step(model, optimizer, batch.to(device), max_norm)

    return Trained(fit(step, config, settings, corpus), copy_parameters(model))


def copy_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name, detached copies on the CPU; a tied one appears once."""
    return {name: p.detach().cpu().clone() for name, p in model.named_parameters()}
