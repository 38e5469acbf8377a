"""Mutant: log, sum and exp, one after the other.

outcome: "wrong"
diagnosis: "numbers that are none"
"""

import torch


def load_balancing_loss(logits_TE, expert_TK, kept_TK):
    num_experts = logits_TE.shape[1]
    counts_E = torch.bincount(expert_TK.flatten(), minlength=num_experts).to(logits_TE)
    f_E = counts_E / expert_TK.numel()
    p_E = torch.softmax(logits_TE, dim=1).mean(dim=0)
    balance = num_experts * (f_E * p_E).sum()
    z = logits_TE.exp().sum(dim=1).log().square().mean()
    return balance, z
