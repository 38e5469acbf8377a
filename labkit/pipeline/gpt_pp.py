"""The lab's GPT cut by layers into the stages of a pipeline.

    layer 0       1 ... L           L + 1
    embedding     blocks 0 .. L-1   norm and head

Every stage takes one tensor and gives one: the first tokens_BT -> x_BTD, those between x_BTD ->
x_BTD, the last x_BTD -> logits_BTV. The head's weight is the embedding's: where the first and the
last stage are on two ranks, each has a copy, and their gradients are added up (tied.py).

Layout: each parameter on one rank, whole; the tied one on one or two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.model import GPT, GPTConfig
from labkit.pipeline.balance import balance
from labkit.pipeline.op import Schedule

TIED = "embedding.token.weight"
"""The name in GPT of the weight that embedding and head share."""


class Layered(Protocol):
    """What can be cut into stages: a GPT, or another form of it under the same names."""

    config: GPTConfig
    embedding: Any
    blocks: Any
    norm: Any
    head: Any


class GPTStage(nn.Module):
    """Some neighbouring layers of a GPT: its own modules, under their names there."""

    def __init__(self, whole: Layered, layers: range) -> None:
        super().__init__()
        self.config = whole.config
        last = whole.config.num_layers + 1
        self.embedding = whole.embedding if 0 in layers else None
        self.blocks = nn.ModuleDict(
            {str(layer - 1): whole.blocks[layer - 1] for layer in layers if 0 < layer < last}
        )
        self.norm = whole.norm if last in layers else None
        self.head = whole.head if last in layers else None

    @property
    def tied(self) -> Tensor | None:
        """The weight that embedding and head share, where this stage has one of them."""
        weight: Tensor | None = None
        if self.embedding is not None:
            weight = self.embedding.token.weight
        elif self.head is not None:
            weight = self.head.weight
        return weight

    def forward(self, x: Tensor) -> Tensor:
        """tokens_BT or x_BTD -> x_BTD or logits_BTV."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


class PipelineGPT(nn.Module):
    """The stages of a GPT that one rank holds, filled as those of GPT(config, seed, dtype).

    stages: stage -> GPTStage. tied: the weight that embedding and head share, where this rank has
    one of them. layers: by stage, its layers, neighbours and each once; None: `balance` by FLOPs.
    cut: makes of the whole model another form of it, of which stage_class takes the layers; see
    labkit.combined.gpt_3d.
    ValueError: more stages than layers; layers that are not all of the model's, in order.
    """

    def __init__(
        self,
        config: GPTConfig,
        schedule: Schedule,
        rank: int,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        layers: Sequence[range] | None = None,
        cut: Callable[[GPT], Layered] = lambda whole: whole,
        stage_class: Callable[[Any, range], GPTStage] = GPTStage,
    ) -> None:
        super().__init__()
        arguments.whole(
            "rank", rank, f"0 to {schedule.num_ranks - 1}", least=0, most=schedule.num_ranks - 1
        )
        self.config, self.schedule, self.rank = config, schedule, rank
        if layers is None:
            layers = balance(layer_costs(config), schedule.num_stages)
        _require_layers(layers, config, schedule)
        self.layers = list(layers)
        whole = cut(GPT(config, seed, dtype))  # for a moment: the lab's models are small
        self._modules_of = nn.ModuleDict(
            {str(each): stage_class(whole, self.layers[each]) for each in schedule.stages_of(rank)}
        )
        tied = (stage.tied for stage in self.stages.values())
        self.tied: Tensor | None = next((weight for weight in tied if weight is not None), None)

    @property
    def stages(self) -> dict[int, GPTStage]:
        """stage -> module, those of this rank."""
        return {int(stage): module for stage, module in self._modules_of.items()}  # type: ignore[misc]

    def holder_of(self, name: str) -> int:
        """The rank that holds a parameter of GPT, by its name there; of the tied one the first."""
        kind, _, rest = name.partition(".")
        block = int(rest.split(".")[0]) if kind == "blocks" else 0
        layer = {"embedding": 0, "blocks": 1 + block}.get(kind, self.config.num_layers + 1)
        stage = next(stage for stage, layers in enumerate(self.layers) if layer in layers)
        return self.schedule.rank_of[stage]

    def gpt_parameters(self) -> dict[str, nn.Parameter]:
        """This rank's parameters by their names in GPT; the tied one is the embedding's."""
        found = {}
        for stage in self.stages.values():
            for name, parameter in stage.named_parameters():
                found[TIED if name == "head.weight" else name] = parameter
        return found

    def whole_parameters(self) -> list[tuple[str, Tensor]]:
        """Those of GPT by name, without numbers, in an order that is the same on all ranks."""
        with torch.device("meta"):
            whole = GPT(self.config, dtype=next(self.parameters()).dtype)
        return list(whole.named_parameters())


def gather_full_state(model: PipelineGPT, group: Group | None = None) -> dict[str, Tensor]:
    """The whole parameters, on every rank, by GPT's names. Every rank of the pipeline calls it.

    Wire: a broadcast of each parameter by the rank that holds it.
    """
    own, group = model.gpt_parameters(), chosen(group)
    state = {}
    for name, parameter in model.whole_parameters():
        root = model.holder_of(name)
        empty = torch.empty_like(parameter, device=group.device)
        mine = own[name].detach() if group.rank == root else empty
        state[name] = group.broadcast(mine, root)
    return state


def layer_costs(config: GPTConfig) -> list[float]:
    """FLOPs of a forward per token: of the embedding, of each block, of norm and head.

    A product with a weight of n numbers takes 2 n. Attention's two products with T keys of D
    features take 4 T D, of which the mask leaves a half. To look a row up takes none.
    """
    D, F, T = config.hidden, config.ffn_hidden, config.context
    kv_hidden = config.kv_heads * config.head_dim
    block = 2.0 * (2 * D * D + 2 * D * kv_hidden + 2 * D * F) + 2.0 * T * D
    return [0.0, *[block] * config.num_layers, 2.0 * D * config.vocab]


def _require_layers(layers: Sequence[range], config: GPTConfig, schedule: Schedule) -> None:
    asked = "give a range of layers for each stage"
    arguments.instance("layers", layers, Sequence, asked)
    for each in layers:
        if not isinstance(each, Sequence):
            raise TypeError(f"layers={layers!r}: {asked}")
    found = [layer for each in layers for layer in each]
    wanted = list(range(config.num_layers + 2))
    if len(layers) != schedule.num_stages or found != wanted or not all(layers):
        raise ValueError(
            f"layers={list(layers)} for {schedule.num_stages} stages of layers 0 (embedding) to "
            f"{wanted[-1]} (norm and head): give each stage one or more, all of them in order, as "
            "balance(layer_costs(config), num_stages) does"
        )
