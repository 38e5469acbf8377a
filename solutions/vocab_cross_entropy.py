"""Cross-entropy of logits that are split over the vocabulary.

An interviewer asks: "The head is split by columns, so each rank has the logits of its share of the
vocabulary. 128,256 tokens in the vocabulary, a batch of 32,768 positions: what would it take to
gather the logits? Compute the loss and its gradient without that. What travels?"

Write `vocab_cross_entropy(logits_Nv, first, targets_N, group)`: return the mean cross-entropy over
the N positions, and its gradient with respect to this rank's logits.

Contract
    logits_Nv  (N, v): for each of N positions the logits of this rank's share of the vocabulary;
               float32, float16 or bfloat16. Shares are contiguous, in the order of the ranks, and
               differ by one where n does not divide V; with fewer tokens than ranks some are empty,
               (N, 0). A logit may be as large as 10,000, and of either sign
    first      the number, in the whole vocabulary, of the share's first token
    targets_N  (N,) int64: the number, in the whole vocabulary, of each position's right token; the
               same on all ranks
    group      `group.rank`, `group.size`, and two collectives: `all_reduce(x, op)`, where op is
               "sum", "mean", "max" or "min", and `all_gather(x)`, which joins the ranks' tensors,
               of one size, in the order of the ranks
    returns    (loss, gradient_Nv): the mean over the N positions of -log softmax(logits)[target],
               a float32 tensor of shape (), the same on all ranks; and the derivative of that one
               number with respect to logits_Nv, of their shape and dtype. All of it is computed in
               float32. Neither logits_Nv nor targets_N may change

Budget, on every rank of two or more
    passed  at most 3 float32 numbers for each position, in at most 3 collectives
    memory  no tensor has more numbers than the largest share of the logits, N * ceil(V / n)
"""

import torch

from labkit.comm import Group


def vocab_cross_entropy(
    logits_Nv: torch.Tensor, first: int, targets_N: torch.Tensor, group: Group
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and its gradient with respect to the logits of this rank's share.

    Wire: all-reduces of 3 numbers for each position; the vocabulary's size is not in it.
    """
    ### BEGIN SOLUTION
    num_positions, num_tokens = logits_Nv.shape
    x_Nv = logits_Nv.float()
    # An empty share has no maximum; it must not decide that of the others.
    highest_N = x_Nv.amax(1) if num_tokens else x_Nv.new_full((num_positions,), -torch.inf)
    x_Nv = x_Nv - group.all_reduce(highest_N, op="max")[:, None]
    exp_Nv = x_Nv.exp()
    # A target is on one rank: what the others have to say of it is 0.
    rows = ((first <= targets_N) & (targets_N < first + num_tokens)).nonzero().flatten()
    columns = targets_N[rows] - first
    target_N = x_Nv.new_zeros(num_positions)
    target_N[rows] = x_Nv[rows, columns]
    total_N, target_N = group.all_reduce(torch.stack([exp_Nv.sum(1), target_N]))
    loss = (total_N.log() - target_N).mean()  # both have lost the same maximum
    gradient_Nv = exp_Nv / total_N[:, None]  # softmax
    gradient_Nv[rows, columns] -= 1
    return loss, (gradient_Nv / num_positions).to(logits_Nv.dtype)
    ### END SOLUTION
