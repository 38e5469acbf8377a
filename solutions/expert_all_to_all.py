"""Tokens to their experts, and back.

An interviewer asks: "Eight experts on four GPUs. Each GPU has its own tokens, and the router has
named an expert for each. Write the way there and the way back. What does a GPU have to know before
its first row comes? In which order do rows arrive, and in which does an expert want them? And what
does a GPU do that has no tokens in this step?"

Write `expert_all_to_all(x_TD, expert_T, num_experts, apply, group)`: each token's output, from its
expert, wherever that is.

Contract
    x_TD         this rank's T tokens, floating point. T differs from rank to rank and may be 0
    expert_T     int64: the expert of each token, 0 to E - 1, in no order. Nobody knows the others'
    num_experts  E, the same on all ranks; n divides it. Experts r E/n to (r+1) E/n - 1 are on
                 rank r, and on no other
    apply        apply(expert, rows_ND) returns (N, D), row for row; for experts of this rank only,
                 by their number in 0 to E - 1. N may be 0
    group        `group.rank`, `group.size`, and two collectives: `all_to_all(x, send_splits,
                 recv_splits)`, which sends the first send_splits[0] rows to rank 0, the next to
                 rank 1, and so on, and returns recv_splits[s] rows from each rank s, in rank order
                 (without splits: n equal blocks); and `all_gather(x)`
    returns      a new tensor (T, D) of x_TD's dtype: row t is what expert_T[t] makes of x_TD[t].
                 x_TD and expert_T are left as they are

Budget, on every rank of two or more
    rows         each of its tokens that has its expert elsewhere is sent once, and each result of
                 a token from elsewhere once, in x_TD's dtype: no padding, nothing to third ranks
    besides      8 E bytes to each other rank, for how many rows there are
    calls        three collectives; and `apply` at most once for each expert of this rank, with its
                 rows from all ranks together. An expert without rows may be called with none, or
                 left out
"""

from collections.abc import Callable

import torch

from labkit.comm import Group


def expert_all_to_all(
    x_TD: torch.Tensor,
    expert_T: torch.Tensor,
    num_experts: int,
    apply: Callable[[int, torch.Tensor], torch.Tensor],
    group: Group,
) -> torch.Tensor:
    """(T, D): each token's output, in the order of the tokens.

    Wire: tokens to experts of other ranks, results of tokens of other ranks, and E counts.
    """
    ### BEGIN SOLUTION
    # Rows of an expert side by side, and so those of a rank.
    order_T = expert_T.argsort(stable=True)
    counts_E = torch.bincount(expert_T, minlength=num_experts)
    counts_ne = group.all_to_all(counts_E).view(group.size, -1)  # from each rank, for each of ours
    num_here = counts_ne.shape[1]
    send = counts_E.view(group.size, -1).sum(1).tolist()
    receive = counts_ne.sum(1).tolist()
    rows = group.all_to_all(x_TD[order_T], send, receive)

    # They come rank by rank, and of each rank expert by expert; an expert wants its own together.
    parts = list(rows.split(counts_ne.flatten().tolist()))
    for i in range(num_here):
        its = parts[i::num_here]
        results = apply(group.rank * num_here + i, torch.cat(its))
        parts[i::num_here] = results.split([len(part) for part in its])

    y_TD = torch.empty_like(x_TD)
    y_TD[order_T] = group.all_to_all(torch.cat(parts), receive, send)
    return y_TD
    ### END SOLUTION
