"""The lab's GPT cut by layers into the stages of a pipeline, and its training there.

    layer 0       1 ... L           L + 1
    embedding     blocks 0 .. L-1   norm and head

Every stage takes and returns one tensor: the first tokens_BT -> x_BTD, those between x_BTD ->
x_BTD, the last x_BTD -> logits_BTV. The head's weight is the embedding's. If the first and the last
stage are on two ranks, each has a copy, and the copies' gradients are summed (executor.py).

Layout: each parameter is whole and on one rank; the tied weight is on one or two.

`balance` chooses the layers of each stage. A pipeline is as fast as its slowest stage, and layers
differ in cost: a head over a large vocabulary costs as much as several blocks, an embedding almost
nothing.

    costs 1 4 4 4 4 9, 3 stages     even  [1 4] [4 4] [4 9]   13      best  [1 4 4] [4 4] [9]   9

Exact, by dynamic programming over the number of layers and of stages:
    best(n, k) = the least over i of max(best(i, k - 1), costs[i] + ... + costs[n - 1])
If ranks differ in speed, the sum is divided by the speed of the stage's rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from math import inf
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit import arguments
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data import Batch, Corpus, counted
from labkit.model import GPT, GPTConfig
from labkit.optimizer import Optimizer
from labkit.pipeline.executor import Pipeline, WeightedLoss
from labkit.pipeline.op import Row, Schedule, plan, require_schedule
from labkit.pipeline.schedules import one_f_one_b
from labkit.pipeline.simulation import plain
from labkit.shards import NamedShard, named_shards
from labkit.train import TrainConfig, Trained, fit

TIED = "embedding.token.weight"
"""The name in GPT of the weight that embedding and head share."""


class StageableGPT(Protocol):
    """A model that can be cut into stages: a GPT, or another form of it under the same names."""

    config: GPTConfig
    embedding: Any
    blocks: Any
    norm: Any
    head: Any


class GPTStage(nn.Module):
    """Some neighbouring layers of a GPT: the GPT's own modules, under their names in it."""

    def __init__(self, whole: StageableGPT, layers: range) -> None:
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
        """The weight that embedding and head share, if this stage has one of them; else None."""
        weight: Tensor | None = None
        if self.embedding is not None:
            weight = self.embedding.token.weight
        elif self.head is not None:
            weight = self.head.weight
        return weight

    def forward(self, x: Tensor) -> Tensor:
        """Turn tokens_BT or x_BTD into x_BTD or logits_BTV."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


class PipelineGPT(nn.Module):
    """The stages of a GPT that one rank holds, initialized like those of GPT(config, seed, dtype).

    stages: stage -> GPTStage. tied: the weight that embedding and head share, if this rank has one
    of them. layers: the neighbouring layers of each stage; None: `balance` by FLOPs. cut: changes
    the whole model before stage_class takes layers from it; see labkit.combined.gpt_3d.
    ValueError for more stages than layers, and for layers that are not all of the model's, in
    order.
    """

    def __init__(
        self,
        config: GPTConfig,
        schedule: Schedule,
        rank: int,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        layers: Sequence[range] | None = None,
        cut: Callable[[GPT], StageableGPT] = lambda whole: whole,
        stage_class: Callable[[Any, range], GPTStage] = GPTStage,
    ) -> None:
        super().__init__()
        require_schedule(schedule)
        self.config, self.schedule, self.rank = config, schedule, rank
        if layers is None:
            layers = balanced_stages(layer_costs(config), schedule.num_stages)
        _require_layers(layers, config, schedule)
        self.layers = list(layers)
        whole = cut(GPT(config, seed, dtype))  # whole only here: the lab's models are small
        self._modules_of = nn.ModuleDict(
            {str(each): stage_class(whole, self.layers[each]) for each in schedule.stages_of(rank)}
        )
        tied = (stage.tied for stage in self.stages.values())
        self.tied: Tensor | None = next((weight for weight in tied if weight is not None), None)

    @property
    def stages(self) -> dict[int, GPTStage]:
        """stage -> module, for the stages of this rank."""
        return {int(stage): module for stage, module in self._modules_of.items()}  # type: ignore[misc]

    def owner_of(self, name: str) -> int:
        """Return the rank that holds a parameter, by its name in GPT; for the tied weight, the
        first stage's."""
        kind, _, rest = name.partition(".")
        block = int(rest.split(".")[0]) if kind == "blocks" else 0
        layer = {"embedding": 0, "blocks": 1 + block}.get(kind, self.config.num_layers + 1)
        stage = next(stage for stage, layers in enumerate(self.layers) if layer in layers)
        return self.schedule.rank_of[stage]

    def gpt_parameters(self) -> dict[str, nn.Parameter]:
        """Return this rank's parameters by name in GPT; the tied weight is the embedding's."""
        found = {}
        for stage in self.stages.values():
            for name, parameter in stage.named_parameters():
                found[TIED if name == "head.weight" else name] = parameter
        return found

    def named_shards(self) -> Iterator[NamedShard]:
        """Yield this rank's parameters and buffers by their names in GPT, for a checkpoint."""
        of_stages = (shard for stage in self.stages.values() for shard in named_shards(stage))
        found = {TIED if x.name == "head.weight" else x.name: x for x in of_stages}
        return (replace(shard, name=name) for name, shard in found.items())

    def whole_parameters(self) -> list[tuple[str, Tensor]]:
        """Return GPT's parameters by name, on the meta device, in the same order on all ranks."""
        with torch.device("meta"):
            whole = GPT(self.config, dtype=next(self.parameters()).dtype)
        return list(whole.named_parameters())


def gather_full_state(model: PipelineGPT, group: Group | None = None) -> dict[str, Tensor]:
    """Gather the whole parameters on every rank, by GPT's names. All ranks call it.

    Wire: a broadcast of each parameter by the rank that holds it.
    """
    own, group = model.gpt_parameters(), chosen(group)
    state = {}
    for name, parameter in model.whole_parameters():
        root = model.owner_of(name)
        empty = torch.empty_like(parameter, device=group.device)
        mine = own[name].detach() if group.rank == root else empty
        state[name] = group.broadcast(mine, root)
    return state


def _require_layers(layers: Sequence[range], config: GPTConfig, schedule: Schedule) -> None:
    found = [layer for each in layers for layer in each]
    wanted = list(range(config.num_layers + 2))
    if len(layers) != schedule.num_stages or found != wanted or not all(layers):
        raise ValueError(
            f"layers={list(layers)} for {schedule.num_stages} stages of layers 0 (embedding) to "
            f"{wanted[-1]} (norm and head): give each stage one or more, all of them in order, as "
            "balanced_stages(layer_costs(config), num_stages) does"
        )


def train(
    group: Group,
    config: GPTConfig,
    settings: TrainConfig,
    row: Row = one_f_one_b,
    num_microbatches: int = 4,
    corpus: Corpus | None = None,
    layers: Sequence[range] | None = None,
) -> Trained:
    """Run `labkit.train.train_serial` on the ranks of `group`: run(train, 4, args=(config,
    settings)).

    row: a schedule, such as gpipe or partial(interleaved, virtual=2). layers: by stage, as for
    PipelineGPT. Every rank returns the losses and the whole parameters; both equal the serial ones
    up to rounding. corpus: None for Python's standard library.
    """
    schedule = plan(row, group.size, num_microbatches)
    model = PipelineGPT(config, schedule, group.rank, settings.seed, settings.dtype, layers)
    model.to(group.device)
    pipeline = Pipeline(schedule, model.stages, token_loss, group, tied=model.tied)
    optimizer = settings.make_optimizer(model.parameters())
    losses = fit(partial(train_step, pipeline, optimizer), config, settings, corpus)
    state = {name: parameter.cpu() for name, parameter in gather_full_state(model, group).items()}
    return Trained(losses_everywhere(losses, schedule, group).tolist(), state)


def train_step(pipeline: Pipeline, optimizer: Optimizer, batch: Batch) -> float | None:
    """Take one step on a batch, the same on every rank. The last stage's rank gets the loss.

    The timeline names the phases.
    """
    optimizer.zero_grad()
    step = pipeline.step(batch.inputs_BT, batch.targets_BT)
    with pipeline.group.region("optimizer"):
        optimizer.step()
    return step.loss


def losses_everywhere(losses: Sequence[float | None], schedule: Schedule, group: Group) -> Tensor:
    """Return the losses of the last stage, float64, on every rank. Wire: a broadcast."""
    known = torch.tensor([each or 0.0 for each in losses], dtype=torch.float64)
    return group.broadcast(known.to(group.device), schedule.rank_of[schedule.num_stages - 1])


def _mean_over_tokens(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next token, in nats, or 0 if no target counts."""
    total = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="sum")
    return total / counted(targets_BT).sum().clamp(min=1)


def num_counted(targets_BT: Tensor) -> int:
    """Return how many targets are not IGNORED: the weight of a microbatch."""
    return int(counted(targets_BT).sum())


token_loss = WeightedLoss(_mean_over_tokens, num_counted)
"""The mean cross-entropy of the next token over the targets of a batch that are not IGNORED."""


def layer_costs(config: GPTConfig) -> list[float]:
    """Return each layer's FLOPs of a forward per token: the embedding, the blocks, norm and head.

    A product with a weight of n numbers takes 2 n. Attention's two products with T keys of D
    features take 4 T D, of which the mask leaves half. The lookup of an embedding takes none.
    """
    D, F, T = config.hidden, config.ffn_hidden, config.context
    kv_hidden = config.kv_heads * config.head_dim
    block = 2.0 * (2 * D * D + 2 * D * kv_hidden + 2 * D * F) + 2.0 * T * D
    return [0.0, *[block] * config.num_layers, 2.0 * D * config.vocab]


def balanced_stages(
    costs: Sequence[float], num_stages: int, speeds: Sequence[float] | None = None
) -> list[range]:
    """Return the layers of each stage so that the slowest stage is as fast as possible.

    costs: of each layer, with embedding and head, in any unit. speeds: of each stage's rank, in any
    unit; None: all are equal. Among equally fast cuts it returns the one with the least sum of
    squares. Time: 2 num_stages * layers**2.
    balanced_stages([1, 4, 4, 4, 4, 9], 3) == [range(0, 3), range(3, 5), range(5, 6)]
    balanced_stages([1, 1, 1, 1], 2, speeds=[3, 1]) == [range(0, 3), range(3, 4)]
    ValueError, TypeError for more stages than layers, for a num_stages that is not whole, and for
    speeds that are not above 0, one for each stage.
    """
    costs = plain(costs)
    _require_stages(num_stages, len(costs))
    speeds = [1.0] * num_stages if speeds is None else plain(speeds)
    if len(speeds) != num_stages:
        raise ValueError(f"speeds={speeds} for {num_stages} stages; give one for each stage")
    for stage, speed in enumerate(speeds):
        arguments.number(f"speeds[{stage}]", speed, "each stage needs one above 0", above=0)
    slowest, _ = _best_cut(costs, speeds, max)

    def sum_of_squares(before: float, cost: float) -> float:
        return before + cost * cost if cost <= slowest else inf

    _, stages = _best_cut(costs, speeds, sum_of_squares)
    return stages


def _best_cut(
    costs: Sequence[float], speeds: Sequence[float], add: Callable[[float, float], float]
) -> tuple[float, list[range]]:
    """Return the least total of the stages' times, combined by `add`, and the cut that has it."""
    num_layers = len(costs)
    cost_before = [0.0, *accumulate(float(cost) for cost in costs)]
    # best[n]: the least total of the first n layers on k stages. starts[k - 1][n]: the first layer
    # of the last of these stages.
    best = [0.0] + [inf] * num_layers
    starts: list[list[int]] = []
    for k, speed in enumerate(speeds, 1):
        before, best, start = best, [inf] * (num_layers + 1), [k - 1] * (num_layers + 1)
        for n in range(k, num_layers + 1):
            for i in range(k - 1, n):
                total = add(before[i], (cost_before[n] - cost_before[i]) / speed)
                if total < best[n]:
                    best[n], start[n] = total, i
        starts.append(start)
    ends = [num_layers]
    for start in reversed(starts):
        ends.append(start[ends[-1]])
    return best[num_layers], [range(a, b) for a, b in pairwise(reversed(ends))]


def even_stages(num_layers: int, num_stages: int) -> list[range]:
    """Return equally many layers for each stage; the first stages have one more if need be.

    ValueError, TypeError for more stages than layers, and for a num_stages that is not whole.
    """
    _require_stages(num_stages, num_layers)
    share, rest = divmod(num_layers, num_stages)
    starts = [stage * share + min(stage, rest) for stage in range(num_stages + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


def stage_costs(costs: Sequence[float], stages: Sequence[range]) -> list[float]:
    """Return the sum of its layers' costs for each stage."""
    costs = plain(costs)
    return [sum(costs[layer] for layer in layers) for layers in stages]


def _require_stages(num_stages: int, num_layers: int) -> None:
    allowed = f"a stage needs a layer, and there are {num_layers}"
    arguments.whole("num_stages", num_stages, allowed, most=num_layers)
