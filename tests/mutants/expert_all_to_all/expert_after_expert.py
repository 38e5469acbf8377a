"""Mutant: an exchange for the first experts of all ranks, and so on.

outcome: "over budget"
diagnosis: "more than three collectives"
"""

import torch


def expert_all_to_all(x_TD, expert_T, num_experts, apply, group):
    order_T = expert_T.argsort(stable=True)
    counts_E = torch.bincount(expert_T, minlength=num_experts)
    counts_ne = group.all_to_all(counts_E).view(group.size, -1)
    num_here = counts_ne.shape[1]

    y_TD = torch.empty_like(x_TD)
    for i in range(num_here):
        mine_T = expert_T[order_T] % num_here == i
        send = counts_E.view(group.size, -1)[:, i].tolist()
        receive = counts_ne[:, i].tolist()
        rows = group.all_to_all(x_TD[order_T[mine_T]], send, receive)
        results = apply(group.rank * num_here + i, rows)
        y_TD[order_T[mine_T]] = group.all_to_all(results, receive, send)
    return y_TD
