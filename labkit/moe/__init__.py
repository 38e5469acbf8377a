"""Mixture of experts: every token goes through a few of many MLPs, which are sharded over ranks.

routing.py    the sizes, and the choice of a router
routing.py       what a router decides, and the letters of shapes: N, E, k, A
router.py        tokens choose experts: softmax, the k largest, weights
routing.py      how many choices an expert takes, and which are dropped
router.py        balance, and logits that stay small
router.py  balance without a loss
router.py experts choose tokens
moe_layer.py   the MLPs, over segments of rows
moe_layer.py      rows to the ranks of their experts, and back
moe_layer.py     MoE -> ExpertParallelMoE
gpt_moe.py       MoEGPT -> ExpertParallelGPT, and the whole parameters again
train_moe.py what is summed over which axes of the mesh; the norm of all
train_moe.py     serial, and over dp x ep
gpt_moe.py          who had how much to do
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
    ExpertParallelMoE,
    Experts,
    MoE,
    Plan,
    combine,
    dispatch,
    held_by_ranks,
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
    "Plan",
    "Routing",
    "TopKRouter",
    "clip_gradients",
    "combine",
    "dispatch",
    "expert_capacity",
    "expert_load",
    "gather_parameters",
    "held_by_ranks",
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
