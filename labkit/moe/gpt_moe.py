"""The lab's GPT with experts instead of its MLPs, in every layer (as Mixtral).

    MoEGPT               all of it in one process: the oracle
    ExpertParallelGPT    experts sharded over a group; the rest on every rank

A forward pass returns how each layer was routed beside the logits: the auxiliary losses and the
expert load are made of it. A seed gives the same values to the same names, so a rank's experts
begin as they do in the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.copies import require_equal_copies
from labkit.model import GPT, Block, GPTConfig
from labkit.moe.balance_bias import BiasBalancedRouter
from labkit.moe.expert_mlps import Experts
from labkit.moe.moe_config import MoEConfig
from labkit.moe.moe_layer import ExpertParallelMoE, MoE
from labkit.moe.routing import Routing

_ASKED = (
    "were shared gradients reduced over all ranks, those of experts over dp, and clipped by one "
    "norm?"
)


class MoEOutput(NamedTuple):
    """What a forward pass returns."""

    logits_BTV: Tensor
    routings: list[Routing]
    """By layer."""

    @property
    def chosen_LE(self) -> Tensor:
        """Choices of each expert, layer by layer, int64."""
        return torch.stack([routing.chosen_E for routing in self.routings])

    @property
    def dropped_LE(self) -> Tensor:
        """Of these, the dropped ones."""
        return torch.stack([routing.dropped_E for routing in self.routings])


class MoEBlock(Block):
    """x_BTD -> x_BTD and its routing: `labkit.model.Block` with experts."""

    def forward(  # type: ignore[override]
        self, x_BTD: Tensor, *group_tokens: Sequence[int]
    ) -> tuple[Tensor, Routing]:
        """The next layer's features. group_tokens: as the layer of experts takes it."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        y_BTD, routing = self.mlp(self.mlp_norm(x_BTD), *group_tokens)
        return x_BTD + y_BTD, routing


class MoEGPT(GPT):
    """tokens_BT -> logits_BTV and the routing of each layer, in one process."""

    def __init__(
        self,
        config: GPTConfig,
        moe: MoEConfig,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        *,
        make_layer: Callable[[GPTConfig, MoEConfig], nn.Module] = MoE,
    ) -> None:
        """make_layer: what makes the experts of one layer."""

        def make_block(config: GPTConfig) -> MoEBlock:
            return MoEBlock(config, make_layer(config, moe))

        super().__init__(config, seed, dtype, make_block)
        self.moe = moe

    def forward(  # type: ignore[override]
        self, tokens_BT: Tensor, group_sequences: Sequence[int] | None = None
    ) -> MoEOutput:
        """group_sequences: how many sequences are routed together, in order; None: all are.

        As many groups as there would be ranks give their capacities, and what they drop.
        """
        x_BTD, routings = self.embedding(tokens_BT), []
        time = tokens_BT.shape[1]
        groups = [] if group_sequences is None else [[b * time for b in group_sequences]]
        for block in self.blocks:
            x_BTD, routing = block(x_BTD, *groups)
            routings.append(routing)
        return MoEOutput(self.head(self.norm(x_BTD)), routings)

    def layers(self) -> Iterator[MoE | ExpertParallelMoE]:
        """The layers of experts."""
        for block in self.blocks:
            assert isinstance(block, MoEBlock)
            assert isinstance(block.mlp, MoE | ExpertParallelMoE)
            yield block.mlp

    def rebalance(self, chosen_LE: Tensor) -> None:
        """After a step: move the biases by the load of the whole batch, where routers have any."""
        for layer, chosen_E in zip(self.layers(), chosen_LE, strict=True):
            if isinstance(layer.router, BiasBalancedRouter):
                layer.router.rebalance(chosen_E)


class ExpertParallelGPT(MoEGPT):
    """A MoEGPT whose experts are sharded over `group`, mesh.ep: each rank has tokens of its own.

    They are routed together: `group_sequences` is for a MoEGPT in one process.
    """

    def __init__(
        self,
        config: GPTConfig,
        moe: MoEConfig,
        group: Group | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        group = chosen(group)
        make_layer = partial(ExpertParallelMoE, group=group)
        super().__init__(config, moe, seed, dtype, make_layer=make_layer)
        self.group = group


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
