"""Mutant: all rows of a rank go to its first expert.

outcome: "wrong"
diagnosis: "rows reach another expert"
"""

import torch


def expert_all_to_all(x_TD, expert_T, num_experts, apply, group):
    order_T = expert_T.argsort(stable=True)
    counts_E = torch.bincount(expert_T, minlength=num_experts)
    counts_ne = group.all_to_all(counts_E).view(group.size, -1)
    num_here = counts_ne.shape[1]
    send = counts_E.view(group.size, -1).sum(1).tolist()
    receive = counts_ne.sum(1).tolist()
    rows = group.all_to_all(x_TD[order_T], send, receive)

    parts = [apply(group.rank * num_here, rows)]
    y_TD = torch.empty_like(x_TD)
    y_TD[order_T] = group.all_to_all(torch.cat(parts), receive, send)
    return y_TD
