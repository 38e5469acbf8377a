"""One forward for a batch: whole prompts, chunks of them, and single tokens together.

    batch      sequence 7: T h e      sequence 3: t      sequence 9: a      (S = 3)
    tokens_n   T h e t a              all tokens of the pass in one row, n = 5
               -> embedding -> norm, query, key, value -> attention -> out -> norm, MLP -> ...
    logits_SV  a row for each entry, of the token that follows its last

Everything but attention works token by token, for tokens of any sequence. Attention of an entry
reads the keys and values of its whole sequence from the cache, after the entry's own were written:

    q_SHtK     entries of equally many tokens t, together: one call for all single tokens
    k_SGsK     their keys by slots, the shorter sequences padded with their own first, s
    mask_Sts   true where a key's position is at most the query's; padding lies beyond it

Papers: Yu et al., "Orca", OSDI 2022: all but attention over the tokens of all requests; Agrawal et
al., "Sarathi-Serve", OSDI 2024: chunks of prompts in one pass with single tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from labkit.model import GPT, GPTConfig, rotate
from labkit.serving.caches import KVCache
from labkit.serving.requests import ScheduledTokens

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values of the pass's tokens, all heads in a row -> what the heads give."""


class Decoder:
    """A GPT that reads and writes a cache. The parameters are the GPT's own, not copies.

    A pass is embedded -> through_blocks -> logits. Decoders on several ranks (parallel_decoders.py)
    replace the steps that communicate, or send activations between two steps.
    """

    def __init__(self, model: GPT) -> None:
        self.model: Any = model  # or a model with the same parts: see parallel_decoders.py

    @property
    def cache_config(self) -> GPTConfig:
        """The configuration for a cache of this decoder: PagedCache(decoder.cache_config, ...)."""
        config: GPTConfig = self.model.config
        return config

    @torch.no_grad()
    def __call__(self, batch: Sequence[ScheduledTokens], cache: KVCache) -> Tensor:
        """Return logits_SV, or more rows: num_logits of each entry.

        Call cache.reserve before. Each entry is of another sequence, and is cached afterwards.
        ValueError: an entry without room or with a wrong start, or more tokens than positions.
        """
        layout = self.layout(batch, cache)
        x_nD = self.through_blocks(self.embedded(layout), layout, cache)
        logits_SV = self.logits(x_nD[rows_of_logits(batch)])
        cache.commit(batch)
        return logits_SV

    def layout(self, batch: Sequence[ScheduledTokens], cache: KVCache) -> Layout:
        """Place each token. ValueError for more tokens than positions, and as in cache.slots."""
        longest = self.model.config.max_positions
        for entry in batch:
            if longest is not None and entry.end > longest:
                raise ValueError(
                    f"sequence {entry.sequence} gets {entry.end} tokens, and the model has "
                    f"{longest} positions; end it before, or use GPTConfig(rotary=True)"
                )
        return _layout(batch, cache)

    def embedded(self, layout: Layout) -> Tensor:
        """Return x_nD before the first block."""
        x_nD: Tensor = self.model.embedding.at(layout.tokens_n, layout.positions_n)
        return x_nD

    def through_blocks(self, x_nD: Tensor, layout: Layout, cache: KVCache) -> Tensor:
        """Return x_nD after the last block, with keys and values in the cache."""
        for layer, block in enumerate(self.model.blocks.children()):
            x_nD = self._through(block, x_nD, partial(_attention, block, layer, layout, cache))
        return x_nD

    def logits(self, x_nD: Tensor) -> Tensor:
        """Return logits_nV: row i is for the token after token i."""
        logits_nV: Tensor = self.model.head(self.model.norm(x_nD))
        return logits_nV

    def _through(self, block: Any, x_nD: Tensor, attend: Attend) -> Tensor:
        of, h_nD = block.attention, block.attention_norm(x_nD)
        x_nD = x_nD + of.out(attend(of.query(h_nD), of.key(h_nD), of.value(h_nD)))
        return x_nD + block.mlp(block.mlp_norm(x_nD))


@torch.no_grad()
def store_head_by_inputs(model: GPT) -> GPT:
    """Return the same model, with the head's weight in memory as (D, V); its shape stays (V, D).

    For one row, a CPU's matrix product then takes 60% of the time, because it adds long rows
    instead of computing short dot products. The token embedding is the same parameter: looking up a
    token takes 5 us longer for 768 features.
    """
    model.head.weight.data = model.head.weight.t().contiguous().t()
    return model


def _ends(batch: Sequence[ScheduledTokens]) -> Tensor:
    """Return the end of each entry in the row of all tokens."""
    return torch.tensor([len(entry.tokens) for entry in batch], device="cpu").cumsum(0)


def rows_of_logits(batch: Sequence[ScheduledTokens]) -> list[int]:
    """Return the rows of x_nD that become logits: the last num_logits tokens of each entry."""
    ends = _ends(batch).tolist()
    return [
        row
        for entry, end in zip(batch, ends, strict=True)
        for row in range(end - entry.num_logits, end)
    ]


@dataclass(frozen=True)
class _Alike:
    """Pieces with the same number of tokens, whose attention is one call."""

    rows_St: Tensor  # which of the n tokens
    slots_Ss: Tensor
    mask_S1ts: Tensor


@dataclass(frozen=True)
class Layout:
    """The place of each token in a pass; the same in all layers."""

    tokens_n: Tensor
    positions_n: Tensor
    slots_n: Tensor
    groups: list[_Alike]


def _layout(batch: Sequence[ScheduledTokens], cache: KVCache) -> Layout:
    slots, device = cache.slots(batch), cache.keys_LNGK.device
    places = [at for entry in batch for at in range(entry.start, entry.end)]
    positions_n = torch.tensor(places, device="cpu")
    ends_S = _ends(batch)
    alike = defaultdict(list)
    for index, entry in enumerate(batch):
        alike[len(entry.tokens)].append(index)
    groups = []
    for num_tokens, members in alike.items():
        rows_St = ends_S[members, None] - num_tokens + torch.arange(num_tokens, device="cpu")
        slots_Ss = pad_sequence([slots[i] for i in members], batch_first=True, padding_value=-1)
        # Pad with the sequence's own first slot: weight 0 times a nan of another sequence is nan.
        slots_Ss = slots_Ss.where(slots_Ss >= 0, slots_Ss[:, :1])
        mask_Sts = torch.arange(slots_Ss.shape[1], device="cpu") <= positions_n[rows_St][..., None]
        groups.append(_Alike(rows_St.to(device), slots_Ss.to(device), mask_Sts[:, None].to(device)))
    return Layout(
        tokens_n=torch.tensor([token for entry in batch for token in entry.tokens], device=device),
        positions_n=positions_n.to(device),
        slots_n=torch.cat([s[p.start :] for s, p in zip(slots, batch, strict=True)]).to(device),
        groups=groups,
    )


def _attention(
    block: Any,
    layer: int,
    layout: Layout,
    cache: KVCache,
    q_nF: Tensor,
    k_nF: Tensor,
    v_nF: Tensor,
) -> Tensor:
    """Write the tokens' keys and values, attend over their whole sequences, and return y_nF."""
    of = block.attention
    q_nHK, k_nGK, v_nGK = (x.unflatten(1, (-1, of.head_dim)) for x in (q_nF, k_nF, v_nF))
    if of.rotary:
        q_nHK, k_nGK = (
            rotate(x_nHK.transpose(0, 1), layout.positions_n).transpose(0, 1)
            for x_nHK in (q_nHK, k_nGK)
        )
    cache.write(layer, layout.slots_n, k_nGK, v_nGK)
    y_nHK = torch.empty_like(q_nHK)
    for group in layout.groups:
        # x_SsGK -> x_SGsK
        k_SGsK, v_SGsK = (
            x.unflatten(0, group.slots_Ss.shape).transpose(1, 2)
            for x in cache.read(layer, group.slots_Ss.flatten())
        )
        y_SHtK = F.scaled_dot_product_attention(
            q_nHK[group.rows_St].transpose(1, 2),
            k_SGsK,
            v_SGsK,
            attn_mask=group.mask_S1ts,
            enable_gqa=k_SGsK.shape[1] != q_nHK.shape[1],
        )
        y_nHK[group.rows_St] = y_SHtK.transpose(1, 2)
    return y_nHK.flatten(1)
