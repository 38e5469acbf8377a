"""Copy some digits: a task whose answers a program checks.

    prompt    4 0 7 =        tokens  4 0 7 10           "=" is 10
    answer    4 0 7 .        tokens  4 0 7 11           "." is 11 and ends the answer
    reward    1 for exactly these tokens, else 0

A model that knows nothing is rewarded too rarely to learn. So it starts supervised, on answers of
which most are reversed (7 0 4 .). It then knows both, prefers the wrong one, and the reward has to
turn that around.

Prompt number i follows from the seed and i alone, so a job that goes on after a kill asks the same
questions. One engine may be slow: that belongs to the task, as a slow tool or verifier would.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from labkit import arguments
from labkit.data import IGNORED, Batch

EQUALS, END = 10, 11
VOCAB = 12


@dataclass(frozen=True)
class Copying:
    """Prompts of 1 to `longest` digits.

    slow_s: seconds more in each pass, by engine. reversed_share: of the supervised answers.
    """

    longest: int = 3
    seed: int = 0
    slow_s: Mapping[int, float] = field(default_factory=dict)
    reversed_share: float = 0.6

    def __post_init__(self) -> None:
        arguments.whole("longest", self.longest, "1 or more digits")

    @property
    def stop(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return frozenset({END})

    def prompt(self, index: int) -> list[int]:
        """Return the tokens of a question."""
        draw = random.Random(f"{self.seed}/{index}")
        return [*(draw.randrange(10) for _ in range(draw.randint(1, self.longest))), EQUALS]

    def answer(self, prompt: Sequence[int]) -> list[int]:
        """Return the right answer."""
        return [*prompt[:-1], END]

    def reward(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """Return 1 for the right answer and its end, else 0."""
        return float(list(answer) == self.answer(prompt))

    def examples(self, step: int, count: int) -> Batch:
        """Return questions with answers for a supervised step, which differ by step."""
        draw = random.Random(f"{self.seed} {step}")
        pairs = []
        for number in range(count):
            prompt = self.prompt(-1 - step * count - number)
            digits = prompt[:-1]
            is_reversed = draw.random() < self.reversed_share
            pairs.append((prompt, [*(digits[::-1] if is_reversed else digits), END]))
        return padded(pairs)


def padded(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """Return pairs of a prompt and an answer as one batch; targets of prompts are IGNORED.

    inputs_BT has a column for each token of the longest pair but its last, filled with 0.
    """
    longest = max((len(prompt) + len(answer) for prompt, answer in pairs), default=2)
    inputs_BT = torch.zeros(len(pairs), longest - 1, dtype=torch.int64)
    targets_BT = torch.full_like(inputs_BT, IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        tokens = torch.tensor([*prompt, *answer])
        inputs_BT[row, : len(tokens) - 1] = tokens[:-1]
        targets_BT[row, len(prompt) - 1 : len(tokens) - 1] = tokens[len(prompt) :]
    return Batch(inputs_BT, targets_BT)


def on_targets(rows: Sequence[Sequence[float]], targets_BT: Tensor) -> Tensor:
    """Return a number for each token of each answer at its place in `targets_BT`, 0 elsewhere."""
    placed_BT = torch.zeros(targets_BT.shape)
    placed_BT[targets_BT != IGNORED] = torch.tensor([x for row in rows for x in row])
    return placed_BT
