"""Preemption by swapping: keys and values of a preempted request wait in host memory.

    recompute   running -> its pages are freed             -> admitted: one pass of all its tokens
    swap        running -> pages copied to host memory     -> admitted: pages copied back
                           and freed                          and a pass of one token

Both give the same answers, at different costs. Recomputing takes the arithmetic of a prompt of that
length. Swapping moves 2 L G K numbers per cached token twice, over the link between device and
host, and takes host memory as long as the request waits. Short sequences are cheap to recompute.
Long ones, whose attention grows with the square, are cheap to swap. vLLM's first engine had both,
and its present one only recomputes.

Paper: Kwon et al., PagedAttention, SOSP 2023, sections 4.5 and 7.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from labkit.serving.caches import KVCache
from labkit.serving.decoder import Decoder
from labkit.serving.requests import Generation
from labkit.serving.scheduler import Scheduler
from labkit.serving.serving_engine import Engine


class SwappingEngine(Engine):
    """An Engine that copies keys and values of preempted requests to host memory, if they fit.

    swapped_bytes: bytes copied so far, out and in. host_bytes: bytes in host memory now.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        scheduler: Scheduler,
        *,
        max_host_bytes: int,
        max_waiting: int | None = None,
    ) -> None:
        """max_host_bytes: of all copies together. Requests that do not fit are recomputed."""
        super().__init__(decoder, cache, scheduler, max_waiting=max_waiting)
        self.max_host_bytes, self.swapped_bytes = max_host_bytes, 0
        self._copies: dict[int, list[Tensor]] = {}

    @property
    def host_bytes(self) -> int:
        """Size of the copies that wait."""
        return sum(map(_num_bytes, self._copies.values()))

    def cancel(self, id: int) -> None:
        """Like Engine, and drop the request's copy."""
        super().cancel(id)
        self._copies.pop(id, None)

    def _preempt(self, generation: Generation) -> None:
        copies = self.cache.swap_out(generation.id)
        super()._preempt(generation)
        if self.host_bytes + _num_bytes(copies) <= self.max_host_bytes:
            self._copies[generation.id] = [copy_LnXX.cpu() for copy_LnXX in copies]
            self.swapped_bytes += _num_bytes(copies)

    def _fill(self, generation: Generation) -> None:
        copies = self._copies.pop(generation.id, None)
        if copies is None:
            super()._fill(generation)
            return
        tokens = generation.tokens[: copies[0].shape[1]]
        if self.cache.swap_in(generation.id, tokens, generation.longest, copies):
            self.swapped_bytes += _num_bytes(copies)


def _num_bytes(copies: Sequence[Tensor]) -> int:
    return sum(copy_LnXX.nbytes for copy_LnXX in copies)
