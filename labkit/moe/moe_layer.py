"""A layer of experts, serial and expert-parallel: x_BTD -> x_BTD, and how it was routed.

    MoE                  all experts in one process, one after the other: the oracle
    ExpertParallelMoE    the experts sharded over a group, tokens travelling to them and back

Both have one router (replicated), and the parameters of the second are the first's, under the same
names; of the experts each rank has some.

Who routes what together: capacities and expert choice look at a group of tokens (capacity.py). In
ExpertParallelMoE that is the rank's. MoE is told, so that it routes as so many ranks would.
Paper: GShard, arXiv:2006.16668.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from labkit import arguments
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.model import GPTConfig
from labkit.moe.balance_bias import BiasBalancedRouter
from labkit.moe.dispatch import combine, dispatch, make_plan
from labkit.moe.expert_choice import ExpertChoiceRouter
from labkit.moe.expert_mlps import Experts, held_by_ranks
from labkit.moe.moe_config import MoEConfig
from labkit.moe.router import Router, TopKRouter
from labkit.moe.routing import Routing


class MoE(nn.Module):
    """Every expert in turn computes the tokens that chose it; their weighted answers add up."""

    def __init__(self, config: GPTConfig, moe: MoEConfig) -> None:
        super().__init__()
        self.router = make_router(config, moe)
        self.experts = Experts(moe.of_expert(config), range(moe.num_experts))

    def forward(
        self, x_BTD: Tensor, group_tokens: Sequence[int] | None = None
    ) -> tuple[Tensor, Routing]:
        """group_tokens: how many tokens are routed together, in order; None: all are."""
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
    Wire: an all-to-all of counts; forward two all-to-alls of rows, backward two. dispatch.py.
    Every rank calls it, and backward too: x needs a gradient on every rank or on none.
    """

    def __init__(self, config: GPTConfig, moe: MoEConfig, group: Group | None = None) -> None:
        super().__init__()
        self.group = chosen(group)
        self.held = held_by_ranks(moe.num_experts, self.group.size)
        self.router = make_router(config, moe)
        self.experts = Experts(moe.of_expert(config), self.held[self.group.rank])

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Routing]:
        """The answers to this rank's tokens, and their routing."""
        x_ND = x_BTD.flatten(0, 1)
        routing: Routing = self.router(x_ND)
        plan = make_plan(routing.token_A, routing.expert_A, len(x_ND), self.held, self.group)
        rows_RD = self.experts(dispatch(x_ND, plan), plan.expert_rows)
        y_ND = combine(rows_RD, plan, routing.weight_A)
        return y_ND.view_as(x_BTD), routing


def make_router(config: GPTConfig, moe: MoEConfig) -> Router:
    """The router that `moe` names."""
    arguments.instance("config", config, GPTConfig, "give a GPTConfig, the sizes of the model")
    arguments.instance("moe", moe, MoEConfig, "give a MoEConfig, the experts and their routing")
    if moe.router == "expert_choice":
        return ExpertChoiceRouter(config.hidden, moe.num_experts, moe.top_k)
    sizes = (config.hidden, moe.num_experts, moe.top_k)
    weights, factor = moe.weights, moe.capacity_factor
    if moe.router == "bias_balanced":
        rate = moe.bias_rate
        return BiasBalancedRouter(*sizes, rate=rate, weights=weights, capacity_factor=factor)
    return TopKRouter(*sizes, weights=weights, capacity_factor=factor)
