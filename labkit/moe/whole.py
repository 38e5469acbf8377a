"""The whole model's parameters on every rank, from those that are sharded by expert."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group
from labkit.copies import require_equal_copies
from labkit.moe.expert_mlps import Experts
from labkit.moe.gpt_moe import ExpertParallelGPT
from labkit.moe.moe_layer import ExpertParallelMoE

_ASKED = (
    "were shared gradients reduced over all ranks, those of experts over dp, and clipped by one "
    "norm?"
)


@torch.no_grad()
def gather_parameters(model: ExpertParallelGPT, world: Group | None = None) -> dict[str, Tensor]:
    """All parameters by their names in MoEGPT, detached copies on the CPU. Every rank calls it.

    world: the ranks that must have the same, all of the mesh: RuntimeError, on every one, that
    names parameters whose copies differ. None: this is not looked at.
    Wire: an all-gather for each layer, of as many experts as the rank with most has; to compare, a
    broadcast of each parameter.
    """
    arguments.instance("model", model, ExpertParallelGPT, "give an ExpertParallelGPT")
    layers = {
        name: each for name, each in model.named_modules() if isinstance(each, ExpertParallelMoE)
    }
    of_experts = tuple(f"{name}.experts." for name in layers)
    found = {
        name: parameter.detach().cpu().clone()
        for name, parameter in model.named_parameters()
        if not name.startswith(of_experts)
    }
    for layer_name, layer in layers.items():
        found |= {f"{layer_name}.experts.{n}": x for n, x in _experts_of(layer, model).items()}
    if world is not None:
        require_equal_copies(found, world, _ASKED)
    return found


def _experts_of(layer: ExpertParallelMoE, model: ExpertParallelGPT) -> dict[str, Tensor]:
    """Each expert is as large as the others, so it travels as a row of numbers."""
    one = Experts(model.moe.of_expert(model.config), [0])["0"]
    shapes = {name: parameter.shape for name, parameter in one.named_parameters()}
    numel = sum(shape.numel() for shape in shapes.values())
    example = layer.router.gate.weight
    rows = example.new_zeros(max(map(len, layer.held)), numel)
    for row, expert in zip(rows, layer.experts.values()):
        row.copy_(torch.cat([parameter.flatten() for parameter in expert.parameters()]))
    of_ranks = layer.group.all_gather(rows).split(len(rows))
    found = {}
    for held, of_rank in zip(layer.held, of_ranks, strict=True):
        for number, row in zip(held, of_rank):
            parts = row.split([shape.numel() for shape in shapes.values()])
            for (name, shape), part in zip(shapes.items(), parts, strict=True):
                found[f"{number}.{name}"] = part.view(shape).cpu().clone()
    return found
