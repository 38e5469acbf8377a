"""Prioritised replay over ranks: draw from all shards by priority, and send priorities back.

An interviewer asks: "The replay memory does not fit on one machine, so each rank keeps a shard of
it. Every rank also learns. Draw a batch by priority over the whole memory. Which numbers must a
rank know of the other shards? Which importance weight does a transition get? After the update there
are new priorities. Where do they belong?"

Write `replay_over_ranks(rows_NW, priorities_N, u_B, beta, learn, group)`: one update. It draws a
batch over all shards, learns from it, and returns this rank's priorities afterwards.

Contract
    rows_NW       this rank's N transitions, float64. N differs between ranks and may be 0. At least
                  one rank has some
    priorities_N  their priorities p, float64, above 0
    u_B           B numbers, float64, from 0 up to but without 1. The same on all ranks. n, the
                  number of ranks, divides B
    beta          the exponent of the importance weights, 0 to 1
    learn         learn(rows, weights) gets this rank's B/n draws, (B/n, W), and their weights,
                  (B/n,) float64, in any order. It returns their new priorities, (B/n,) float64.
                  Call it once on every rank
    group         `group.rank`, `group.size`, and two collectives. `all_gather(x)` joins the x of
                  all ranks, which have equal shapes. `all_to_all(x, send_splits, recv_splits)`
                  sends the first send_splits[0] rows of x to rank 0, the next send_splits[1] to
                  rank 1, and so on. It returns recv_splits[s] rows from each rank s, in rank order
    returns       a new tensor (N,), float64: for a row that was drawn its new priority, for any
                  other its old one. The arguments stay unchanged

    draws         All rows of rank 0, then those of rank 1, and so on, lie on a line. Each is as
                  long as its priority. T is the sum of the priorities on all ranks. Draw k is the
                  row at u_B[k] * T: the first whose end is above that place. (No place is so near
                  to an end that rounding decides.) A row may be drawn several times. `learn` then
                  returns equal priorities for it
    learners      Rank r learns from draws r B/n to (r+1) B/n - 1
    weights       w = (M P)^-beta with P = p / T, where M is the number of rows on all ranks. Divide
                  it by the largest weight that any row of the whole memory has, drawn or not

Budget, with two ranks or more, for each rank
    rows          A row goes once to the learner of each of its draws on another rank, with at most
                  8 bytes for its weight. It goes to no other rank
    the rest      at most 32 bytes to each other rank before the draw. Then 8 bytes per draw for the
                  new priority, to the rank that has the row
    calls         four collectives
"""

from collections.abc import Callable

import torch

from labkit.comm import Group


def replay_over_ranks(
    rows_NW: torch.Tensor,
    priorities_N: torch.Tensor,
    u_B: torch.Tensor,
    beta: float,
    learn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    group: Group,
) -> torch.Tensor:
    """Return this rank's priorities after an update, (N,). learn(rows, weights) makes new ones.

    Wire: drawn rows and weights to their learners, new priorities back to the rows' owners.
    """
    ### BEGIN SOLUTION
    smallest = priorities_N.min() if len(priorities_N) else torch.inf
    mine = torch.tensor([[priorities_N.sum(), len(priorities_N), smallest]], dtype=torch.float64)
    total_n, num_n, smallest_n = group.all_gather(mine).unbind(1)
    total, num, smallest = total_n.sum(), num_n.sum(), smallest_n.min()

    # Every rank computes the owner and the learner of each draw. Only the owner finds the row.
    place_B = u_B * total
    owner_B = torch.searchsorted(total_n.cumsum(0), place_B, right=True)
    learner_B = torch.arange(len(u_B)) * group.size // len(u_B)
    is_mine_B = owner_B == group.rank
    place = place_B[is_mine_B] - total_n[: group.rank].sum()
    row = torch.searchsorted(priorities_N.cumsum(0), place, right=True)

    largest = (num * smallest / total) ** -beta
    weight = (num * priorities_N[row] / total) ** -beta / largest
    send = learner_B[is_mine_B].bincount(minlength=group.size).tolist()
    receive = owner_B[learner_B == group.rank].bincount(minlength=group.size).tolist()
    rows = group.all_to_all(rows_NW[row], send, receive)
    new = learn(rows, group.all_to_all(weight, send, receive))

    after_N = priorities_N.clone()
    after_N[row] = group.all_to_all(new, receive, send)  # back the way that the rows came
    return after_N
    ### END SOLUTION
