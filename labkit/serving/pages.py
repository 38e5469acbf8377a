"""Rung 3: pages that sequences take as they grow, and share where they begin alike."""

from __future__ import annotations

import torch

from labkit.model import GPTConfig
from labkit.serving.caches import KVCache


class PagedCache(KVCache):
    """`num_pages` pages of `page_size` slots, any of which any sequence can take next."""

    def __init__(
        self,
        config: GPTConfig,
        num_pages: int,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(config, num_pages * page_size, dtype)

    def fork(self, parent: int, child: int) -> None:
        """Let a new sequence share all pages of another: copies are made when one of them writes."""
        raise NotImplementedError
