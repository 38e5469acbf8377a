"""Mutant: P is of chosen experts only.

outcome: "wrong"
diagnosis: "averages p over those who chose the expert"
"""

import torch


def load_balancing_loss(logits_TE, expert_TK, kept_TK):
    num_experts = logits_TE.shape[1]
    counts_E = torch.bincount(expert_TK.flatten(), minlength=num_experts).to(logits_TE)
    f_E = counts_E / expert_TK.numel()
    p_TE = torch.softmax(logits_TE, dim=1)
    p_E = (p_TE * torch.zeros_like(p_TE).scatter(1, expert_TK, 1.0)).mean(dim=0)
    balance = num_experts * (f_E * p_E).sum()
    z = torch.logsumexp(logits_TE, dim=1).square().mean()
    return balance, z
