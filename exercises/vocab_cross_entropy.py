"""Cross-entropy of logits that are split over the vocabulary.

An interviewer asks: "The output layer is split by columns, so each rank has the logits of its shard
of the vocabulary. The vocabulary has 128,256 tokens and the batch 32,768 positions. What would it
cost to gather the logits? How do you compute the loss and its gradient without gathering them?"

Write `vocab_cross_entropy(logits_Nv, first, targets_N, group)`. It returns the mean cross-entropy
over the N positions, and the gradient of that mean with respect to this rank's logits.

Contract
    logits_Nv  (N, v): the logits of this rank's shard of the vocabulary, for each of N positions.
               float32, float16 or bfloat16, up to 10,000 in absolute value
    shards     contiguous, in rank order: the first V % n ranks have one token more than the others.
               With V < n some shards are empty, (N, 0)
    first      the number, in the whole vocabulary, of the shard's first token
    targets_N  (N,) int64, the same on every rank: the number, in the whole vocabulary, of the right
               token of each position
    group      has `group.rank`, `group.size` and two collectives. `all_reduce(x, op)` has the op
               "sum", "mean", "max" or "min". `all_gather(x)` joins the ranks' tensors, all of one
               shape, along dim 0
    returns    (loss, gradient_Nv). loss is the mean over the N positions of
               -log softmax(logits)[target]: a float32 tensor of shape (), the same on every rank.
               gradient_Nv is its gradient with respect to logits_Nv, of the same shape and dtype.
               Arguments stay unchanged
    computes   in float32, also where the logits have another dtype

Budget, on every rank, with two or more ranks
    traffic  at most 3 float32 numbers per position, in at most 3 collectives
    memory   no tensor has more than N * max(ceil(V / n), 3 n) elements: the largest shard, or 3
             numbers per position of every rank
"""

import torch

from labkit.comm import Group


def vocab_cross_entropy(
    logits_Nv: torch.Tensor, first: int, targets_N: torch.Tensor, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the loss, and its gradient with respect to the logits of this rank's shard.

    Traffic: all-reduces of 3 numbers per position, whatever the size of the vocabulary.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
