"""Mutant: a softmax that subtracts the first logit.

outcome: "wrong"
diagnosis: "subtracts something else than the largest"
"""

import torch


def load_balancing_loss(logits_TE, expert_TK, kept_TK):
    num_experts = logits_TE.shape[1]
    counts_E = torch.bincount(expert_TK.flatten(), minlength=num_experts).to(logits_TE)
    f_E = counts_E / expert_TK.numel()
    e_TE = (logits_TE - logits_TE[:, :1]).exp()
    p_E = (e_TE / e_TE.sum(dim=1, keepdim=True)).mean(dim=0)
    balance = num_experts * (f_E * p_E).sum()
    z = torch.logsumexp(logits_TE, dim=1).square().mean()
    return balance, z
