"""Additions whose answers a program checks: the task of the language model.

    prompt    3 + 9 =        tokens  3 10 9 11          "+" is 10, "=" is 11
    answer    1 2 .          tokens  1 2 12             "." is 12 and ends the answer
    reward    1 for exactly these tokens, else 0

Prompt number i follows from the seed and i alone, so a job that goes on after a kill asks the same
questions. One engine may be slow: that belongs to the task, as a slow tool or verifier would.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from labkit.data import IGNORED, Batch

PLUS, EQUALS, END = 10, 11, 12
VOCAB = 13


@dataclass(frozen=True)
class Addition:
    """Sums of two numbers of 0 to `largest`. slow_s: seconds more in each pass, by engine."""

    largest: int = 19
    seed: int = 0
    slow_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def stop(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return frozenset({END})

    def prompt(self, index: int) -> list[int]:
        """Return the tokens of a question."""
        draw = random.Random(f"{self.seed}/{index}")
        a, b = (draw.randint(0, self.largest) for _ in range(2))
        return [*_digits(a), PLUS, *_digits(b), EQUALS]

    def reward(self, prompt: Sequence[int], answer: Sequence[int]) -> float:
        """Return 1 for the right answer and its end, else 0."""
        return float(list(answer) == self.answer(prompt))

    def answer(self, prompt: Sequence[int]) -> list[int]:
        """Return the right answer."""
        plus = list(prompt).index(PLUS)
        a, b = (int("".join(map(str, part))) for part in (prompt[:plus], prompt[plus + 1 : -1]))
        return [*_digits(a + b), END]

    def examples(self, step: int, count: int) -> Batch:
        """Return questions with right answers, for a supervised start; others in each step."""
        prompts = [self.prompt(-1 - step * count - number) for number in range(count)]
        return padded([(prompt, self.answer(prompt)) for prompt in prompts])


def _digits(number: int) -> list[int]:
    return [int(digit) for digit in str(number)]


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
