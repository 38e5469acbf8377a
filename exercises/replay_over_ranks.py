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
    raise NotImplementedError("not attempted yet: your code replaces this line")
