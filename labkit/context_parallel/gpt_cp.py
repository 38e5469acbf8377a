"""The lab's GPT on a sequence that is sharded over a group, and its training there.

    tokens_BT, the same on every rank -> its own tokens, at their positions in the whole sequence
              -> blocks, in which only attention communicates -> logits_BtV of its tokens

Norms, MLP, head and the projections of attention work token by token, so sharding the sequence
changes nothing in them. Two things differ from `labkit.model`: positions, which do not start at 0
on every rank, and the attention function.

Every rank has all sequences of a batch, and some tokens of each:

    batch B x T      rank 0: B x t      rank 1: B x t      ...      data parallelism: b x T

The loss is the mean over all tokens. A rank's part is the sum over its tokens divided by B * T, not
by its own number of tokens. So parts add up, even if shards are unequal. Gradients are summed over
the group once per step, by data parallelism's all-reduce on the same group.

Layout: parameters replicated, under the names of GPT; activations sharded by time.
Wire: that of the attention, once per layer, forward and backward; and the gradients.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.context_parallel.ring import ring_attention
from labkit.context_parallel.shards import (
    Placement,
    contiguous,
    shard_sequence,
    zigzag,
)
from labkit.data import Batch, Corpus
from labkit.data_parallel import BucketedDDP
from labkit.model import GPT, Block, Embedding, GPTConfig, require_tokens, rotate, split_heads
from labkit.optimizer import Optimizer
from labkit.train import (
    TrainConfig,
    Trained,
    copy_parameters,
    fit,
    summed_losses,
)

Attend = Callable[..., Tensor]
"""ring_attention, ulysses_attention, gathered_attention, or a function of the same arguments."""


class ContextParallelGPT(GPT):
    """A GPT of which every rank computes its own tokens: tokens_BT -> logits_BtV.

    Each pass has sequences of exactly config.context tokens. The sum of the ranks' gradients is the
    gradient of the sum of their losses.
    """

    def __init__(
        self,
        config: GPTConfig,
        group: Group | None = None,
        attention: Attend = ring_attention,
        placement: Placement = contiguous,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(config, seed, dtype)
        self.group, self.placement = chosen(group), placement

        def attend(
            q_BtD: Tensor, k_BtD: Tensor, v_BtD: Tensor, head_dim: int, rotary: bool
        ) -> Tensor:
            q_BHtK, k_BGtK, v_BGtK = (split_heads(x, head_dim) for x in (q_BtD, k_BtD, v_BtD))
            if rotary:
                positions_T = torch.arange(config.context, device=q_BtD.device)
                positions_t = shard_sequence(positions_T, self.group, placement, dim=0)
                q_BHtK, k_BGtK = rotate(q_BHtK, positions_t), rotate(k_BGtK, positions_t)
            cut = {"placement": placement, "num_tokens": config.context}
            y_BHtK = attention(q_BHtK, k_BGtK, v_BGtK, self.group, True, **cut)
            return y_BHtK.transpose(1, 2).flatten(2)

        # The parameters stay the same, and keep their names.
        self.embedding = _OwnTokens(self.embedding, config.context, self.group, placement)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.attention.attend = attend


class _OwnTokens(Embedding):
    """tokens_BT -> x_BtD: the embedding of this rank's tokens, at their positions."""

    def __init__(self, whole: Embedding, context: int, group: Group, placement: Placement) -> None:
        nn.Module.__init__(self)
        self.token, self.position = whole.token, whole.position
        self._context, self._group, self._placement = context, group, placement

    def forward(self, tokens_BT: Tensor) -> Tensor:
        context = self._context
        require_tokens(tokens_BT, self.token.num_embeddings, context)
        if tokens_BT.shape[1] != context:
            raise ValueError(
                f"{tokens_BT.shape[1]} tokens, and this model's ranks share sequences of "
                f"context={context}; make the model with that context, or pad the sequences to it"
            )
        positions_1T = torch.arange(context, device=tokens_BT.device)[None]
        tokens_Bt, positions_1t = (
            shard_sequence(whole, self._group, self._placement)
            for whole in (tokens_BT, positions_1T)
        )
        return self.at(tokens_Bt, positions_1t)


def train(
    world: Group,
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    attention: Attend = ring_attention,
    placement: Placement = zigzag,
) -> Trained:
    """Run `labkit.train.train_serial` on the ranks of `world`: run(train, 4, args=(config,
    settings)).

    Every rank returns the losses over the global batch and the parameters; both equal the serial
    ones up to rounding. corpus: None for Python's standard library.
    """
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
    """Take one step on this rank's tokens of a global batch. Return its part of the global loss.

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
        # The model takes the mean of these over the ranks, but needs the sum.
        (part * group.size).backward()
    with group.region("reduce"):
        model.reduce_gradients()
    with group.region("optimizer"):
        optimizer.step()
    return part.item()
