"""Mutant: every rank gets everybody's tokens.

outcome: "over budget"
diagnosis: "gathers all tokens on all ranks"
"""

import torch


def expert_all_to_all(x_TD, expert_T, num_experts, apply, group):
    n, num_here = group.size, num_experts // group.size
    most = int(group.all_gather(torch.tensor([len(x_TD)])).max())
    padded = x_TD.new_zeros(most, x_TD.shape[1])
    padded[: len(x_TD)] = x_TD
    experts = torch.full((most,), -1)
    experts[: len(x_TD)] = expert_T
    all_rows, all_experts = group.all_gather(padded), group.all_gather(experts)
    results = torch.zeros_like(all_rows)
    for i in range(num_here):
        expert = group.rank * num_here + i
        results[all_experts == expert] = apply(expert, all_rows[all_experts == expert])
    back = group.all_to_all(results).view(n, most, -1)
    return back.sum(0)[: len(x_TD)]
