"""The lab's GPT with experts in the place of its MLPs, in every layer (as Mixtral).

    MoEGPT               all of it in one process: the oracle
    ExpertParallelGPT    experts sharded over a group; the rest on every rank

A forward pass returns how each layer was routed beside the logits: the auxiliary losses and the
expert load are made of it. A seed gives the same values to the same names, so a rank's experts
begin as they do in the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.model import Attention, Embedding, GPTConfig, initialize, require_tokens
from labkit.moe.balance_bias import BiasBalancedRouter
from labkit.moe.config import MoEConfig
from labkit.moe.layer import ExpertParallelMoE, MoE
from labkit.moe.routing import Routing


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


class MoEBlock(nn.Module):
    """x_BTD -> x_BTD and its routing: `labkit.model.Block` with experts."""

    def __init__(self, config: GPTConfig, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden, bias=False)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.hidden, bias=False)
        self.mlp = mlp

    def forward(self, x_BTD: Tensor, *group_tokens: Sequence[int]) -> tuple[Tensor, Routing]:
        """The next layer's features. group_tokens: as the layer of experts takes it."""
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD))
        y_BTD, routing = self.mlp(self.mlp_norm(x_BTD), *group_tokens)
        return x_BTD + y_BTD, routing


class MoEGPT(nn.Module):
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
        super().__init__()
        arguments.instance("config", config, GPTConfig, "give a GPTConfig, the sizes of the model")
        self.config, self.moe = config, moe
        with torch.random.fork_rng(devices=[]):  # torch's layers draw values as they are made
            self.embedding = Embedding(config)
            self.blocks = nn.ModuleList(
                MoEBlock(config, make_layer(config, moe)) for _ in range(config.num_layers)
            )
            self.norm = nn.LayerNorm(config.hidden, bias=False)
            self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.head.weight = self.embedding.token.weight
        self.to(dtype)
        initialize(self, seed, config.num_layers)

    def forward(self, tokens_BT: Tensor, group_sequences: Sequence[int] | None = None) -> MoEOutput:
        """group_sequences: how many sequences are routed together, in order; None: all are.

        As many groups as there would be ranks give their capacities, and what they drop.
        """
        require_tokens(tokens_BT, self.config.vocab, self.config.context)
        time = tokens_BT.shape[1]
        groups = [] if group_sequences is None else [[b * time for b in group_sequences]]
        x_BTD, routings = self.embedding(tokens_BT), []
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
    """A MoEGPT whose experts are sharded over `group`, mesh.ep: each rank has tokens of its own."""

    def __init__(
        self,
        config: GPTConfig,
        moe: MoEConfig,
        group: Group | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.group = group = chosen(group)

        def make_layer(config: GPTConfig, moe: MoEConfig) -> ExpertParallelMoE:
            return ExpertParallelMoE(config, moe, group)

        super().__init__(config, moe, seed, dtype, make_layer=make_layer)

    def forward(self, tokens_BT: Tensor, group_sequences: Sequence[int] | None = None) -> MoEOutput:
        """This rank's sequences; they are one group. ValueError where others are asked for."""
        if group_sequences is not None:
            raise ValueError("a rank's tokens are routed together; leave group_sequences out")
        return super().forward(tokens_BT)
