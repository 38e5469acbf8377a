"""Mutant: results are returned as they come back.

outcome: "wrong"
diagnosis: "leaves the rows sorted by expert"
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

    parts = list(rows.split(counts_ne.flatten().tolist()))
    for i in range(num_here):
        its = parts[i::num_here]
        results = apply(group.rank * num_here + i, torch.cat(its))
        parts[i::num_here] = results.split([len(part) for part in its])

    return group.all_to_all(torch.cat(parts), receive, send)
