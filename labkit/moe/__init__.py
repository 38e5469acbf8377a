"""Mixture of experts: every token goes through a few of many MLPs, which are sharded over ranks.

Read in this order, and start here:

    plain.py       one expert per token: the two all-to-alls, forward alone

then:

    routing.py     a router's decision; the letters of shapes: N, E, k, A; how many choices an
                   expert takes, and which are dropped; the sizes of a layer
    router.py      tokens choose experts: softmax, the k largest, weights; experts choose tokens;
                   balance by a loss, and without one
    moe_layer.py   MoE -> ExpertParallelMoE: the MLPs over segments of rows; rows to the ranks of
                   their experts, and back
    gpt_moe.py     MoEGPT -> ExpertParallelGPT; gather the whole parameters; the load of each expert
    train_moe.py   train serially, and over dp x ep; which gradients are summed over which axes

examples/one_file/expert_parallel.py is a layer in plain torch.distributed, without labkit.
"""

from labkit.moe.gpt_moe import (
    ExpertLoad,
    ExpertParallelGPT,
    MoEGPT,
    MoEOutput,
    expert_load,
    gather_parameters,
)
from labkit.moe.moe_layer import (
    DispatchPlan,
    ExpertParallelMoE,
    Experts,
    MoE,
    combine,
    dispatch,
    experts_by_rank,
    make_plan,
)
from labkit.moe.router import (
    BiasBalancedRouter,
    ExpertChoiceRouter,
    TopKRouter,
    load_balancing_loss,
    z_loss,
)
from labkit.moe.routing import MoEConfig, Routing, expert_capacity, within_capacity
from labkit.moe.train_moe import (
    MoETrained,
    clip_gradients,
    reduce_gradients,
    shared_and_experts,
    train,
    train_serial,
    train_step,
)

__all__ = [
    "BiasBalancedRouter",
    "ExpertChoiceRouter",
    "ExpertLoad",
    "ExpertParallelGPT",
    "ExpertParallelMoE",
    "Experts",
    "MoE",
    "MoEConfig",
    "MoEGPT",
    "MoEOutput",
    "MoETrained",
    "DispatchPlan",
    "Routing",
    "TopKRouter",
    "clip_gradients",
    "combine",
    "dispatch",
    "expert_capacity",
    "expert_load",
    "gather_parameters",
    "experts_by_rank",
    "load_balancing_loss",
    "make_plan",
    "reduce_gradients",
    "shared_and_experts",
    "train",
    "train_serial",
    "train_step",
    "within_capacity",
    "z_loss",
]
