"""Mutant: blocks are as long as the longest of all.

outcome: "over budget"
diagnosis: "pads rows to equal blocks"
"""

import torch


def expert_all_to_all(x_TD, expert_T, num_experts, apply, group):
    n, num_here = group.size, num_experts // group.size
    order_T = expert_T.argsort(stable=True)
    counts_E = torch.bincount(expert_T, minlength=num_experts)
    counts_nE = group.all_gather(counts_E).view(n, num_experts)
    most = int(counts_nE.view(n, n, num_here).sum(2).max())
    outgoing = x_TD.new_zeros(n, most, x_TD.shape[1])
    for rank, part in enumerate(x_TD[order_T].split(counts_E.view(n, -1).sum(1).tolist())):
        outgoing[rank, : len(part)] = part
    rows = group.all_to_all(outgoing.flatten(0, 1)).view_as(outgoing)
    first = group.rank * num_here
    counts_ne = counts_nE[:, first : first + num_here]
    starts_ne = counts_ne.cumsum(1) - counts_ne
    results = torch.zeros_like(rows)
    for i in range(num_here):
        spans = [(int(starts_ne[r, i]), int(counts_ne[r, i])) for r in range(n)]
        its = [rows[r, start : start + count] for r, (start, count) in enumerate(spans)]
        parts = apply(first + i, torch.cat(its)).split([count for _, count in spans])
        for r, (start, count) in enumerate(spans):
            results[r, start : start + count] = parts[r]
    back = group.all_to_all(results.flatten(0, 1)).view_as(results)
    numbers = counts_E.view(n, -1).sum(1).tolist()
    y_TD = torch.empty_like(x_TD)
    y_TD[order_T] = torch.cat([back[r, :number] for r, number in enumerate(numbers)])
    return y_TD
