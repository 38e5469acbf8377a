"""Expert parallelism in two all-to-alls: tokens to the ranks of their experts, and results back.

    rank 0   tokens a b c, for experts 1 0 1   --+-->   rank 0   expert 0 computes b | e
    rank 1   tokens d e,   for experts 1 0     --+-->   rank 1   expert 1 computes a c | d

Layout: each rank has its own tokens, any number of them, and E/n consecutive experts of all E.
Sent: a count per expert, each token whose expert is on another rank, and that token's result.
Papers: GShard, arXiv:2006.16668; Switch Transformer, arXiv:2101.03961, with one expert per token.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from labkit.comm import Group


def switch_layer(
    x_TD: torch.Tensor, router_ED: torch.Tensor, experts: Mapping[int, nn.Module], group: Group
) -> torch.Tensor:
    """Return (T, D): the output of each token's most probable expert, times that probability.

    experts: this rank's experts; the keys are their numbers among all E. Forward pass only.
    """
    p_T, expert_T = (x_TD @ router_ED.T).softmax(1).max(1)
    y_TD = expert_all_to_all(x_TD, expert_T, len(router_ED), lambda e, x: experts[e](x), group)
    return p_T[:, None] * y_TD


def expert_all_to_all(
    x_TD: torch.Tensor,
    expert_T: torch.Tensor,
    num_experts: int,
    apply: Callable[[int, torch.Tensor], torch.Tensor],
    group: Group,
) -> torch.Tensor:
    """Return (T, D): for each token, the output of its expert. apply(expert, rows) computes it.

    Wire: tokens whose expert is on another rank, results of other ranks' tokens, and E counts.
    """
    # Sorting by expert also puts the rows for each rank next to each other.
    order_T = expert_T.argsort(stable=True)
    counts_E = torch.bincount(expert_T, minlength=num_experts)
    counts_ne = group.all_to_all(counts_E).view(group.size, -1)  # from each rank, for our experts
    num_here = counts_ne.shape[1]
    send = counts_E.view(group.size, -1).sum(1).tolist()
    receive = counts_ne.sum(1).tolist()
    rows = group.all_to_all(x_TD[order_T], send, receive)

    # Rows arrive by rank, and by expert within a rank. apply needs all rows of one expert.
    parts = list(rows.split(counts_ne.flatten().tolist()))
    for i in range(num_here):
        its_parts = parts[i::num_here]
        results = apply(group.rank * num_here + i, torch.cat(its_parts))
        parts[i::num_here] = results.split([len(part) for part in its_parts])

    y_TD = torch.empty_like(x_TD)
    y_TD[order_T] = group.all_to_all(torch.cat(parts), receive, send)
    return y_TD
