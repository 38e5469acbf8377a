"""Decoders of a GPT that is cut over ranks: by heads and features, by layers, or by both.

Every rank calls its decoder with the same batch, and gets the same logits, equal bit by bit. So
all ranks sample the same tokens, and an Engine on each of them plans the same passes: on_ranks.py.

TensorParallelDecoder: every rank has a share of each layer.

    rank 0   tokens_n -> embedding v0 -+-> heads 0 1 -+-> MLP f0 -+-> ... -> head v0 --> gather
    rank 1   tokens_n -> embedding v1 -+-> heads 2 3 -+-> MLP f1 -+-> ... -> head v1 --> gather
                                      sum            sum         sum

    cache    keys_LNgK: all layers, the key-value heads of this rank
    wire     2 L + 1 all-reduces of x_nD, waited for one after the other; an all-gather of logits_SV

PipelineDecoder: every rank has some layers. A pass is cut into microbatches of whole entries.

    time ->                1     2     3     4     5
    rank 0  blocks 0, 1    m0    m1    m2
    rank 1  blocks 2, 3          m0    m1    m2          x_nD of a microbatch goes to the next rank
    rank 2  norm, head                 m0    m1    m2    logits_SV: a broadcast from the last one

    cache    keys_lNGK: the layers of this rank, all heads
    wire     m messages to the next rank, together x_nD; a broadcast of logits_SV

Tensor parallelism waits 2 L + 1 times in a pass for small messages, so its ranks belong on the
fastest links. A pipeline waits p times. Its ranks are idle for (p - 1) / (m + p - 1) of a pass, and
a single entry is on one rank at a time. So tensor parallelism makes each token faster, and a
pipeline serves more requests at once, with models that do not fit on one rank.

This sends more than is needed: every rank gets the logits and samples, so that each has a whole
Engine. vLLM samples on one rank and sends the tokens.

Papers: Pope et al., "Efficiently Scaling Transformer Inference", MLSys 2023, section 3: layouts of
tensor parallelism; Yu et al., "Orca", OSDI 2022, section 4.2: both kinds together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.combined import ParallelStage
from labkit.comm import Group, Pending
from labkit.model import GPTConfig
from labkit.pipeline import PipelineGPT
from labkit.serving.caches import KVCache
from labkit.serving.decoder import Attend, Decoder, Layout, rows_of_logits
from labkit.serving.requests import ScheduledTokens
from labkit.tensor_parallel import (
    Replicated,
    TensorParallelGPT,
    column_linear,
    even_sharding,
    row_linear,
)
from labkit.tensor_parallel.gpt_tp import normed


class TensorParallelDecoder(Decoder):
    """A TensorParallelGPT that reads and writes a cache of this rank's heads.

    decoder = TensorParallelDecoder(parallelize(model, world))
    cache = PagedCache(decoder.cache_config, num_pages)     the same number on every rank

    Wire of a pass of n tokens in S entries, per rank of t: 2 L + 1 all-reduces of n D numbers,
    2 (t - 1) / t of them each, and an all-gather of S V / t numbers, rounded up, (t - 1) times.
    """

    def __init__(self, model: TensorParallelGPT | ParallelStage) -> None:
        self.model: Any = model
        self.group: Group = model.group
        self._layout = Replicated(model.group, model.backend)

    @property
    def cache_config(self) -> GPTConfig:
        """The whole model's configuration, with this rank's heads."""
        config: GPTConfig = self.model.config
        of = next(self.model.blocks.children()).attention
        num_heads, num_kv_heads = (
            len(projection.weight) // of.head_dim for projection in (of.query, of.key)
        )
        return replace(
            config, hidden=num_heads * of.head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads
        )

    def embedded(self, layout: Layout) -> Tensor:
        """Like Decoder. Wire: an all-reduce."""
        position = self.model.embedding.position
        position_nD = None if position is None else F.embedding(layout.positions_n, position.weight)
        x_1nD: Tensor = self.model.embedding(layout.tokens_n[None], position_nD, self._layout)
        return x_1nD[0]

    def logits(self, x_nD: Tensor) -> Tensor:
        """Like Decoder. Wire: an all-gather."""
        norm, head = self.model.norm.weight, self.model.head.weight
        (logits_nv,) = column_linear(normed(x_nD, norm), self._layout, head)
        sharding = even_sharding(self.model.config.vocab, 1, self.group.size)
        return sharding.gather(logits_nv, self.group)

    def _through(self, block: Any, x_nD: Tensor, attend: Attend) -> Tensor:
        """Run a block. Wire: two all-reduces."""
        of, layout = block.attention, self._layout
        h_nD = normed(x_nD, block.attention_norm.weight)
        qkv = column_linear(h_nD, layout, of.query.weight, of.key.weight, of.value.weight)
        x_nD = x_nD + row_linear(attend(*qkv), layout, of.out.weight)
        mlp_nD: Tensor = block.mlp(normed(x_nD, block.mlp_norm.weight), layout)
        return x_nD + mlp_nD


class PipelineDecoder(Decoder):
    """The stage of a PipelineGPT on this rank, with a cache of its layers.

    decoder = PipelineDecoder(PipelineGPT(config, schedule, world.rank), world)
    decoder = PipelineDecoder(CombinedGPT(config, schedule, mesh), mesh.pp, TensorParallelDecoder)
    cache = PagedCache(decoder.cache_config, num_pages)     the same number on every rank

    The model has one stage per rank. A stage without blocks has a cache of one layer, not used.

    Wire of a pass of n tokens in S entries: a rank sends n D numbers to the next one, in m
    messages, and the last rank broadcasts S V numbers.
    """

    def __init__(
        self,
        model: PipelineGPT,
        group: Group,
        form: Callable[[Any], Decoder] = Decoder,
        num_microbatches: int | None = None,
    ) -> None:
        """form: the decoder class of a stage. num_microbatches: at most; None: one per rank."""
        self.model, self.group = model, group
        (stage,) = model.stages.values()
        self.stage = form(stage)
        self.num_microbatches = num_microbatches or group.size

    @property
    def cache_config(self) -> GPTConfig:
        """The model's configuration with this rank's layers, and with its heads if they are cut."""
        num_layers = len(self.stage.model.blocks)
        return replace(self.stage.cache_config, num_layers=max(1, num_layers))

    @torch.no_grad()
    def __call__(self, batch: Sequence[ScheduledTokens], cache: KVCache) -> Tensor:
        """Like Decoder, on all ranks."""
        rank, last = self.group.rank, self.group.size - 1
        parts = _microbatches(batch, self.num_microbatches)
        sent, logits = [], []
        coming = self._receive(parts[0])
        for part, following in zip_longest(parts, parts[1:]):
            layout = self.layout(part, cache)
            x_nD = coming.wait() if coming else self.stage.embedded(layout)
            coming = self._receive(following)  # it travels while this part is computed
            x_nD = self.stage.through_blocks(x_nD, layout, cache)
            if rank == last:
                logits.append(self.stage.logits(x_nD[rows_of_logits(part)]))
            else:
                sent.append(self.group.isend(x_nD, rank + 1))
        for pending in sent:
            pending.wait()
        vocab = self.model.config.vocab
        mine = torch.cat(logits) if logits else self._empty(len(rows_of_logits(batch)), vocab)
        all_logits: Tensor = self.group.broadcast(mine, last)
        cache.commit(batch)
        return all_logits

    def _receive(self, part: Sequence[ScheduledTokens] | None) -> Pending[Tensor] | None:
        """Start to receive a microbatch; None if there is none, or this rank embeds it."""
        if part is None or self.group.rank == 0:
            return None
        num_tokens = sum(len(entry.tokens) for entry in part)
        buffer = self._empty(num_tokens, self.model.config.hidden)
        return self.group.irecv(buffer, self.group.rank - 1)

    def _empty(self, *shape: int) -> Tensor:
        return next(self.model.parameters()).new_empty(shape)


def _microbatches(batch: Sequence[ScheduledTokens], at_most: int) -> list[list[ScheduledTokens]]:
    """Group neighbouring entries, with about as many tokens in each microbatch."""
    total = sum(len(entry.tokens) for entry in batch)
    parts: list[list[ScheduledTokens]] = [[] for _ in range(at_most)]
    start = 0
    for entry in batch:
        parts[start * at_most // total].append(entry)
        start += len(entry.tokens)
    return [part for part in parts if part]
