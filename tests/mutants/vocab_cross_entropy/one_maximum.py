"""Mutant: one maximum for the whole batch.

outcome: "wrong"
diagnosis: "subtracts one maximum from all positions"
"""

import torch


def vocab_cross_entropy(logits_Nv, first, targets_N, group):
    num_positions, num_tokens = logits_Nv.shape
    x_Nv = logits_Nv.float()
    highest = x_Nv.amax().reshape(1) if num_tokens else x_Nv.new_full((1,), -torch.inf)
    x_Nv = x_Nv - group.all_reduce(highest, op="max")
    exp_Nv = x_Nv.exp()
    rows = ((first <= targets_N) & (targets_N < first + num_tokens)).nonzero().flatten()
    columns = targets_N[rows] - first
    target_N = x_Nv.new_zeros(num_positions)
    target_N[rows] = x_Nv[rows, columns]
    total_N, target_N = group.all_reduce(torch.stack([exp_Nv.sum(1), target_N]))
    loss = (total_N.log() - target_N).mean()
    gradient_Nv = exp_Nv / total_N[:, None]
    gradient_Nv[rows, columns] -= 1
    return loss, (gradient_Nv / num_positions).to(logits_Nv.dtype)
