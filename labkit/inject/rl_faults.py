"""Nine faults in reinforcement learning of a language model, and a small job that has one of them.

Each fault is a subclass of a rank of rung 6 (labkit/rl/language.py) that replaces a method or two.
The job goes on, or seems to: no fault raises an error. `start` is the first version with the fault.

name         what goes wrong                                                     class
no sync      weights never reach the engines, which count versions all the same  KeepsOldWeights
sleep        weights are lost in a sleep, and not sent again                     ForgetsInSleep
half update  an error ends updates half way, and the engines go on               StopsHalfWay
recomputed   the clip is anchored to log-probabilities that the trainer computes Recomputes
precision    the engines compute in bfloat16, the trainers in float32            ComputesInBfloat16
sampling     log-probabilities are recorded after temperature or top-p           RecordsProcessed
router       the engines' routers choose other experts near ties                 RoutesOtherwise
long tail    one answer of each batch does not stop                              DoesNotStop
overload     more requests than the engines have room for; some are never served DropsRequests

    trained = rollout_run("sleep", difficulty=2, seed=7)      real ranks: 2 trainers, 2 engines
    profile.name_fault(trained.figures, trained.stalled)      what an engineer would say

difficulty    versions that answers may be behind            the fault begins
1             0: synchronous                                 with version 1
2             1: one step off                                with version 2, 3 or 4
3             2, partial answers, and engine 1 is slow       with version 4, 5 or 6

profile/rl_diagnosis.py says how each shows in the figures. Papers and reports are there, too.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.data import Batch
from labkit.gpt_config import GPTConfig
from labkit.launch.run import run
from labkit.rl.batch_invariant import InvariantLinear
from labkit.rl.completion import Completion
from labkit.rl.copying import VOCAB, Copying
from labkit.rl.figures import Figures
from labkit.rl.generator import Generator
from labkit.rl.grpo_trainer import Trainer
from labkit.rl.invariant_gpt import RoutedMLP
from labkit.rl.language import Parts, Trained, train
from labkit.rl.settings import Settings
from labkit.rl.weight_sync import install
from labkit.serving.requests import Request, Sampling, distribution
from labkit.serving.serving_engine import QueueFull

_TEMPERATURE, _TOP_P = {1: 0.4, 2: 0.5, 3: 0.6}, {1: 0.6, 2: 0.7, 3: 0.8}
"""By difficulty. A case has one of the two."""
_LEAST_PROBABILITY = 1e-6
"""Recorded for tokens that top-p removes: tables and pictures have no infinity."""
_FLIPPED = 0.25
"""Share of the tokens of a pass."""
_DIGITS, _MOST_TOKENS = 2, 20
_TIMEOUT_S = 100.0
"""Far above the seconds of a job: a real hang ends with a verdict, too."""


@dataclass(frozen=True, kw_only=True)
class FaultySettings(Settings):
    """A job's settings, and the fault's."""

    start: int = 1
    """The first version with the fault, at least 1."""
    temperature: float = 1.0
    top_p: float = 1.0


class FaultyGenerator(Generator):
    """An engine whose fault is on from a version on."""

    settings: FaultySettings
    is_on = False

    def update(self, version: int) -> None:
        """Like Generator."""
        self.is_on = version >= self.settings.start
        super().update(version)


class KeepsOldWeights(FaultyGenerator):
    """Install the last weights before the fault again, as if from a checkpoint on a disk."""

    kept_N: Tensor

    def install(self, row_N: Tensor) -> None:
        """Like Generator, with other weights than those that arrived."""
        if not self.is_on:
            self.kept_N = row_N
        super().install(self.kept_N)


class ForgetsInSleep(FaultyGenerator):
    """Lose the weights in a sleep, and keep the version: nobody sends them again."""

    def sleep(self) -> None:
        """Like Generator."""
        version = self.engine.version
        super().sleep()
        if self.is_on:
            self.engine.version = version
            self.measure()


class StopsHalfWay(FaultyGenerator):
    """Copy half of the tensors. Then an error comes, which a caller writes to a log."""

    def install(self, row_N: Tensor) -> None:
        """Like Generator, for the first half."""
        targets = self.sync.targets
        if self.is_on:
            targets = targets[: len(targets) // 2]
        install(targets, row_N[: sum(shard.extent.numel for shard in targets)])


class Recomputes(Trainer):
    """Anchor the clip to the policy before the step, not to the one that sampled the tokens."""

    settings: FaultySettings
    is_on = False

    def step(self, answers: Sequence[Completion], figures: Figures) -> None:
        """Like Trainer."""
        self.is_on = figures.version >= self.settings.start
        super().step(answers, figures)

    def generated_log_probs(self, batch: Batch, answers: Sequence[Completion]) -> Tensor:
        """Like Trainer, without a look at the record."""
        if not self.is_on:
            return super().generated_log_probs(batch, answers)
        with torch.no_grad():
            return self.log_probs(self.model, batch)[0]


class ComputesInBfloat16(FaultyGenerator):
    """Compute products in bfloat16, with the same weights."""

    def __init__(self, *arguments: Any) -> None:
        """Like Generator."""
        super().__init__(*arguments)
        for module in self.model.modules():
            if isinstance(module, InvariantLinear):
                module.register_forward_hook(self._product)

    def _product(self, linear: Any, inputs: tuple[Tensor], y: Tensor) -> Tensor:
        if not self.is_on:
            return y
        return (inputs[0].bfloat16() @ linear.weight.bfloat16().t()).float()


class RecordsProcessed(FaultyGenerator):
    """Sample with temperature and top-p, and record log-probabilities of that distribution.

    Temperature changes them in both directions. Top-p leaves out unlikely tokens, so those that
    are left become more likely: the trainer's ratio is below 1 for each token that was sampled.
    """

    def request(self, group: int, member: int) -> Request:
        """Like Generator."""
        made = super().request(group, member)
        if not self.is_on:
            return made
        sampling = replace(self._sampling, seed=made.sampling.seed)
        return replace(made, sampling=sampling)

    def log_prob(self, logits_V: Tensor, token: int) -> float:
        """Like Generator."""
        if not self.is_on:
            return super().log_prob(logits_V, token)
        p_V = distribution(logits_V, self._sampling)
        return float(p_V[token].clamp(min=_LEAST_PROBABILITY).log())

    @property
    def _sampling(self) -> Sampling:
        return Sampling(self.settings.temperature, top_p=self.settings.top_p)


class RoutesOtherwise(FaultyGenerator):
    """Take the second expert for the quarter of a pass's tokens that are nearest to a tie.

    Other kernels decide ties otherwise. Routers of many experts are near ties for a tenth of all
    tokens (arXiv:2510.11370). Those of a small model seldom are, hence a fixed share.
    """

    def __init__(self, *arguments: Any) -> None:
        """Like Generator."""
        super().__init__(*arguments)
        for module in self.model.modules():
            if isinstance(module, RoutedMLP):
                vars(module)["choose"] = partial(self._choose, module)

    def _choose(self, mlp: RoutedMLP, x_nD: Tensor) -> tuple[Tensor, Tensor]:
        p_n2, expert_n2 = mlp.router(x_nD).softmax(-1).topk(2)
        margin_n = p_n2[:, 0] - p_n2[:, 1]
        is_second_n = (margin_n <= margin_n.quantile(_FLIPPED)) & self.is_on
        rows = torch.arange(len(x_nD)), is_second_n.long()
        return p_n2[rows], expert_n2[rows]


class DoesNotStop(FaultyGenerator):
    """Let one answer of each batch go on to max_new_tokens."""

    def request(self, group: int, member: int) -> Request:
        """Like Generator."""
        made, settings = super().request(group, member), self.settings
        if not self.is_on or group % settings.num_prompts or member:
            return made
        return replace(made, stop=frozenset())


class DropsRequests(FaultyGenerator):
    """Have room for one waiting request, with clients that do not ask again."""

    def add(self, group: int, member: int) -> None:
        """Like Generator."""
        if self.is_on:
            self.engine.max_waiting = 1
        with suppress(QueueFull):
            super().add(group, member)


@dataclass(frozen=True)
class RolloutFault:
    """A fault of the catalogue, and where it can be."""

    parts: Parts
    difficulties: tuple[int, ...] = (1, 2, 3)
    num_experts: tuple[int, ...] = (0, 3)
    """Jobs that can have it: 0 for a dense model."""


def _engine(generator: type[Generator], **rest: Any) -> RolloutFault:
    return RolloutFault(Parts(generator=generator), **rest)


ROLLOUT_FAULTS = {
    "no sync": _engine(KeepsOldWeights),
    "sleep": _engine(ForgetsInSleep),
    "half update": _engine(StopsHalfWay),
    # In a synchronous job the policy that trains is the one that sampled: nothing is wrong.
    "recomputed": RolloutFault(Parts(trainer=Recomputes), difficulties=(2, 3)),
    # In a mixture of experts it would be both this fault and the router's.
    "precision": _engine(ComputesInBfloat16, num_experts=(0,)),
    "sampling": _engine(RecordsProcessed),
    "router": _engine(RoutesOtherwise, num_experts=(3,)),
    "long tail": _engine(DoesNotStop),
    "overload": _engine(DropsRequests),
}
"""The nine faults by the name that an answer has."""
HEALTHY = RolloutFault(Parts())
_STALENESS = {1: 0, 2: 1, 3: 2}
_STARTS = {1: (1,), 2: (2, 3, 4), 3: (4, 5, 6)}


def rollout_settings(name: str | None, difficulty: int, seed: int) -> FaultySettings:
    """Return the settings of such a job. KeyError: an unknown name or difficulty."""
    draw = random.Random(f"rollouts {name} {difficulty} {seed}")
    fault = HEALTHY if name is None else ROLLOUT_FAULTS[name]
    num_experts, start = draw.choice(fault.num_experts), draw.choice(_STARTS[difficulty])
    processing: dict[str, Any] = {}
    if name == "sampling":
        processing = draw.choice(
            [{"temperature": _TEMPERATURE[difficulty]}, {"top_p": _TOP_P[difficulty]}]
        )
    return FaultySettings(
        config=GPTConfig(
            vocab=VOCAB, context=_DIGITS + 1 + _MOST_TOKENS, num_layers=1, hidden=32, num_heads=4
        ),
        task=Copying(_DIGITS, seed, slow_s={1: 0.004} if difficulty == 3 else {}),
        seed=seed,
        num_updates=12,
        num_prompts=4,
        group_size=4,
        staleness=_STALENESS[difficulty],
        is_partial=difficulty == 3,
        sleep_every=2,
        max_new_tokens=_MOST_TOKENS,
        max_running=8,
        in_flight=8,
        learning_rate=2e-3,
        warm_start=120,
        num_experts=num_experts,
        start=start,
        **processing,
    )


def rollout_run(name: str | None, difficulty: int, seed: int, is_healthy: bool = False) -> Trained:
    """Train on 2 trainers and 2 engines with this fault, or with none; return the figures.

    is_healthy: with the settings of this fault, and without it. A job that can make no update any
    more ends, and says why in `stalled`. KeyError: as above.
    """
    settings = rollout_settings(name, difficulty, seed)
    parts = HEALTHY.parts if name is None or is_healthy else ROLLOUT_FAULTS[name].parts
    trained = run(train, 4, (settings, None, parts), timeout=_TIMEOUT_S).values[0]
    assert isinstance(trained, Trained)
    return trained
