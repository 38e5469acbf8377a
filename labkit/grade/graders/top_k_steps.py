"""What a rank runs of top_k_error_feedback: several steps of the learner's two functions."""

from dataclasses import dataclass
from typing import Any

import torch

from labkit.comm import Group
from labkit.grade.code import Code

PARTS = ("indices", "values", "owed", "mean", "indices after it", "values after it")
"""What comes of a step: of compress, of exchange, and what exchange has left of its arguments."""


@dataclass(frozen=True)
class Steps:
    """A function on ranks, made of the code's `compress` and `exchange`."""

    code: Code

    def __call__(self, gradients: torch.Tensor, k: int, shift: int, group: Group) -> Any:
        """gradients: (steps, numel). Returns PARTS of each step, one after the other.

        shift: exchange is called as if so many entries came before the first, which nobody sends;
        what it returns for those is left out. Where something comes back that has another form,
        that alone is returned.
        """
        compress = self.code.load("compress", 3)
        exchange = self.code.load("exchange", 4)
        owed, parts = torch.zeros_like(gradients[0]), []
        for gradient in gradients:
            sent = compress(gradient, owed, k)
            if not isinstance(sent, tuple | list) or len(sent) != 3 or not _are_tensors(sent):
                return sent
            # Copies: what is kept for the judge is what there is now, whatever is written later.
            parts += [_copy(each) for each in sent]
            indices = sent[0] + shift if shift else sent[0]
            mean = exchange(indices, sent[1], gradient.numel() + shift, group)
            if not _are_tensors([mean]):
                return mean
            mean = mean[shift:] if shift else mean
            parts += [_copy(each) for each in (mean, indices - shift, sent[1])]
            owed = sent[2]
        return parts


def _are_tensors(values: Any) -> bool:
    return all(isinstance(each, torch.Tensor) for each in values)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()
