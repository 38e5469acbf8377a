"""Mixture of experts: every token goes through a few of many MLPs, which are sharded over ranks.

moe_config.py    the sizes, and the choice of a router
routing.py       what a router decides, and the letters of shapes: N, E, k, A
router.py        tokens choose experts: softmax, the k largest, weights
capacity.py      how many choices an expert takes, and which are dropped
losses.py        balance, and logits that stay small
balance_bias.py  balance without a loss
expert_choice.py experts choose tokens
expert_mlps.py   the MLPs, over segments of rows
dispatch.py      rows to the ranks of their experts, and back
moe_layer.py     MoE -> ExpertParallelMoE
gpt_moe.py       MoEGPT -> ExpertParallelGPT, and the whole parameters again
gradients_moe.py what is summed over which axes of the mesh; the norm of all
train_moe.py     serial, and over dp x ep
load.py          who had how much to do
"""

from labkit.moe.balance_bias import BiasBalancedRouter
from labkit.moe.capacity import expert_capacity, within_capacity
from labkit.moe.dispatch import Plan, combine, dispatch, make_plan
from labkit.moe.expert_choice import ExpertChoiceRouter
from labkit.moe.expert_mlps import Experts, held_by_ranks
from labkit.moe.gpt_moe import ExpertParallelGPT, MoEGPT, MoEOutput, gather_parameters
from labkit.moe.gradients_moe import clip_gradients, reduce_gradients, shared_and_experts
from labkit.moe.load import ExpertLoad, expert_load
from labkit.moe.losses import load_balancing_loss, z_loss
from labkit.moe.moe_config import MoEConfig
from labkit.moe.moe_layer import ExpertParallelMoE, MoE
from labkit.moe.router import TopKRouter
from labkit.moe.routing import Routing
from labkit.moe.train_moe import MoETrained, train, train_serial, train_step

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
