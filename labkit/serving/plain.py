"""Greedy decoding of many prompts: one key-value cache per sequence, one forward pass for all.

    pass 1   a b c    the prompts of a, b and c                    -> a token for each
    pass 2   a b c    the newest token of each                     -> the next token; b has ended
    pass 3   a c d    the newest token of a and c, the prompt of d   (d takes b's place)

A pass joins all n tokens that are not cached in one tensor (n, D). Only attention is per sequence.
Layout: a cache has a tensor (2, G, tokens, K) per layer: keys and values of G heads.
Paper: Yu et al., "Orca", OSDI 2022. The first rung.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from labkit.model import GPT, split_heads

Tokens = list[list[int]]


@torch.no_grad()
def generate(model: GPT, prompts: Tokens, num_new: list[int], max_running: int) -> Tokens:
    """Return `num_new[i]` >= 1 tokens for prompt i. A pass has at most `max_running` sequences."""
    empty = torch.empty(2, model.config.kv_heads, 0, model.config.head_dim)
    sequences = [list(prompt) for prompt in prompts]
    waiting, caches = list(range(len(prompts))), dict[int, list[Tensor]]()
    while waiting or caches:
        while waiting and len(caches) < max_running:
            caches[waiting.pop(0)] = [empty] * model.config.num_layers
        logits_SV = next_logits(model, [sequences[i] for i in caches], [*caches.values()])
        for i, token in zip(list(caches), logits_SV.argmax(1).tolist()):
            sequences[i].append(token)
            if len(sequences[i]) == len(prompts[i]) + num_new[i]:
                del caches[i]
    return [sequence[len(prompt) :] for sequence, prompt in zip(sequences, prompts)]


def next_logits(model: GPT, sequences: Tokens, caches: list[list[Tensor]]) -> Tensor:
    """Return each sequence's next-token logits, (S, V); append new keys and values to its cache."""
    starts = [cache[0].shape[2] for cache in caches]
    new = [s[n:] for s, n in zip(sequences, starts)]
    places_n = torch.cat([torch.arange(n, len(s)) for s, n in zip(sequences, starts)])
    x_nD = model.embedding.at(torch.tensor(sum(new, [])), places_n)
    blocks: Any = model.blocks
    for layer, block in enumerate(blocks):
        attention, h_nD, y = block.attention, block.attention_norm(x_nD), []
        qkv = [attention.query(h_nD), attention.key(h_nD), attention.value(h_nD)]
        split = [x.split([len(tokens) for tokens in new]) for x in qkv]
        for cache, *qkv_tD in zip(caches, *split):
            q, k, v = (split_heads(x[None], attention.head_dim) for x in qkv_tD)
            k, v = cache[layer] = torch.cat([cache[layer], torch.cat([k, v])], 2)
            mask = places_n.new_ones(q.shape[2], k.shape[1]).tril(k.shape[1] - q.shape[2]).bool()
            y_1HtK = scaled_dot_product_attention(q, k[None], v[None], mask, enable_gqa=True)
            y.append(y_1HtK[0].transpose(0, 1).flatten(1))
        x_nD = x_nD + attention.out(torch.cat(y))
        x_nD = x_nD + block.mlp(block.mlp_norm(x_nD))
    last = torch.tensor([len(tokens) for tokens in new]).cumsum(0) - 1
    return model.head(model.norm(x_nD[last]))
