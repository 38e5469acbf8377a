"""The lab's GPT with experts instead of its MLPs, in every layer (as Mixtral), and their load.

    MoEGPT               all of it in one process: the oracle
    ExpertParallelGPT    experts sharded over a group; the rest on every rank

A forward pass returns how each layer was routed beside the logits: the auxiliary losses and the
expert load are made of it. A seed gives the same values to the same names, so a rank's experts
begin as they do in the whole.

ExpertLoad: how many tokens each expert, and so each rank, computed. The rank with most decides
when the combine can be sent, and the others wait for it: with experts sharded over ranks, an uneven
router makes a straggler. How much that costs is `imbalance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.copies import require_equal_copies
from labkit.model import GPT, Block, GPTConfig
from labkit.moe.moe_layer import ExpertParallelMoE, Experts, MoE, experts_by_rank
from labkit.moe.router import BiasBalancedRouter
from labkit.moe.routing import MoEConfig, Routing

_ASKED = (
    "were shared gradients reduced over all ranks, those of experts over dp, and clipped by one "
    "norm?"
)


class MoEOutput(NamedTuple):
    """The result of a forward pass."""

    logits_BTV: Tensor
    routings: list[Routing]
    """By layer."""

    @property
    def chosen_LE(self) -> Tensor:
        """Choices of each expert, layer by layer, int64."""
        return torch.stack([routing.chosen_E for routing in self.routings])

    @property
    def dropped_LE(self) -> Tensor:
        """Dropped choices of each layer and expert."""
        return torch.stack([routing.dropped_E for routing in self.routings])


class MoEBlock(Block):
    """x_BTD -> x_BTD and its routing: `labkit.model.Block` with experts."""

    def forward(  # type: ignore[override]
        self, x_BTD: Tensor, *group_tokens: Sequence[int]
    ) -> tuple[Tensor, Routing]:
        """Return the next layer's features. group_tokens: as the layer of experts takes it."""
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
        """Yield the layers of experts."""
        for block in self.blocks:
            assert isinstance(block, MoEBlock)
            assert isinstance(block.mlp, MoE | ExpertParallelMoE)
            yield block.mlp

    def rebalance(self, chosen_LE: Tensor) -> None:
        """Move the routers' biases, if any, by the load of the whole batch after a step."""
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
    """Gather all parameters by their names in MoEGPT, as copies on the CPU. All ranks call it.

    world: the ranks that must have the same, all of the mesh: RuntimeError, on every one, that
    names parameters whose copies differ. None: this is not looked at.
    Wire: an all-gather for each layer, of as many experts as the rank with most has; to compare, a
    broadcast of each parameter.
    """
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
    """Return a layer's experts as rows of numbers, since all experts are equally large."""
    one = Experts(model.moe.for_expert(model.config), [0])["0"]
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


@dataclass(frozen=True)
class ExpertLoad:
    """Choices of one layer, in plain numbers: kept[r][e] from rank r to expert e."""

    kept: tuple[tuple[int, ...], ...]
    """Computed: by source rank, then by expert."""
    dropped: tuple[tuple[int, ...], ...]
    """Not computed: of the same form."""
    held: tuple[range, ...]
    """The experts of each rank."""

    @property
    def by_expert(self) -> list[int]:
        """Choices that each expert computes."""
        return [sum(column) for column in zip(*self.kept)]

    @property
    def dropped_by_expert(self) -> list[int]:
        """Choices that each expert turned away."""
        return [sum(column) for column in zip(*self.dropped)]

    @property
    def by_rank(self) -> list[int]:
        """Choices that each rank computes: those of the experts it holds."""
        by_expert = self.by_expert
        return [sum(by_expert[number] for number in held) for held in self.held]

    @property
    def num_dropped(self) -> int:
        """Choices that nobody computes."""
        return sum(self.dropped_by_expert)

    @property
    def imbalance(self) -> float:
        """The busiest rank's choices over the mean of all: 1 is balanced, n: one rank has all."""
        by_rank = self.by_rank
        return max(by_rank) * len(by_rank) / max(1, sum(by_rank))

    def between_ranks(self) -> list[list[int]]:
        """[r][s]: rows that rank r sends to rank s in a dispatch; on the diagonal, what stays."""
        return [[sum(row[number] for number in held) for held in self.held] for row in self.kept]


def expert_load(routing: Routing, group: Group | None = None) -> ExpertLoad:
    """Return the load of a layer whose experts are sharded over `group`, on every rank.

    routing: of this rank's tokens, as a layer returns it. Every rank calls it.
    Wire: an all-gather of 2 E counts.
    """
    group = chosen(group)
    mine_12E = torch.stack([routing.kept_E, routing.dropped_E])[None]
    all_n2E: Tensor = group.all_gather(mine_12E)
    kept, dropped = (_rows(all_n2E[:, which]) for which in range(2))
    return ExpertLoad(kept, dropped, experts_by_rank(routing.num_experts, group.size))


def _rows(counts_nE: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in counts_nE.tolist())
