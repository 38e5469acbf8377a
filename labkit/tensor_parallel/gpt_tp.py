"""The lab's GPT with tensor parallelism, and its training: `train_serial` on many ranks.

    tokens_BT -> embedding (v of V rows) -> blocks (heads and MLP features of this rank)
              -> norm -> head (the embedding's rows again) -> logits_BTv -> loss

Parameters keep their names, so a rank's state_dict looks like GPT's, with smaller tensors:

    embedding.token.weight, up, query, key, value   Shard(0)
    out, down                                       Shard(1)
    norms, embedding.position.weight                replicated; rotary positions have no weight

sequence_parallel: between the layers a rank holds an nth of the tokens (activation_layout.py).
Norms and positions then see this rank's tokens only, and backward sums their gradients.

Wire of a step, in all-reduces of B*T*D numbers: forward 1 for the embedding and 2 for each block;
backward 2 for each block and 1 for the head. The loss adds all-reduces of 3 numbers for each token.
With sequence_parallel an all-reduce becomes a reduce-scatter and an all-gather. Backward also
gathers the input of each column layer again, which costs half an all-reduce each.
Papers: Megatron-LM, arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.collectives.backend import CollectiveBackend, chosen_backend
from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data import Batch, Corpus
from labkit.model import GPT, MLP, Block, GPTConfig, require_tokens
from labkit.optimizer import Optimizer
from labkit.tensor_parallel.activation_layout import ActivationLayout, Replicated, SequenceSharded
from labkit.tensor_parallel.attention import ParallelAttention, ParallelMLP, copies_of
from labkit.tensor_parallel.fused import column_linear
from labkit.tensor_parallel.gradients import gather_full_state, summed_over
from labkit.tensor_parallel.linear import REPLICATED, ShardedWeight, even_sharding
from labkit.tensor_parallel.vocab import vocab_cross_entropy, vocab_embedding
from labkit.train import TrainConfig, Trained, fit


def parallelize(
    model: GPT,
    group: Group | None = None,
    *,
    sequence_parallel: bool = False,
    backend: CollectiveBackend | None = None,
) -> TensorParallelGPT:
    """Copy this rank's shard of `model` into a module of its own; `model` may be deleted then.

    model: the whole GPT, with the same weights on every rank (two sums of each are compared). The
    shard keeps its dtype, its device and its frozen parameters. backend: LIBRARY, RING or
    SHARED_MEMORY; None: see chosen_backend. Make the optimizer afterwards, from the result's
    parameters.
    ValueError if the ranks cannot share the heads evenly (it lists the numbers of ranks that can),
    or if the weights differ; TypeError for another module.
    """
    if type(model) is not GPT:  # a subclass may compute something else
        raise TypeError(
            f"model is a {type(model).__name__}, and parallelize cuts labkit.model.GPT; build "
            "others of labkit.tensor_parallel.ColumnLinear and RowLinear"
        )
    group = chosen(group)
    backend = chosen_backend(backend, group)
    _require_same_weights(model, group)
    return TensorParallelGPT(model, group, sequence_parallel, backend)


class TensorParallelGPT(nn.Module):
    """tokens_BT, the same on every rank -> logits_BTv, this rank's share of the vocabulary."""

    def __init__(
        self, model: GPT, group: Group, sequence_parallel: bool, backend: CollectiveBackend
    ) -> None:
        super().__init__()
        self.config = model.config
        self.group, self.sequence_parallel, self.backend = group, sequence_parallel, backend
        self.embedding = ParallelEmbedding(model, group)
        self.blocks = nn.ModuleList(_parallel_blocks(model, group))
        self.norm = ShardedWeight(model.norm.weight, REPLICATED, group)
        self.head = self.embedding.token

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return logits_BTv. Every rank passes the same tokens (not checked). Errors as in GPT."""
        require_tokens(tokens_BT, self.config.vocab, self.config.max_positions)
        layout: ActivationLayout = Replicated(self.group, self.backend)
        replicated = self._replicated()
        if self.sequence_parallel:
            num_sequences, num_tokens = tokens_BT.shape
            layout = SequenceSharded(self.group, num_sequences, num_tokens, self.backend)
            replicated = list(summed_over(self.group, *replicated))
        position_TD = None if self.config.rotary else replicated.pop(0)
        *of_blocks, of_head = replicated
        x = self.embedding(tokens_BT, position_TD, layout)
        for block, of_attention, of_mlp in zip(
            self.blocks, of_blocks[::2], of_blocks[1::2], strict=True
        ):
            x = block(x, of_attention, of_mlp, layout)
        (logits_BTv,) = column_linear(normed(x, of_head), layout, self.head.weight)
        return logits_BTv

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the next token over the batch, in nats; equal on every
        rank.

        Every rank calls backward() on it. No rank holds the logits of the whole vocabulary.
        """
        logits_BTv, targets_BT = self(batch.inputs_BT), batch.targets_BT
        total = vocab_cross_entropy(
            logits_BTv.flatten(0, 1), targets_BT.flatten(), self.config.vocab, self.group
        )
        return total / max(1, batch.num_targets)

    def _replicated(self) -> list[Tensor]:
        """Return learned positions if there are any, then the norms' weights in order of use."""
        position = self.embedding.position
        found: list[Tensor] = [] if position is None else [position.weight]
        for block in self.blocks:
            assert isinstance(block, ParallelBlock)
            found += [block.attention_norm.weight, block.mlp_norm.weight]
        return [*found, self.norm.weight]


class ParallelEmbedding(nn.Module):
    """tokens_BT -> x, in a layout: the sum over ranks, of which one has the row of a token."""

    def __init__(self, model: GPT, group: Group) -> None:
        super().__init__()
        embedding = model.embedding
        vocab = even_sharding(embedding.token.num_embeddings, 0, group.size)
        self.vocab = vocab.ranges[group.rank]
        self.token = ShardedWeight(embedding.token.weight, vocab, group)
        self.position: ShardedWeight | None = None
        if embedding.position is not None:
            self.position = ShardedWeight(embedding.position.weight, REPLICATED, group)

    def forward(
        self, tokens_BT: Tensor, position_TD: Tensor | None, layout: ActivationLayout
    ) -> Tensor:
        """Return the embedding. position_TD: None with rotary positions. Wire: a sum of B*T*D
        numbers."""
        x = vocab_embedding(tokens_BT, self.token.weight, self.vocab, layout)
        if position_TD is None:
            return x
        num_tokens = tokens_BT.shape[1]
        if not isinstance(layout, SequenceSharded):
            return x + position_TD[:num_tokens]
        mine = layout.rows
        rows = torch.arange(mine.start, mine.stop, device=tokens_BT.device) % max(1, num_tokens)
        position_nD = F.embedding(rows, position_TD)
        return x + F.pad(position_nD, (0, 0, 0, len(x) - len(rows)))


class ParallelBlock(nn.Module):
    """x -> x, in this layout: attention, then MLP, each read through a norm."""

    def __init__(self, block: Block, group: Group, copies: Group | None = None) -> None:
        """copies: see ParallelAttention."""
        super().__init__()
        self.attention_norm = ShardedWeight(block.attention_norm.weight, REPLICATED, group)
        self.attention = ParallelAttention(block.attention, group, copies)
        self.mlp_norm = ShardedWeight(block.mlp_norm.weight, REPLICATED, group)
        assert isinstance(block.mlp, MLP)
        self.mlp = ParallelMLP(block.mlp, group)

    def forward(
        self, x: Tensor, of_attention: Tensor, of_mlp: Tensor, layout: ActivationLayout
    ) -> Tensor:
        """Return x after the block. `of_attention`, `of_mlp`: the weights of the two norms.

        Wire: forward two sums of B*T*D numbers, backward two.
        """
        x = x + self.attention(normed(x, of_attention), layout)
        return x + self.mlp(normed(x, of_mlp), layout)


@torch.no_grad()
def _sums(parameter: Tensor) -> tuple[float, float]:
    """Return the sum of the elements, and a sum weighted by position, which reordering changes."""
    numbers = torch.nan_to_num(parameter.double().flatten())  # nan would differ from itself
    return numbers.sum().item(), (numbers @ torch.linspace(1, 2, len(numbers)).to(numbers)).item()


def _parallel_blocks(model: GPT, group: Group) -> Iterator[ParallelBlock]:
    copies = copies_of(model.config.num_heads, model.config.kv_heads, group)
    for block in model.blocks:
        assert isinstance(block, Block)
        yield ParallelBlock(block, group, copies)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    """Return x through a norm with scale `weight`, like torch.nn.LayerNorm without a bias."""
    return F.layer_norm(x, weight.shape, weight)


def _require_same_weights(model: GPT, group: Group) -> None:
    """Raise ValueError if weights differ by rank. Wire: two all-reduces of two numbers each."""
    names = [name for name, _ in model.named_parameters()]
    sums = torch.tensor([_sums(each) for each in model.parameters()], device=group.device)
    largest, least = group.all_reduce(sums, "max"), group.all_reduce(sums, "min")
    differ = (largest != least).any(1)
    if differ.any():
        name = names[int(differ.nonzero()[0])]
        raise ValueError(
            f"{name} is not the same on every rank; make the model of one seed, or broadcast it "
            "from one rank first"
        )


def train(
    group: Group,
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    *,
    sequence_parallel: bool = False,
    backend: CollectiveBackend | None = None,
) -> Trained:
    """Run `labkit.train.train_serial` on the ranks of `group`: run(train, 4, args=(config,
    settings)).

    Every rank sees every batch, returns the losses and the whole parameters; both equal the serial
    ones up to rounding. corpus: None for Python's standard library.
    """
    whole = GPT(config, settings.seed, settings.dtype).to(group.device)
    model = parallelize(whole, group, sequence_parallel=sequence_parallel, backend=backend)
    optimizer = settings.make_optimizer(model.parameters())
    losses = fit(partial(train_step, model, optimizer), config, settings, corpus)
    state = gather_full_state(model)
    names = [name for name, _ in model.named_parameters()]
    return Trained(losses, {name: state[name].cpu() for name in names})


def train_step(model: TensorParallelGPT, optimizer: Optimizer, batch: Batch) -> float:
    """Make a step on a batch, the same on every rank; return the loss before it.

    The timeline names the phases.
    """
    group = model.group
    batch = batch.to(group.device)
    optimizer.zero_grad()
    with group.region("forward"):
        value = model.loss(batch)
    with group.region("backward"):
        value.backward()
    with group.region("optimizer"):
        optimizer.step()
    return value.item()
