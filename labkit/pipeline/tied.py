"""One weight on two ranks: the token embedding, on the first stage, is the head's, on the last.

Each of the two stages computes a part of its gradient, of what it uses the weight for. The weight
stays one only if both ranks take the same step, with the sum of both parts.

    rank of the first stage   part of the embedding   part + part    the same bits on both:
    rank of the last stage    part of the head        part + part    first plus last, in that order

Wire: the weight's bytes each way between the two ranks, once per step, after the last microbatch.
Paper: Megatron-LM, arXiv:2104.04473, and its `_allreduce_word_embedding_grads`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.comm import Group
from labkit.pipeline.op import Schedule


def set_aside(weight: Tensor | None) -> Tensor | None:
    """Before a step: take the gradient that there is from the weight. What the step adds is summed
    over the two ranks; what was there before has been already."""
    if weight is None:
        return None
    before, weight.grad = weight.grad, None
    return before


def sum_tied_gradients(
    weight: Tensor, before: Tensor | None, schedule: Schedule, group: Group
) -> None:
    """Make `weight.grad` the sum of the first stage's, the last's and the one from `before`.

    Called on the ranks of both; where one rank holds both stages and one weight, its gradient is
    the sum as it is.
    """
    first, last = schedule.rank_of[0], schedule.rank_of[schedule.num_stages - 1]
    mine = torch.zeros_like(weight) if weight.grad is None else weight.grad
    if first != last and group.rank in (first, last):
        theirs = torch.empty_like(mine)
        peer = last if group.rank == first else first
        with group.region("tied weight"):
            with group.label("gradient of the tied weight"), group.together():
                sent, arriving = group.isend(mine, peer), group.irecv(theirs, peer)
            arriving.wait()
            sent.wait()
        mine = mine + theirs if group.rank == first else theirs + mine
    weight.grad = mine if before is None else before + mine
