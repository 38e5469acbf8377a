"""Short runs behind the cards on mixtures of experts: one layer over four ranks, eight experts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import torch

from labkit import Group
from labkit.interview.real_run import real_run, run
from labkit.launch.run_result import Run
from labkit.mesh import Mesh
from labkit.model import GPTConfig
from labkit.moe import (
    ExpertLoad,
    ExpertParallelMoE,
    MoE,
    MoEConfig,
    expert_load,
    load_balancing_loss,
    reduce_gradients,
    train_serial,
)
from labkit.moe.routing import RouterName
from labkit.train import TrainConfig

_RANKS = 4
_CONFIG = GPTConfig(context=64, num_layers=1, hidden=48, num_heads=2)
_MOE = MoEConfig(num_experts=8, top_k=2, expert_ffn=96)
_TOKENS = 4 * _CONFIG.context
# How far all tokens lean towards the first two experts, which are both on rank 0.
_LEANING = 0.2


@real_run
def all_to_alls_of_rows(phase: str) -> int:
    """Return all-to-alls of a layer that carry rows, on a rank: "forward" or "backward"."""
    return len(_sent_rows(phase))


@real_run
def own_tokens_sent(phase: str = "forward") -> float:
    """Bytes that a rank sends to experts and back, over those of its own tokens; mean of ranks."""
    sent = sum(sum(_sent_rows(phase, rank)) for rank in range(_RANKS))
    return sent / _RANKS / (_TOKENS * _CONFIG.hidden * 4)


@real_run
def imbalance(*, leaning: bool) -> float:
    """Choices of the busiest rank over the mean of all."""
    return _layer(leaning).values[0].imbalance


@real_run
def dropped_share(capacity_factor: float, *, leaning: bool) -> float:
    """Choices that find no place in their expert's buffer, as a share of all."""
    load: ExpertLoad = _layer(leaning, capacity_factor).values[0]
    return load.num_dropped / (_RANKS * _TOKENS * _MOE.top_k)


@real_run
def collapsed_balance_loss(num_experts: int) -> float:
    """Switch's loss where every token goes to one expert with certainty; 1 in balance."""
    config = MoEConfig(num_experts=num_experts, top_k=1, weights="of_all")
    layer = MoE(_CONFIG, config).double()
    with torch.no_grad():
        layer.router.gate.weight.zero_()[0] = 100.0
        _, routing = layer(torch.ones(1, 16, _CONFIG.hidden, dtype=torch.float64))
    return load_balancing_loss(routing).item()


@real_run
def undecided_balance_loss(num_experts: int) -> float:
    """Switch's loss of a router that gives all experts the same probability, k = 2.

    Its ties are broken somehow, and the loss does not see how.
    """
    layer = MoE(_CONFIG, MoEConfig(num_experts=num_experts, top_k=2))
    with torch.no_grad():
        layer.router.gate.weight.zero_()
        _, routing = layer(torch.randn(1, 64, _CONFIG.hidden))
    return load_balancing_loss(routing).item()


@real_run
def busiest_expert_over_mean(
    balance_coefficient: float = 0.0, router: RouterName = "top_k"
) -> float:
    """Choices of the busiest of 8 experts over the mean, k = 2: steps 41 to 60 of a training.

    A layer over the bytes of Python's standard library, on one rank; 4 is the most there can be.
    router: "bias_balanced" moves a bias by 0.01 a step.
    """
    trained = partial(_trained, balance_coefficient=balance_coefficient, router=router)
    return run(trained, 1).values[0]


@real_run
def expert_gradient_too_large() -> float:
    """Norm of an expert's gradient averaged over its copies, over the right one; dp 2 x ep 2."""
    return run(_averaged_over_copies, _RANKS).values[0]


@cache
def _layer(leaning: bool = False, capacity_factor: float | None = None) -> Run:
    moe = replace(_MOE, capacity_factor=capacity_factor)
    return run(partial(_one_layer, moe=moe, skew=_LEANING if leaning else 0.0), _RANKS)


def _one_layer(world: Group, moe: MoEConfig, skew: float) -> ExpertLoad:
    torch.manual_seed(world.rank)
    x_BTD = torch.randn(4, _CONFIG.context, _CONFIG.hidden)
    layer = ExpertParallelMoE(_CONFIG, moe, world)
    with torch.no_grad():
        gate = layer.router.gate.weight
        gate.copy_(torch.randn(gate.shape, generator=torch.Generator().manual_seed(5)))
        x_BTD += skew * gate[:2].sum(0)
    with world.region("forward"):
        y_BTD, routing = layer(x_BTD.requires_grad_())
    with world.region("backward"):
        y_BTD.square().sum().backward()
    return expert_load(routing, world)


def _sent_rows(phase: str, rank: int = 0) -> list[int]:
    """Bytes of each all-to-all of a phase but that of counts."""
    return [
        op.sent_bytes
        for op in _layer().timeline[rank].within(phase)
        if op.kind == "all_to_all" and op.label != "counts"
    ]


def _trained(world: Group, balance_coefficient: float, router: RouterName) -> float:
    config = GPTConfig(context=32, num_layers=1, hidden=32, num_heads=2)
    recipe = TrainConfig(num_steps=60, num_sequences=16, learning_rate=3e-3)
    moe = MoEConfig(
        num_experts=8,
        top_k=2,
        expert_ffn=32,
        router=router,
        balance_coefficient=balance_coefficient,
        bias_rate=0.01,
    )
    chosen_SE = train_serial(config, moe, recipe).chosen_SLE[-20:, 0].double()
    return (chosen_SE.max(1).values / chosen_SE.mean(1)).mean().item()


def _averaged_over_copies(world: Group) -> float:
    mesh = Mesh(world, dp=2, ep=2)
    torch.manual_seed(world.rank)
    x_BTD = torch.randn(2, _CONFIG.context, _CONFIG.hidden)
    layer = ExpertParallelMoE(_CONFIG, MoEConfig(num_experts=4, expert_ffn=32), mesh.ep)
    layer(x_BTD)[0].square().mean().backward()
    _, weight = next(layer.experts.named_parameters())
    assert weight.grad is not None
    wrong = mesh.dp.all_reduce(weight.grad) / mesh.dp.size
    reduce_gradients(layer, mesh)
    return (wrong.norm() / weight.grad.norm()).item()
