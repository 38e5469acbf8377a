"""Send tokens to their experts, and the results back.

An interviewer asks: "Eight experts on four GPUs. Each GPU has tokens of its own, and the router has
chosen an expert for each token. Write the exchange to the experts and back. What must a GPU know
before it receives the first row? In which order do rows arrive, and in which order does an expert
need them? What does a GPU do that has no tokens in this step?"

Write `expert_all_to_all(x_TD, expert_T, num_experts, apply, group)`: the output of each token's
expert, on whatever rank that expert is.

Contract
    x_TD         this rank's T tokens, floating point. T differs between ranks and may be 0
    expert_T     int64: the expert of each token, 0 to E - 1, in any order. A rank knows only the
                 experts of its own tokens
    num_experts  E, the same on all ranks; n, the number of ranks, divides E. Experts r E/n to
                 (r+1) E/n - 1 are on rank r
    apply        apply(expert, rows_ND) returns (N, D), one result per row. `expert` is the number
                 among all E. Only this rank's experts can be called. N may be 0
    group        `group.rank`, `group.size`, and two collectives. `all_to_all(x, send_splits,
                 recv_splits)` sends the first send_splits[0] rows of x to rank 0, the next
                 send_splits[1] to rank 1, and so on. It returns recv_splits[s] rows from each rank
                 s, in rank order. Without splits it sends n equal blocks. `all_gather(x)` joins the
                 x of all ranks, which have equal shapes
    returns      a new tensor (T, D) of x_TD's dtype. Row t is the output of expert expert_T[t] for
                 x_TD[t]. x_TD and expert_T stay unchanged

Budget, with two ranks or more, for each rank
    rows         A token whose expert is on another rank is sent there once, and its result is sent
                 back once, in x_TD's dtype. No padding, and nothing to other ranks
    counts       at most 8 E bytes to each other rank
    calls        three collectives, and one call of `apply` per expert, with the rows from all
                 ranks. An expert without rows may be called with none, or not at all
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
    """Return (T, D): for each token, the output of its expert. apply(expert, rows) computes it.

    Wire: tokens whose expert is on another rank, results of other ranks' tokens, and E counts.
    """
    ### BEGIN SOLUTION
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
    ### END SOLUTION
