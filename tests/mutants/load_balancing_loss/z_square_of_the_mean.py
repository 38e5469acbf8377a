"""Mutant: the mean comes before the square.

outcome: "wrong"
diagnosis: "z is the square of the mean"
"""

import torch


def load_balancing_loss(logits_TE, expert_TK, kept_TK):
    num_experts = logits_TE.shape[1]
    counts_E = torch.bincount(expert_TK.flatten(), minlength=num_experts).to(logits_TE)
    f_E = counts_E / expert_TK.numel()
    p_E = torch.softmax(logits_TE, dim=1).mean(dim=0)
    balance = num_experts * (f_E * p_E).sum()
    z = torch.logsumexp(logits_TE, dim=1).mean().square()
    return balance, z
