"""A layer of experts, serial and expert-parallel: x_BTD -> x_BTD, and how it was routed.

    MoE                  all experts in one process, one after the other: the oracle
    ExpertParallelMoE    the experts sharded over a group; tokens are sent to them and back

It adds to plain.py: backward, which needs the exchanges as adjoint operations; several experts per
token, with weights and dropped choices; and numbers of experts that n does not divide.

Both classes have the same parameters under the same names. In ExpertParallelMoE the router is
replicated, and each rank has some of the experts, such as `mlp.experts.3`. Capacities and expert
choice depend on a group of tokens (routing.py). In ExpertParallelMoE a group is a rank's tokens.
MoE is given the groups, and routes as that many ranks would.

Experts computes rows that come sorted by expert:

    rows_RD    expert 0 | expert 0 | expert 2 | expert 2 | expert 2       counts 2, 0, 3
               `-- one product --'   `------- one product -------'

No segment is padded to the busiest expert, and none is cut to make segments equal. (MegaBlocks
computes all segments in one kernel, because many small products leave a GPU idle.)

Dispatch sends rows to the ranks of their experts, and combine sends them back. Rank 0 has tokens
a b c and expert 0; rank 1 has d e and expert 1. Each token has two choices; one of b's and one of
c's was dropped. | divides experts:

              by expert      with the expert     back again     sums by token
    rank 0    a b | a c      a b d e             a b | a c      a b c
    rank 1    d e | d e      a c d e             d e | d e      d e

1. Each rank sorts its assignments by expert, so that all rows for one rank lie together.
2. An all-to-all of counts: each rank reports how many rows it will send. The rows cannot be
   received before the counts, so on a GPU the host waits for the device here, once per layer. A
   router with a capacity makes it wait once more, for the dropped choices.
3. `dispatch`: an all-to-all of the rows, with uneven blocks. Rows arrive by source, then by expert,
   and are sorted by expert into segments.
4. `combine`: an all-to-all of the results in the other direction. The rows of a token are summed.

With all weights 1, dispatch and combine are adjoint: <dispatch x, y> = <x, combine y>, summed over
ranks. So the backward of each is the forward of the other, and sends as many bytes.

Layout: x_ND, a rank's own tokens; rows_RD, all ranks' rows for its experts.
Wire, per rank: counts, 8 bytes for each expert of other ranks. Rows of D numbers: forward, those
whose expert is on another rank, then the results of other ranks' rows; backward as many. No row is
padding, unlike in an all-to-all of equal blocks of E * capacity rows. The library's all-to-all
sends the bytes of `pairwise_all_to_all`, with all messages in flight at once, not in n - 1 steps.
On a GPU two runs may differ in the last digits: in combine and in dispatch's backward, `index_add`
sums the rows of a token in any order, in the rows' own dtype. After
torch.use_deterministic_algorithms(True) it sums them in a fixed order, more slowly.

Papers: GShard, arXiv:2006.16668, section 3.2; MegaBlocks, arXiv:2211.15841, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit.collectives import autograd
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.model import MLP, GPTConfig
from labkit.moe.router import BiasBalancedRouter, ExpertChoiceRouter, Router, TopKRouter
from labkit.moe.routing import MoEConfig, Routing, counts_of


class MoE(nn.Module):
    """Compute each expert on the tokens that chose it, one expert after another: the oracle."""

    def __init__(self, config: GPTConfig, moe: MoEConfig) -> None:
        super().__init__()
        self.router = make_router(config, moe)
        self.experts = Experts(moe.for_expert(config), range(moe.num_experts))

    def forward(
        self, x_BTD: Tensor, group_tokens: Sequence[int] | None = None
    ) -> tuple[Tensor, Routing]:
        """Return the layer's output, and the routing.

        group_tokens: the sizes of groups of tokens that are routed together; None for one group.
        """
        x_ND = x_BTD.flatten(0, 1)
        routing: Routing = self.router(x_ND, group_tokens)
        y_ND = x_ND.new_zeros(x_ND.shape)
        for number, mlp in enumerate(self.experts.values()):
            mine = routing.expert_A == number
            token, weight = routing.token_A[mine], routing.weight_A[mine]
            y_ND = y_ND.index_add(0, token, mlp(x_ND[token]) * weight[:, None])
        return y_ND.view_as(x_BTD), routing


class ExpertParallelMoE(nn.Module):
    """MoE over a group such as mesh.ep. A rank has its own tokens and experts `held[group.rank]`.

    Layout: x_BTD, each rank's own batch, of any number of tokens, including 0. The router is
    replicated: give all ranks one seed, or broadcast it; this is not checked. `experts_by_rank`
    says which rank has which experts. Wire: an all-to-all of counts; two all-to-alls of rows in
    forward, and two in backward. Every rank calls forward and backward: x needs a gradient on every
    rank or on none.
    """

    def __init__(self, config: GPTConfig, moe: MoEConfig, group: Group | None = None) -> None:
        super().__init__()
        self.group = chosen(group)
        self.held = experts_by_rank(moe.num_experts, self.group.size)
        self.router = make_router(config, moe)
        self.experts = Experts(moe.for_expert(config), self.held[self.group.rank])

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Routing]:
        """Return the outputs of this rank's tokens, and their routing."""
        x_ND = x_BTD.flatten(0, 1)
        routing: Routing = self.router(x_ND)
        plan = make_plan(routing.token_A, routing.expert_A, len(x_ND), self.held, self.group)
        rows_RD = self.experts(dispatch(x_ND, plan), plan.expert_rows)
        y_ND = combine(rows_RD, plan, routing.weight_A)
        return y_ND.view_as(x_BTD), routing


def make_router(config: GPTConfig, moe: MoEConfig) -> Router:
    """Return the router that `moe` names."""
    if moe.router == "expert_choice":
        return ExpertChoiceRouter(config.hidden, moe.num_experts, moe.top_k)
    sizes = (config.hidden, moe.num_experts, moe.top_k)
    weights, factor = moe.weights, moe.capacity_factor
    if moe.router == "bias_balanced":
        rate = moe.bias_rate
        return BiasBalancedRouter(*sizes, rate=rate, weights=weights, capacity_factor=factor)
    return TopKRouter(*sizes, weights=weights, capacity_factor=factor)


class Experts(nn.ModuleDict):
    """The MLPs of some experts, by number: rows_RD, sorted by expert -> rows_RD."""

    def __init__(self, config: GPTConfig, numbers: Iterable[int]) -> None:
        """config: its `ffn_hidden` is that of one expert."""
        super().__init__({str(number): MLP(config) for number in numbers})

    def forward(self, rows_RD: Tensor, counts: Sequence[int]) -> Tensor:
        """counts: how many rows each of these experts has, in order.

        An expert without rows computes an empty tensor, so that its gradients are zeros, not None.
        """
        if not len(self):
            return rows_RD
        parts = rows_RD.split(list(counts))
        return torch.cat([mlp(part) for mlp, part in zip(self.values(), parts, strict=True)])


def experts_by_rank(num_experts: int, num_ranks: int) -> tuple[range, ...]:
    """Return the experts of each rank, in order. The first E % n ranks hold one more.

    experts_by_rank(5, 3) == (range(0, 2), range(2, 4), range(4, 5)). Ranks beyond E hold none.
    """
    least, more = divmod(num_experts, num_ranks)
    starts = [rank * least + min(rank, more) for rank in range(num_ranks + 1)]
    return tuple(map(range, starts, starts[1:]))


@dataclass(frozen=True, eq=False)
class DispatchPlan:
    """The rows that one rank sends and receives, from `make_plan`, for dispatch and combine."""

    group: Group
    num_tokens: int
    by_expert_A: Tensor
    """The indices of the assignments, sorted by expert: the order in which they are sent."""
    token_A: Tensor
    """Their tokens, in that order."""
    send_rows: list[int]
    """How many rows this rank sends to each rank."""
    recv_rows: list[int]
    """How many rows this rank receives from each rank."""
    segments_R: Tensor
    """The index, among the received rows, of each row of the segments."""
    expert_rows: list[int]
    """How many rows each expert of this rank gets."""


@torch.no_grad()
def make_plan(
    token_A: Tensor,
    expert_A: Tensor,
    num_tokens: int,
    held: Sequence[range],
    group: Group,
) -> DispatchPlan:
    """Sort the assignments of this rank's tokens, and exchange the numbers of rows to be sent.

    held: the experts of each rank, `experts_by_rank`. Every rank calls it.
    Wire: an all-to-all of counts, int64: 8 bytes for each expert of other ranks.
    """
    by_expert_A = expert_A.argsort(stable=True)
    sent_E = counts_of(expert_A, held[-1].stop)
    num_own = len(held[group.rank])
    with group.label("counts"):
        received = group.all_to_all(sent_E, list(map(len, held)), [num_own] * group.size)
    # The host waits for the device once, for all counts together.
    counts = torch.cat([sent_E, received]).tolist()
    sent, received_counts = counts[: len(sent_E)], counts[len(sent_E) :]
    by_source = [
        received_counts[start : start + num_own]
        for start in range(0, len(received_counts), num_own or 1)
    ]
    # Rows arrive by source, then by expert. A stable sort by expert makes segments.
    experts_e = torch.arange(num_own, device=expert_A.device).repeat(group.size)
    expert_R = experts_e.repeat_interleave(received, output_size=sum(received_counts))
    return DispatchPlan(
        group,
        num_tokens,
        by_expert_A,
        token_A[by_expert_A],
        send_rows=[sum(sent[experts.start : experts.stop]) for experts in held],
        recv_rows=[sum(row) for row in by_source] or [0] * group.size,
        segments_R=expert_R.argsort(stable=True),
        expert_rows=[sum(column) for column in zip(*by_source)],
    )


def dispatch(x_ND: Tensor, plan: DispatchPlan) -> Tensor:
    """Return rows_RD for this rank's experts, expert by expert. Adjoint: combine.

    Wire: one all-to-all forward, one backward.
    """
    rows_AD = x_ND.index_select(0, plan.token_A)
    with plan.group.label("dispatch"):
        received_RD = autograd.all_to_all(
            rows_AD, plan.group, send_splits=plan.send_rows, recv_splits=plan.recv_rows
        )
    return received_RD.index_select(0, plan.segments_R)


def combine(rows_RD: Tensor, plan: DispatchPlan, weight_A: Tensor | None = None) -> Tensor:
    """Return y_ND: for each token the sum of its rows, times their weights. Adjoint: dispatch.

    weight_A: in the order of the assignments given to `make_plan`; None for weights of 1. Weights
    are applied on the token's rank, so neither they nor their gradients are sent.
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
