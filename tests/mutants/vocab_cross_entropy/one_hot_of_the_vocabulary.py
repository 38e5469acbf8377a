"""Mutant: the targets become a table as wide as the vocabulary.

outcome: "over budget"
diagnosis: "makes room for the whole vocabulary"
"""

import torch
from torch.nn.functional import one_hot


def vocab_cross_entropy(logits_Nv, first, targets_N, group):
    num_positions, num_tokens = logits_Nv.shape
    x_Nv = logits_Nv.float()
    highest_N = x_Nv.amax(1) if num_tokens else x_Nv.new_full((num_positions,), -torch.inf)
    x_Nv = x_Nv - group.all_reduce(highest_N, op="max")[:, None]
    exp_Nv = x_Nv.exp()
    end = max(first + num_tokens, int(targets_N.max()) + 1)
    hits_NV = one_hot(targets_N, end)
    hits_Nv = hits_NV[:, first : first + num_tokens]
    target_N = (x_Nv * hits_Nv).sum(1)
    total_N, target_N = group.all_reduce(torch.stack([exp_Nv.sum(1), target_N]))
    loss = (total_N.log() - target_N).mean()
    gradient_Nv = exp_Nv / total_N[:, None]
    gradient_Nv -= hits_Nv
    return loss, (gradient_Nv / num_positions).to(logits_Nv.dtype)
