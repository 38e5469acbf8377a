"""Dispatch and combine: rows to the ranks of their experts, and back.

Rank 0 has tokens a b c and expert 0; rank 1 has d e and expert 1. Each token has two choices, of
which b and c have lost one; | divides experts:

              by expert      with the expert     back again     sums by token
    rank 0    a b | a c      a b d e             a b | a c      a b c
    rank 1    d e | d e      a c d e             d e | d e      d e

1. Each rank sorts its assignments by expert, so that what goes to one rank lies together.
2. The ranks tell each other how many rows they will send: an all-to-all of counts. It has to be
   waited for before the rows can be received, and on a GPU the host waits for the device there,
   once in a layer; a router with a capacity makes it wait once more, for what it has dropped.
3. `dispatch`: the rows, an all-to-all with uneven blocks. They come by source, then by expert, and
   are put in order by expert: segments.
4. `combine`: the same backwards, and the rows of a token are added up.

The two are transposed to each other, where combine weighs every row 1: <dispatch x, y> =
<x, combine y>, summed over ranks. So backward of each is the other's forward, and sends its bytes.

Layout: x_ND, a rank's own tokens; rows_RD, all ranks' rows for its experts.
Wire, per rank: counts, 8 bytes for each expert of other ranks. Rows: forward, those whose expert
is elsewhere, then the answers to those of other ranks, each row D numbers; backward as much. No
row is padded: what an all-to-all of equal blocks, E * capacity rows, would send in vain is saved.
On a GPU two runs may differ in the last digits: rows of a token are added up in any order by
`index_add`, in combine and in dispatch's backward, and in the rows' own dtype. After
torch.use_deterministic_algorithms(True) they are added up in one order, more slowly.
The library's all-to-all: the bytes of `pairwise_all_to_all`, in one operation of which all
messages are under way at once, where the other takes n - 1 steps one after the other.

Papers: GShard, arXiv:2006.16668, section 3.2; MegaBlocks, arXiv:2211.15841, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.collectives import autograd
from labkit.comm import Group
from labkit.moe.routing import counts_of


@dataclass(frozen=True, eq=False)
class Plan:
    """Which rows go where, as one rank sees it. Made by `make_plan`, used by both ways."""

    group: Group
    num_tokens: int
    by_expert_A: Tensor
    """The assignments in the order in which they are sent."""
    token_A: Tensor
    """Their tokens, in that order."""
    send_rows: list[int]
    """By rank."""
    recv_rows: list[int]
    """By rank."""
    segments_R: Tensor
    """Where each row of the segments is among those received."""
    expert_rows: list[int]
    """Rows of each expert of this rank."""


@torch.no_grad()
def make_plan(
    token_A: Tensor,
    expert_A: Tensor,
    num_tokens: int,
    held: Sequence[range],
    group: Group,
) -> Plan:
    """Sort the assignments of this rank's tokens, and tell the others how many rows will come.

    held: the experts of each rank, `held_by_ranks`. Every rank calls it.
    Wire: an all-to-all of counts, int64: 8 bytes for each expert of other ranks.
    """
    by_expert_A = expert_A.argsort(stable=True)
    sent_E = counts_of(expert_A, held[-1].stop)
    num_own = len(held[group.rank])
    with group.label("counts"):
        received = group.all_to_all(sent_E, list(map(len, held)), [num_own] * group.size)
    # One wait of the host for all that it has to know.
    numbers = torch.cat([sent_E, received]).tolist()
    sent, came = numbers[: len(sent_E)], numbers[len(sent_E) :]
    by_source = [came[start : start + num_own] for start in range(0, len(came), num_own or 1)]
    # They arrive by source, then by expert; a stable sort by expert makes segments.
    experts_e = torch.arange(num_own, device=expert_A.device).repeat(group.size)
    expert_R = experts_e.repeat_interleave(received, output_size=sum(came))
    return Plan(
        group,
        num_tokens,
        by_expert_A,
        token_A[by_expert_A],
        send_rows=[sum(sent[its.start : its.stop]) for its in held],
        recv_rows=[sum(row) for row in by_source] or [0] * group.size,
        segments_R=expert_R.argsort(stable=True),
        expert_rows=[sum(column) for column in zip(*by_source)],
    )


def dispatch(x_ND: Tensor, plan: Plan) -> Tensor:
    """rows_RD for this rank's experts, expert by expert. Adjoint: combine.

    Wire: one all-to-all forward, one backward.
    """
    rows_AD = x_ND.index_select(0, plan.token_A)
    with plan.group.label("dispatch"):
        received_RD = autograd.all_to_all(
            rows_AD, plan.group, send_splits=plan.send_rows, recv_splits=plan.recv_rows
        )
    return received_RD.index_select(0, plan.segments_R)


def combine(rows_RD: Tensor, plan: Plan, weight_A: Tensor | None = None) -> Tensor:
    """y_ND: for each token the sum of its rows, times their weights. Adjoint: dispatch.

    weight_A: in the order of the assignments that the plan was made from; None: 1 each. They are
    multiplied where the token is, so neither they nor their gradients travel.
    Wire: one all-to-all forward, one backward.
    """
    by_source_RD = torch.zeros_like(rows_RD).index_copy(0, plan.segments_R, rows_RD)
    with plan.group.label("combine"):
        rows_AD = autograd.all_to_all(
            by_source_RD, plan.group, send_splits=plan.recv_rows, recv_splits=plan.send_rows
        )
    if weight_A is not None:
        rows_AD = rows_AD * weight_A[plan.by_expert_A][:, None]
    y_ND = rows_AD.new_zeros(plan.num_tokens, rows_AD.shape[1])
    return y_ND.index_add(0, plan.token_A, rows_AD)
