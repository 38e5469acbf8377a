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


def sum_tied_gradients(weight: Tensor, schedule: Schedule, group: Group) -> None:
    """Make `weight.grad` the sum of the first stage's and the last's, on the ranks of both.

    Called on these ranks; where one rank holds both stages and one weight, nothing is to be done.
    """
    first, last = schedule.rank_of[0], schedule.rank_of[schedule.num_stages - 1]
    if first == last or group.rank not in (first, last):
        return
    mine = torch.zeros_like(weight) if weight.grad is None else weight.grad
    theirs = torch.empty_like(mine)
    peer = last if group.rank == first else first
    with group.region("tied weight"):
        sent = group.isend(mine, peer)
        group.recv(theirs, peer)
        sent.wait()
    weight.grad = mine + theirs if group.rank == first else theirs + mine
