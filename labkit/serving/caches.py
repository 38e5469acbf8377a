"""Where keys and values of past tokens are: what every cache does, and its first two rungs.

A token's keys and values do not change once they are computed, so a new token only needs its own.
All rungs store them in slots, one per token, and differ in how they hand out slots:

    rung 1  NoCache            keeps nothing: every pass computes all tokens again
    rung 2  ContiguousCache    a region per sequence, as long as the sequence may ever get
    rung 3  PagedCache         pages anywhere, taken as the sequence grows (pages.py)

A pass goes like this. The scheduler does the first step, the decoder the others:

    cache.reserve(...)                 room for the tokens of each piece
    cache.slots(pieces)                the slot of every token, old and new
    cache.write(layer, slots, k, v)    in each layer
    cache.commit(pieces)               the tokens now count as cached

Layout: keys_LNGK and values_LNGK, N slots.
Papers: Yu et al., "Orca", OSDI 2022, for rung 2; Kwon et al., "PagedAttention", SOSP 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.model import GPTConfig


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one sequence, of which a pass computes keys, values and the logits.

    sequence: its number. start: how many of its tokens are cached, so the place of tokens[0].
    A whole prompt, a chunk of it, and a single new token are all pieces.
    """

    sequence: int
    tokens: list[int]
    start: int

    @property
    def end(self) -> int:
        """How many tokens of the sequence are cached after the pass."""
        return self.start + len(self.tokens)


class KVCache:
    """What all rungs have: N slots of keys and values in each layer, and who uses them."""

    def __init__(self, config: GPTConfig, num_slots: int, dtype: torch.dtype = torch.float32):
        """num_slots: the tokens that fit."""

    @property
    def num_free_pages(self) -> int:
        """Pages that `reserve` can take now. If the pages_needed of several calls add up to no
        more than this, all of these calls succeed."""
        raise NotImplementedError

    def pages_needed(self, sequence: int, num_tokens: int, longest: int) -> int:
        """At most how many free pages `reserve` with these arguments would take; 0: none."""
        raise NotImplementedError

    def reserve(self, sequence: int, num_tokens: int, longest: int) -> bool:
        """Make room for the first `num_tokens` tokens of the sequence, counted from its beginning.

        longest: the tokens that it may have at most, prompt and answer; rung 2 reserves them all.
        False: there is no room, and nothing has changed.
        """
        raise NotImplementedError

    def share_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        """Give a new sequence the cached pages that begin with the same tokens: how many tokens.

        At most len(tokens) - 1: the last one is computed, for its logits. Rungs 1 and 2: 0.
        """
        return 0

    def num_cached(self, sequence: int) -> int:
        """How many of its first tokens are cached: where its next piece starts. Rung 1: 0."""
        raise NotImplementedError

    def slots(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """Of each piece: the slots of its sequence's tokens 0 to end - 1. Reserve them before.

        ValueError for a piece that does not start where the cached tokens end.
        """
        raise NotImplementedError

    def write(
        self, layer: int, slots_N: Tensor, k_NGK: Tensor, v_NGK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values in these slots: those of all slots of the layer."""
        raise NotImplementedError

    def commit(self, pieces: Sequence[Piece]) -> None:
        """The tokens of these pieces are in the cache, in all layers."""
        raise NotImplementedError

    def free(self, sequence: int) -> None:
        """Give up all slots of a sequence that ended, was cancelled or preempted, if it has any."""
        raise NotImplementedError
