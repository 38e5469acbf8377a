"""A small GPT on real text, with every sequence cut: `labkit.train.train_serial` on many ranks.

Every rank has all sequences of a batch, and of each some tokens:

    batch B x T      rank 0: B x t      rank 1: B x t      ...      data parallelism: b x T

The loss is the mean over all tokens, so a rank's part is its sum over B * T, not over its own
number: parts add up, also where shards are unequal. Parameters are replicated, so their gradients
are summed over the group once per step: data parallelism's all-reduce, on the same group.
"""

from functools import partial

from torch.nn import functional as F

from labkit.comm import Group
from labkit.context_parallel.gpt_cp import Attend, ContextParallelGPT
from labkit.context_parallel.ring_attention import ring_attention
from labkit.context_parallel.token_placement import Placement, shard_sequence, zigzag
from labkit.data import Batch, Corpus
from labkit.data_parallel import BucketedDDP
from labkit.model import GPTConfig
from labkit.optimizer import Optimizer
from labkit.train import (
    TrainConfig,
    Trained,
    copy_parameters,
    fit,
    require_configs,
    summed_losses,
)


def train(
    world: Group,
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    attention: Attend = ring_attention,
    placement: Placement = zigzag,
) -> Trained:
    """`labkit.train.train_serial` on the ranks of `world`: run(train, 4, args=(config, settings)).

    Every rank returns the losses over the global batch and the parameters; both equal the serial
    ones up to rounding. None: Python's standard library is the corpus.
    """
    require_configs(config, settings)
    module = ContextParallelGPT(
        config, world, attention, placement, settings.seed, settings.dtype
    ).to(world.device)
    model = BucketedDDP(module, world)
    optimizer = settings.make_optimizer(module.parameters())
    step = partial(train_step, model, optimizer, placement=placement)
    parts = fit(step, config, settings, corpus)
    return Trained(summed_losses(parts, world), copy_parameters(module))


def train_step(
    model: BucketedDDP, optimizer: Optimizer, batch: Batch, placement: Placement
) -> float:
    """One step on this rank's tokens of a global batch; its part of the global loss.

    The parts of all ranks add up to the loss. The timeline names the phases.
    """
    group = model.group
    batch = batch.to(group.device)
    targets_Bt = shard_sequence(batch.targets_BT, group, placement)
    optimizer.zero_grad()
    with group.region("forward"):
        logits_BtV = model(batch.inputs_BT)
        total = F.cross_entropy(logits_BtV.flatten(0, 1), targets_Bt.flatten(), reduction="sum")
        part = total / max(1, batch.num_targets)
    with group.region("backward"):
        # Of these the model takes the mean over the ranks, and the sum is meant.
        (part * group.size).backward()
    with group.region("reduce"):
        model.reduce_gradients()
    with group.region("optimizer"):
        optimizer.step()
    return part.item()
