"""Caches of the keys and values of past tokens: the interface of all, and three rungs.

A token's keys and values do not change once they are computed, so a new token only needs its own.
plain.py lets each sequence's tensors grow, which copies them for every token. Here the cache is
allocated once, with one slot per token, as a GPU's memory must be. The rungs differ in how they
hand out slots:

    rung 1  NoCache            keeps nothing: every pass computes all tokens again
    rung 2  ContiguousCache    one region per sequence, as long as the sequence may ever get
    rung 3  PagedCache         pages anywhere, taken as the sequence grows: pages.py

    a b c d    cached                      rung 2   |a a a . . ~ ~ ~|       |b b . ~ ~ ~|
    .          reserved for later                     sequence a      hole   sequence b
    ~          reserved, but never used    rung 3   |a a|b b|a .|b .|c c|   pages of two slots

A pass uses a cache like this. The scheduler does the first step, the decoder the others:

    cache.reserve(...)                 make room for the tokens of each entry
    cache.slots(batch)                 the slot of every token of these sequences, old and new
    cache.write(layer, slots, k, v)    in each layer
    cache.read(layer, slots)           in each layer
    cache.commit(batch)                the tokens count as cached

Layout: keys_LNGK and values_LNGK, N slots. A slot takes 2 L G K numbers.
Papers: Yu et al., "Orca", OSDI 2022, whose cache is rung 2; Kwon et al., "Efficient Memory
Management for Large Language Model Serving with PagedAttention", SOSP 2023: section 3 is the waste.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from labkit.model import GPTConfig
from labkit.serving.pages import Pages
from labkit.serving.requests import ScheduledTokens


@dataclass(frozen=True)
class SlotUse:
    """Count the slots by their use at one moment. The counts add up to all slots of the cache.

    cached: hold keys and values. reserved: their sequence fills them later. internal: their
    sequence never fills them. external: free, but in holes too small for the next sequence.
    free: the next sequence can have them. All but cached and free are waste.
    """

    cached: int
    reserved: int
    internal: int
    external: int
    free: int


class KVCache:
    """N slots of keys and values in each layer, each used by a sequence or free."""

    def __init__(
        self,
        config: GPTConfig,
        num_slots: int,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        """num_slots: N, the tokens that fit. device: the model's."""
        shape = (config.num_layers, num_slots, config.kv_heads, config.head_dim)
        self.keys_LNGK = torch.zeros(shape, dtype=dtype, device=device)
        self.values_LNGK = torch.zeros(shape, dtype=dtype, device=device)
        self._num_cached: dict[int, int] = {}

    @property
    def capacity(self) -> float:
        """The most tokens of a sequence that is alone in the cache."""
        return self.keys_LNGK.shape[1]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that are indexed by layer and slot."""
        return [self.keys_LNGK, self.values_LNGK]

    @property
    def bytes_per_token(self) -> int:
        """Size of a slot in all layers."""
        return sum(tensor[:, :1].nbytes for tensor in self.tensors)

    @property
    def num_free_pages(self) -> int:
        """Pages that `reserve` can take now.

        If the `pages_needed` of several reservations add up to at most this, all of them succeed.
        """
        raise NotImplementedError

    def pages_needed(self, sequence: int, num_tokens: int, longest: int) -> int:
        """Return how many free pages `reserve` with these arguments takes at most."""
        raise NotImplementedError

    def reserve(self, sequence: int, num_tokens: int, longest: int) -> bool:
        """Make room for the first `num_tokens` tokens of the sequence, counted from its beginning.

        longest: the tokens that it may have at most, prompt and answer; rung 2 reserves them all.
        False: there is no room, and nothing has changed.
        """
        raise NotImplementedError

    def share_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        """Give a new sequence the cached pages of its first tokens, and return how many tokens.

        At most len(tokens) - 1: the last token must be computed, for the logits of the next one.
        The sequence then holds pages, so `free` it if `reserve` fails. Rungs 1 and 2: 0.
        """
        return 0

    def num_found(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens `share_prefix` would find now. Rungs 1 and 2: 0."""
        return 0

    def num_cached(self, sequence: int) -> int:
        """Return the number of its cached tokens, where its next tokens start. Rung 1: 0."""
        return self._num_cached.get(sequence, 0)

    def slots(self, batch: Sequence[ScheduledTokens]) -> list[Tensor]:
        """Return the slots of tokens 0 to end - 1 of each entry's sequence, on the CPU.

        ValueError: an entry does not start where the cached tokens end, or has no room.
        """
        found = []
        for entry in batch:
            cached, held_n = self.num_cached(entry.sequence), self.held(entry.sequence)
            if entry.start != cached:
                raise ValueError(
                    f"sequence {entry.sequence} has {cached} cached tokens, and its entry starts "
                    f"at {entry.start}; give the tokens from num_cached({entry.sequence}) on"
                )
            if entry.end > len(held_n):
                raise ValueError(
                    f"sequence {entry.sequence} has {len(held_n)} slots, and its entry ends at "
                    f"{entry.end}; call reserve({entry.sequence}, {entry.end}, ...) first"
                )
            found.append(held_n[: entry.end])
        return found

    def write(self, layer: int, slots_n: Tensor, k_nGK: Tensor, v_nGK: Tensor) -> None:
        """Store keys and values of n tokens in these slots, a tensor on the cache's device."""
        self.keys_LNGK[layer].index_copy_(0, slots_n, k_nGK)
        self.values_LNGK[layer].index_copy_(0, slots_n, v_nGK)

    def read(self, layer: int, slots_n: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of k_nGK and v_nGK in these slots."""
        # On a CPU, keys_LNGK[layer, slots_n] takes more than twice as long.
        return (
            self.keys_LNGK[layer].index_select(0, slots_n),
            self.values_LNGK[layer].index_select(0, slots_n),
        )

    def commit(self, batch: Sequence[ScheduledTokens]) -> None:
        """Count these tokens as cached: they were written in all layers."""
        for entry in batch:
            self._num_cached[entry.sequence] = entry.end

    def truncate(self, sequence: int, num_tokens: int) -> None:
        """Forget the cached tokens of a sequence after its first `num_tokens`.

        Rung 3 also frees the pages without a token, and hides from other sequences a page that it
        will write to again.
        """
        if num_tokens < self.num_cached(sequence):
            self._num_cached[sequence] = num_tokens

    def unpublish(self, sequence: int) -> None:
        """Hide this sequence's tokens from others, because its keys or values are not numbers."""

    def free(self, sequence: int) -> None:
        """Give up all slots of a sequence that ended, was cancelled or preempted, if it has any."""
        self._num_cached.pop(sequence, None)

    def swap_out(self, sequence: int) -> list[Tensor]:
        """Return copies of its part of `tensors`, copy_LnXX, for another cache or for later."""
        held_n = self.held(sequence)[: self.num_cached(sequence)].to(self.keys_LNGK.device)
        return [stored_LNXX.index_select(1, held_n) for stored_LNXX in self.tensors]

    def swap_in(
        self, sequence: int, tokens: list[int], longest: int, copies: Sequence[Tensor]
    ) -> bool:
        """Reserve room for a new sequence and fill it with `swap_out`'s copies of its tokens.

        False: there is no room, and nothing has changed.
        """
        if not self.reserve(sequence, len(tokens), longest):
            return False
        whole = [ScheduledTokens(sequence, tokens, 0)]
        (slots_n,) = self.slots(whole)
        for stored_LNXX, copy_LnXX in zip(self.tensors, copies, strict=True):
            device = stored_LNXX.device
            stored_LNXX.index_copy_(1, slots_n.to(device), copy_LnXX.to(device))
        self.commit(whole)
        return True

    def slot_use(self, final: Mapping[int, int], wanted: int) -> SlotUse:
        """Return the use of the slots now.

        final: by sequence in the cache, its tokens at its end, which only a recorded trace has.
        wanted: the `longest` of the next sequence.
        """
        cached: set[int] = set()
        to_be_filled: set[int] = set()
        held: set[int] = set()  # shared slots count once
        for sequence, num_tokens in final.items():
            slots = self.held(sequence).tolist()
            held.update(slots)
            to_be_filled.update(slots[:num_tokens])
            cached.update(slots[: self.num_cached(sequence)])
        to_be_filled |= cached
        external = self._in_small_holes(wanted)
        return SlotUse(
            cached=len(cached),
            reserved=len(to_be_filled - cached),
            internal=len(held - to_be_filled),
            external=external,
            free=self.keys_LNGK.shape[1] - len(held) - external,
        )

    def held(self, sequence: int) -> Tensor:
        """Return the slots of a sequence, by position; empty where it has none, as on rung 1."""
        return torch.arange(0, device="cpu")

    def _in_small_holes(self, wanted: int) -> int:
        """Count free slots in holes that are too small for a sequence of this length."""
        return 0


class NoCache(KVCache):
    """Rung 1: nothing is kept. Each pass computes all tokens of its sequences, from the first."""

    def __init__(self, config: GPTConfig, device: str = "cpu") -> None:
        super().__init__(config, 0, device=device)

    @property
    def capacity(self) -> float:
        """No limit."""
        return math.inf

    @property
    def num_free_pages(self) -> int:
        """None, and none are needed."""
        return 0

    def pages_needed(self, sequence: int, num_tokens: int, longest: int) -> int:
        """None."""
        return 0

    def reserve(self, sequence: int, num_tokens: int, longest: int) -> bool:
        """There is always room, since nothing is kept."""
        return True

    def slots(self, batch: Sequence[ScheduledTokens]) -> list[Tensor]:
        """Return the places of the tokens in the pass itself."""
        for entry in batch:
            if entry.start:
                raise ValueError(
                    f"sequence {entry.sequence} has no cached tokens, and its entry starts at "
                    f"{entry.start}; without a cache, give all of its tokens in every pass"
                )
        places_n = torch.arange(sum(entry.end for entry in batch), device="cpu")
        return list(places_n.split([entry.end for entry in batch]))

    def write(self, layer: int, slots_n: Tensor, k_nGK: Tensor, v_nGK: Tensor) -> None:
        """Keep the keys and values of this layer and pass, the only ones there are."""
        self._of_layer = k_nGK, v_nGK

    def read(self, layer: int, slots_n: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the layer that was written last."""
        k_nGK, v_nGK = self._of_layer
        return k_nGK.index_select(0, slots_n), v_nGK.index_select(0, slots_n)

    def commit(self, batch: Sequence[ScheduledTokens]) -> None:
        """Keep nothing."""


class ContiguousCache(KVCache):
    """Rung 2: a region of neighbouring slots per sequence, in the first hole that is long enough.

    A sequence reserves its longest length when it comes, since the region cannot grow. Most
    sequences end earlier, and waste the rest of their region. Holes that fit no sequence are wasted
    too.
    In the terms of KVCache, a page is one slot.
    """

    def __init__(
        self,
        config: GPTConfig,
        num_slots: int,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        super().__init__(config, num_slots, dtype, device)
        self._regions: dict[int, range] = {}

    @property
    def num_free_pages(self) -> int:
        """The slots of the longest hole."""
        return max(map(len, self._holes()), default=0)

    def pages_needed(self, sequence: int, num_tokens: int, longest: int) -> int:
        """Return all slots that it may ever use, at its first reservation."""
        return 0 if sequence in self._regions else longest

    def reserve(self, sequence: int, num_tokens: int, longest: int) -> bool:
        """Like KVCache. ValueError: the sequence outgrows the region that it reserved."""
        if sequence not in self._regions:
            hole = next((each for each in self._holes() if len(each) >= longest), None)
            if hole is None:
                return False
            self._regions[sequence] = hole[:longest]
        if num_tokens > (length := len(self._regions[sequence])):
            raise ValueError(
                f"sequence {sequence} reserved {length} slots and wants {num_tokens}; "
                "give the longest length with the first reservation"
            )
        return True

    def free(self, sequence: int) -> None:
        """Make a hole of its region, together with holes beside it."""
        super().free(sequence)
        self._regions.pop(sequence, None)

    def held(self, sequence: int) -> Tensor:
        """Like KVCache: its region, also the slots that are reserved for later."""
        region = self._regions.get(sequence, range(0))
        return torch.arange(region.start, region.stop, device="cpu")

    def _holes(self) -> list[range]:
        """Return the free slots between the regions."""
        used = sorted(self._regions.values(), key=lambda region: region.start)
        starts = [0, *(region.stop for region in used)]
        stops = [*(region.start for region in used), self.keys_LNGK.shape[1]]
        return [range(*ends) for ends in zip(starts, stops, strict=True) if ends[0] < ends[1]]

    def _in_small_holes(self, wanted: int) -> int:
        return sum(len(hole) for hole in self._holes() if len(hole) < wanted)


class PagedCache(Pages, KVCache):
    """Rung 3: pages anywhere, as pages.py hands them out, with the keys and values in them."""

    def __init__(
        self,
        config: GPTConfig,
        num_pages: int,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        Pages.__init__(self, num_pages, page_size)
        KVCache.__init__(self, config, num_pages * page_size, dtype, device)

    def held(self, sequence: int) -> Tensor:
        """Like KVCache: the slots of its pages."""
        return _slots_of(tuple(self.pages_of(sequence)), self.page_size)

    def _copy(self, page: int) -> int:
        """Return a page of one's own with the same keys and values."""
        copy = super()._copy(page)
        for stored_LNXX in self.tensors:
            pages_LPnXX = stored_LNXX.unflatten(1, (-1, self.page_size))
            pages_LPnXX[:, copy] = pages_LPnXX[:, page]
        return copy


@lru_cache  # a sequence's pages are the same in most passes
def _slots_of(pages: tuple[int, ...], page_size: int) -> Tensor:
    pages_P = torch.tensor(pages, dtype=torch.int64, device="cpu")
    return (pages_P[:, None] * page_size + torch.arange(page_size, device="cpu")).flatten()
