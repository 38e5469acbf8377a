"""The GPT of trainers and engines, in products of one shape: equal bits for equal tokens.

    InvariantGPT(config)                  a trainer's model: whole, and sharded by ZeRO-3
    InvariantGPT(config, group=engine)    an engine's model: this rank's heads and MLP features
    InvariantDecoder(model)               the serving engine's decoder of either

The parts with products are batch_invariant.py's; the rest is labkit.model's and labkit.serving's.
A model may have a layer of experts instead of each MLP: the router sends a token to the most
probable of E experts, and scales its output by that probability.

    x_nD -> router -> p_nE, its largest -> the rows of expert e -> up, GELU, down -> p y

A choice among experts is not continuous. Where two engines compute the router's scores with other
bits, a token near a tie takes another expert, and its log-probability changes by a lot.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.model import GPT, MLP, Block, GPTConfig, rotate, split_heads
from labkit.rl.batch_invariant import NUM_BLOCKS, InvariantLinear, attention
from labkit.serving.caches import KVCache
from labkit.serving.decoder import Decoder, Layout


class RoutedMLP(nn.Module):
    """E experts, of which each token uses one (Switch Transformer, arXiv:2101.03961)."""

    def __init__(self, config: GPTConfig, num_experts: int, group: Group | None = None) -> None:
        super().__init__()
        self.router = InvariantLinear(config.hidden, num_experts, None)
        self.experts = nn.ModuleList(_invariant_mlp(config, group) for _ in range(num_experts))

    def forward(self, x_XD: Tensor) -> Tensor:
        """Return the output of each token's expert, times its probability."""
        x_nD = x_XD.reshape(-1, x_XD.shape[-1])
        p_n, expert_n = self.choose(x_nD)
        y_nD = torch.zeros_like(x_nD)
        for number, expert in enumerate(self.experts):
            rows = (expert_n == number).nonzero()[:, 0]
            if len(rows):
                y_nD = y_nD.index_copy(0, rows, expert(x_nD[rows]))
        return (p_n[:, None] * y_nD).view_as(x_XD)

    def choose(self, x_nD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probability and the number of each token's expert, (n) each."""
        p_n, expert_n = self.router(x_nD).softmax(-1).max(-1)
        return p_n, expert_n


def _invariant_mlp(config: GPTConfig, group: Group | None) -> MLP:
    mlp = MLP(config)
    mlp.up = InvariantLinear(config.hidden, config.ffn_hidden, 0, 1, group)
    mlp.down = InvariantLinear(config.ffn_hidden, config.hidden, 1, 1, group)
    return mlp


def invariant_block(config: GPTConfig, num_experts: int = 0, group: Group | None = None) -> Block:
    """Make a block of tiled products, or this rank's share of one."""
    mlp = RoutedMLP(config, num_experts, group) if num_experts else _invariant_mlp(config, group)
    block = Block(config, mlp)
    D, K = config.hidden, config.head_dim
    for name in ("query", "key", "value"):
        setattr(block.attention, name, InvariantLinear(D, D, 0, K, group))
    block.attention.out = InvariantLinear(D, D, 1, K, group)
    block.attention.attend = partial(_attend, config.context)
    return block


def _attend(
    keys: int, q_BTD: Tensor, k_BTD: Tensor, v_BTD: Tensor, head_dim: int, rotary: bool
) -> Tensor:
    """Return causal attention of whole sequences, as labkit.model.attend does."""
    places_T = torch.arange(q_BTD.shape[1], device=q_BTD.device)
    q, k, v = (split_heads(x, head_dim) for x in (q_BTD, k_BTD, v_BTD))
    if rotary:
        q, k = rotate(q, places_T), rotate(k, places_T)
    places_XT = places_T.expand(q.shape[0] * q.shape[1], -1)
    y_XTK = attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), places_XT, keys)
    return y_XTK.unflatten(0, q.shape[:2]).transpose(1, 2).flatten(2)


class InvariantGPT(GPT):
    """A GPT of tiled products: the whole model, or the share of one rank of `group`.

    A share has the names of the whole model, and must be filled (weight_sync.py): its own first
    numbers are no cut of a model. Backward is for the whole model. ValueError: a group of another
    size than 1, 2 or 4, fewer heads than ranks, or heads that share keys.
    """

    def __init__(
        self,
        config: GPTConfig,
        seed: int = 0,
        *,
        num_experts: int = 0,
        group: Group | None = None,
    ) -> None:
        """num_experts: of each layer; 0: an MLP. group: the ranks that share the model."""
        size = 1 if group is None else group.size
        if NUM_BLOCKS % size or config.num_heads % size or config.num_heads != config.kv_heads:
            raise ValueError(
                f"{size} ranks, {config.num_heads} heads and {config.kv_heads} key-value heads: "
                "tiles are for 1, 2 or 4 ranks that share the heads evenly, and for heads with "
                "keys of their own"
            )
        self.group = group
        make_block = partial(invariant_block, num_experts=num_experts, group=group)
        super().__init__(config, seed, make_block=make_block)
        with torch.device("meta"):
            self.head = InvariantLinear(config.hidden, config.vocab, None)
        self.head.weight = self.embedding.token.weight


class InvariantDecoder(Decoder):
    """A Decoder of an InvariantGPT, whole or a rank's share: equal logits on every rank."""

    @property
    def cache_config(self) -> GPTConfig:
        """The model's configuration, with the heads of this rank."""
        config: GPTConfig = self.model.config
        num_heads = (
            next(self.model.blocks.children()).attention.query.out_features // config.head_dim
        )
        return replace(
            config, hidden=num_heads * config.head_dim, num_heads=num_heads, num_kv_heads=num_heads
        )

    def through_blocks(self, x_nD: Tensor, layout: Layout, cache: KVCache) -> Tensor:
        """Like Decoder."""
        for layer, block in enumerate(self.model.blocks.children()):
            x_nD = self._through(block, x_nD, partial(self._attend, block, layer, layout, cache))
        return x_nD

    def _attend(
        self, block: Any, layer: int, layout: Layout, cache: KVCache, *qkv_nF: Tensor
    ) -> Tensor:
        """Write keys and values to the cache, and attend to those of whole sequences."""
        of = block.attention
        q_nHK, k_nHK, v_nHK = (x.unflatten(1, (-1, of.head_dim)) for x in qkv_nF)
        if of.rotary:
            q_nHK, k_nHK = (
                rotate(x.transpose(0, 1), layout.positions_n).transpose(0, 1)
                for x in (q_nHK, k_nHK)
            )
        cache.write(layer, layout.slots_n, k_nHK, v_nHK)
        y_nHK = torch.empty_like(q_nHK)
        for group in layout.groups:
            keys = cache.read(layer, group.slots_Ss.flatten())
            q, k, v = (
                x.unflatten(0, rows.shape).transpose(1, 2).flatten(0, 1)
                for x, rows in (
                    (q_nHK[group.rows_St.flatten()], group.rows_St),
                    *((x, group.slots_Ss) for x in keys),
                )
            )
            places_Xt = layout.positions_n[group.rows_St].repeat_interleave(q_nHK.shape[1], 0)
            y_XtK = attention(q, k, v, places_Xt, self.model.config.context)
            y_nHK[group.rows_St] = y_XtK.unflatten(0, (-1, q_nHK.shape[1])).transpose(1, 2)
        return y_nHK.flatten(1)


def token_log_probs(logits_XV: Tensor, tokens_X: Tensor) -> Tensor:
    """Return the log-probability of each token, (X): the trainer's and the generator's function."""
    log_probs_XV: Tensor = logits_XV.log_softmax(-1)
    return log_probs_XV.gather(-1, tokens_X[..., None])[..., 0]
