"""Documents of many lengths in sequences of one length.

    documents          aaaaa bbb cc ddddddd e                     context 6

    pad each           aaaaa. bbb... cc.... dddddd e.....         truncates d, and computes padding
    concatenate        aaaaab bbccdd ddddd e                      no padding; cuts b and d in two
    best fit           dddddd aaaaae bbbcc.                       d is cut once: it is too long

Best fit: the longest document first, each into the sequence with the least room that is enough. A
document that is longer than the context is cut into full sequences and a rest. No other is cut.

Packed documents share a sequence. `attend_within` keeps attention inside each document: then the
logits are those of the document alone (positions must be relative, as rotary ones are). The target
of a document's last token would be the first token of the next document, so it is IGNORED.

Paper: Ding et al., "Fewer Truncations Improve Language Modeling", arXiv:2404.10830.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit import arguments
from labkit.data.text import IGNORED, Batch
from labkit.model import rotate, split_heads

PADDING = -1


class Chunk(NamedTuple):
    """Tokens start to end of a document."""

    document: int
    start: int
    end: int


def concatenated(lengths: Sequence[int], context: int) -> list[list[Chunk]]:
    """Put documents one after the other, and cut at every `context` tokens."""
    arguments.whole("context", context, "1 or more tokens")
    sequences: list[list[Chunk]] = []
    room = 0
    for document, length in enumerate(lengths):
        start = 0
        while start < length:
            if not room:
                sequences.append([])
                room = context
            end = min(length, start + room)
            sequences[-1].append(Chunk(document, start, end))
            room -= end - start
            start = end
    return sequences


def best_fit(lengths: Sequence[int], context: int) -> list[list[Chunk]]:
    """Put each document whole where it leaves the least room; only longer ones are cut."""
    arguments.whole("context", context, "1 or more tokens")
    chunks = [
        Chunk(document, start, min(length, start + context))
        for document, length in enumerate(lengths)
        for start in range(0, length, context)
    ]
    chunks.sort(key=lambda chunk: chunk.start - chunk.end)  # the longest first
    sequences: list[list[Chunk]] = []
    rooms: list[tuple[int, int]] = []  # (room, number of the sequence), in ascending order
    for chunk in chunks:
        size = chunk.end - chunk.start
        place = bisect_left(rooms, (size, -1))
        if place == len(rooms):
            room, number = context, len(sequences)
            sequences.append([])
        else:
            room, number = rooms.pop(place)
        sequences[number].append(chunk)
        insort(rooms, (room - size, number))
    return sequences


class Packing(NamedTuple):
    """Padding and cut documents of a packing."""

    padding: float
    """Share of all places that have no token."""
    cut: int
    """Documents that are in more than one chunk."""


def cost(sequences: Sequence[Sequence[Chunk]], context: int) -> Packing:
    """Return the padding and the number of documents that are cut."""
    chunks = [chunk for sequence in sequences for chunk in sequence]
    num_tokens = sum(chunk.end - chunk.start for chunk in chunks)
    cut = {chunk.document for chunk in chunks if chunk.start}
    return Packing(1 - num_tokens / (len(sequences) * context), len(cut))


def packed(
    documents: Sequence[Tensor], sequences: Sequence[Sequence[Chunk]], context: int
) -> tuple[Batch, Tensor]:
    """Return a batch of the sequences, and document_BT: the number of each token's document.

    documents: tokens of each, int64. Padding is token 0 of document PADDING. The target of the last
    token of each chunk is IGNORED: its next token is not in the sequence, or of another document.
    """
    shape = len(sequences), context
    inputs_BT, targets_BT = torch.zeros(shape).long(), torch.full(shape, IGNORED)
    document_BT = torch.full(shape, PADDING)
    for row, sequence in enumerate(sequences):
        at = 0
        for chunk in sequence:
            tokens = documents[chunk.document][chunk.start : chunk.end]
            end = at + len(tokens)
            inputs_BT[row, at:end], targets_BT[row, at : end - 1] = tokens, tokens[1:]
            document_BT[row, at:end] = chunk.document
            at = end
    return Batch(inputs_BT, targets_BT), document_BT


def attend_within(
    document_BT: Tensor,
) -> Callable[[Tensor, Tensor, Tensor, int, bool], Tensor]:
    """Return attention that is causal and within documents, for `labkit.model.Attention.attend`."""
    same_BTT = document_BT[:, :, None] == document_BT[:, None]
    mask_B1TT = same_BTT.tril()[:, None]

    def attend(q: Tensor, k: Tensor, v: Tensor, head_dim: int, rotary: bool = False) -> Tensor:
        q_BHTK, k_BGTK, v_BGTK = (split_heads(x, head_dim) for x in (q, k, v))
        if rotary:
            positions_T = torch.arange(q.shape[1], device=q.device)
            q_BHTK, k_BGTK = rotate(q_BHTK, positions_T), rotate(k_BGTK, positions_T)
        y_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BGTK, v_BGTK, attn_mask=mask_B1TT, enable_gqa=True
        )
        return y_BHTK.transpose(1, 2).flatten(2)

    return attend
