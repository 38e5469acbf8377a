"""Average gradients of unequal shares, each by its tokens.

An interviewer asks: "Your GPUs differ in speed, so each gets another number of sequences. Every
rank has the gradient of the mean loss over its own tokens. What is the gradient of the batch? One
rank is so slow that it got nothing. What does it send?"

Write `weighted_shares(gradient, num_tokens, group)`. It returns the gradient of the mean loss over
the tokens of all ranks, on every rank.

Contract
    gradient    (D,), of the mean loss over this rank's tokens: float32, float64 or float16. On a
                rank without tokens every number is nan: (loss * mask).sum() / mask.sum() is 0/0
    num_tokens  the tokens of this rank that count in the loss: an int, 0 or more, often millions.
                It differs by rank. If it is 0 on all ranks, the result is zeros
    group       `group.rank`, `group.size`, `group.device`, and `group.all_reduce(tensor)`, which
                returns the sum
    returns     a new tensor (D,) with the dtype of `gradient`, which stays as it is

    In float16 the largest number is 65,504: no sum on the way may be larger than the ranks'
    gradients are.

Budget, on every rank
    collectives  at most two all-reduces
    payload      at most the bytes of the gradient, and 8 more
"""

import torch

from labkit.comm import Group


def weighted_shares(gradient: torch.Tensor, num_tokens: int, group: Group) -> torch.Tensor:
    """Return the gradient of the mean loss over all ranks' tokens.

    Wire: an all-reduce of a number, and one of the gradient.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
