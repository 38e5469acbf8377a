"""A layer of experts, serial and expert-parallel: x_BTD -> x_BTD, and how it was routed.

    MoE                  all experts in one process, one after the other: the oracle
    ExpertParallelMoE    the experts sharded over a group, tokens travelling to them and back

To plain.py this adds backward, which needs the exchanges as adjoint operations; several experts per
token, with weights and dropped choices; and experts that the number of ranks does not divide.

Both have one router (replicated), and the parameters of the second are the first's, under the same
names: of `mlp.experts.3.up.weight` and so on each rank has some. Capacities and expert choice look
at a group of tokens (routing.py). In ExpertParallelMoE that is the rank's; MoE gets the number of
groups, and routes as so many ranks would.

Experts computes rows that come sorted by expert:

    rows_RD    expert 0 | expert 0 | expert 2 | expert 2 | expert 2       counts 2, 0, 3
               `-- one product --'   `------- one product -------'

No segment is padded to the busiest expert, and none is cut to make segments equal. (MegaBlocks
does this in one kernel, for GPUs, where many small products leave the device idle.)

Dispatch and combine carry rows to the ranks of their experts, and back. Rank 0 has tokens a b c and
expert 0; rank 1 has d e and expert 1. Each token has two choices, of which b and c have lost one;
| divides experts:

              by expert      with the expert     back again     sums by token
    rank 0    a b | a c      a b d e             a b | a c      a b c
    rank 1    d e | d e      a c d e             d e | d e      d e

1. Each rank sorts its assignments by expert, so that all rows for one rank lie together.
2. The ranks tell each other how many rows they will send: an all-to-all of counts. It has to be
   waited for before the rows can be received, and on a GPU the host waits for the device there,
   once in a layer; a router with a capacity makes it wait again, for its dropped choices.
3. `dispatch`: the rows, an all-to-all with uneven blocks. They come by source, then by expert, and
   are put in order by expert: segments.
4. `combine`: the same backwards, and the rows of a token are added up.

The two are transposed to each other, where combine weighs every row 1: <dispatch x, y> =
<x, combine y>, summed over ranks. So backward of each is the other's forward, and sends its bytes.

Layout: x_ND, a rank's own tokens; rows_RD, all ranks' rows for its experts.
Wire, per rank: counts, 8 bytes for each expert of other ranks. Rows: forward, those whose expert
is elsewhere, then the answers to those of other ranks, each row D numbers; backward as much. No row
is padded, as in an all-to-all of equal blocks of E * capacity rows. The library's all-to-all sends
the bytes of `pairwise_all_to_all`, with all messages under way at once instead of in n - 1 steps.
On a GPU two runs may differ in the last digits: `index_add` adds up the rows of a token in any
order, in combine and in dispatch's backward, in the rows' own dtype. After
torch.use_deterministic_algorithms(True) they are added up in one order, more slowly.

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
    """Every expert in turn computes the tokens that chose it; their weighted answers add up."""

    def __init__(self, config: GPTConfig, moe: MoEConfig) -> None:
        super().__init__()
        self.router = make_router(config, moe)
        self.experts = Experts(moe.of_expert(config), range(moe.num_experts))

    def forward(
        self, x_BTD: Tensor, group_tokens: Sequence[int] | None = None
    ) -> tuple[Tensor, Routing]:
        """Return the layer's output. group_tokens: tokens that are routed together, in order; None:
        all."""
        x_ND = x_BTD.flatten(0, 1)
        routing: Routing = self.router(x_ND, group_tokens)
        y_ND = x_ND.new_zeros(x_ND.shape)
        for number, mlp in enumerate(self.experts.values()):
            mine = routing.expert_A == number
            token, weight = routing.token_A[mine], routing.weight_A[mine]
            y_ND = y_ND.index_add(0, token, mlp(x_ND[token]) * weight[:, None])
        return y_ND.view_as(x_BTD), routing


class ExpertParallelMoE(nn.Module):
    """The same over a group, mesh.ep: a rank has its own tokens and `held[group.rank]` experts.

    Layout: x_BTD, each rank's own batch, of any number of tokens, 0 too; router replicated: seed it
    or broadcast it, which is not checked; experts dealt out in order, see `held_by_ranks` (they
    need not divide).
    Wire: an all-to-all of counts; forward two all-to-alls of rows, backward two. moe_layer.py.
    Every rank calls it, and backward too: x needs a gradient on every rank or on none.
    """

    def __init__(self, config: GPTConfig, moe: MoEConfig, group: Group | None = None) -> None:
        super().__init__()
        self.group = chosen(group)
        self.held = held_by_ranks(moe.num_experts, self.group.size)
        self.router = make_router(config, moe)
        self.experts = Experts(moe.of_expert(config), self.held[self.group.rank])

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Routing]:
        """Return the answers to this rank's tokens, and their routing."""
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
    """The MLPs of these numbers: rows_RD, sorted by expert -> rows_RD."""

    def __init__(self, config: GPTConfig, numbers: Iterable[int]) -> None:
        """config: `ffn_hidden` is what is inside one expert."""
        super().__init__({str(number): MLP(config) for number in numbers})

    def forward(self, rows_RD: Tensor, counts: Sequence[int]) -> Tensor:
        """counts: how many rows each of these experts has, in order; 0 is fine.

        An expert without a row takes part with none, so that its gradients are zeros, not missing.
        """
        if not len(self):
            return rows_RD
        parts = rows_RD.split(list(counts))
        return torch.cat([mlp(part) for mlp, part in zip(self.values(), parts, strict=True)])


def held_by_ranks(num_experts: int, num_ranks: int) -> tuple[range, ...]:
    """Return the experts of each rank, in order. The first E % n ranks hold one more.

    held_by_ranks(5, 3) == (range(0, 2), range(2, 4), range(4, 5)). Ranks beyond E hold none.
    """
    least, more = divmod(num_experts, num_ranks)
    starts = [rank * least + min(rank, more) for rank in range(num_ranks + 1)]
    return tuple(map(range, starts, starts[1:]))


@dataclass(frozen=True, eq=False)
class Plan:
    """The rows and where they go, as one rank sees it. Made by `make_plan`, used by both ways."""

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
    """Position of each row of the segments among those received."""
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
    """Return rows_RD for this rank's experts, expert by expert. Adjoint: combine.

    Wire: one all-to-all forward, one backward.
    """
    rows_AD = x_ND.index_select(0, plan.token_A)
    with plan.group.label("dispatch"):
        received_RD = autograd.all_to_all(
            rows_AD, plan.group, send_splits=plan.send_rows, recv_splits=plan.recv_rows
        )
    return received_RD.index_select(0, plan.segments_R)


def combine(rows_RD: Tensor, plan: Plan, weight_A: Tensor | None = None) -> Tensor:
    """Return y_ND: for each token the sum of its rows, times their weights. Adjoint: dispatch.

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
