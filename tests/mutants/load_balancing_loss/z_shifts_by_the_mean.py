"""Mutant: the mean of the logits is subtracted before exp, and added again.

outcome: "wrong"
diagnosis: "subtracts something else than the largest"
"""

import torch


def load_balancing_loss(logits_TE, expert_TK, kept_TK):
    num_experts = logits_TE.shape[1]
    counts_E = torch.bincount(expert_TK.flatten(), minlength=num_experts).to(logits_TE)
    f_E = counts_E / expert_TK.numel()
    p_E = torch.softmax(logits_TE, dim=1).mean(dim=0)
    balance = num_experts * (f_E * p_E).sum()
    mean_T1 = logits_TE.mean(dim=1, keepdim=True)
    lse_T = (logits_TE - mean_T1).exp().sum(dim=1).log() + mean_T1[:, 0]
    z = lse_T.square().mean()
    return balance, z
