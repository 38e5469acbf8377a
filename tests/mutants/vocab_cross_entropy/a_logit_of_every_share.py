"""Mutant: where the target is elsewhere, the first column is looked up, and it stays in the sum.

outcome: "wrong"
diagnosis: "adds a logit of every share"
"""

import torch


def vocab_cross_entropy(logits_Nv, first, targets_N, group):
    num_positions, num_tokens = logits_Nv.shape
    x_Nv = logits_Nv.float()
    highest_N = x_Nv.amax(1) if num_tokens else x_Nv.new_full((num_positions,), -torch.inf)
    x_Nv = x_Nv - group.all_reduce(highest_N, op="max")[:, None]
    exp_Nv = x_Nv.exp()
    rows = torch.arange(num_positions)
    columns = targets_N - first
    is_elsewhere = (columns < 0) | (columns >= num_tokens)
    columns[is_elsewhere] = 0
    target_N = x_Nv[rows, columns] if num_tokens else x_Nv.new_zeros(num_positions)
    total_N, target_N = group.all_reduce(torch.stack([exp_Nv.sum(1), target_N]))
    loss = (total_N.log() - target_N).mean()
    gradient_Nv = exp_Nv / total_N[:, None]
    gradient_Nv[rows[~is_elsewhere], columns[~is_elsewhere]] -= 1
    return loss, (gradient_Nv / num_positions).to(logits_Nv.dtype)
