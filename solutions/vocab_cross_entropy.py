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
    ### BEGIN SOLUTION
    num_positions, num_tokens = logits_Nv.shape
    x_Nv = logits_Nv.float()
    # An empty shard has no maximum. -inf leaves that of the others as it is.
    highest_N = x_Nv.amax(1) if num_tokens else x_Nv.new_full((num_positions,), -torch.inf)
    x_Nv = x_Nv - group.all_reduce(highest_N, op="max")[:, None]
    exp_Nv = x_Nv.exp()
    # Each target is in one shard. The other ranks add 0 to its logit.
    rows = ((first <= targets_N) & (targets_N < first + num_tokens)).nonzero().flatten()
    columns = targets_N[rows] - first
    target_N = x_Nv.new_zeros(num_positions)
    target_N[rows] = x_Nv[rows, columns]
    total_N, target_N = group.all_reduce(torch.stack([exp_Nv.sum(1), target_N]))
    loss = (total_N.log() - target_N).mean()  # the maximum is off both and cancels
    gradient_Nv = exp_Nv / total_N[:, None]  # softmax
    gradient_Nv[rows, columns] -= 1
    return loss, (gradient_Nv / num_positions).to(logits_Nv.dtype)
    ### END SOLUTION
