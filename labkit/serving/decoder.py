"""One forward for a batch of pieces: whole prompts, chunks and single tokens together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from labkit.model import GPT
from labkit.serving.caches import KVCache, Piece


class Decoder(nn.Module):
    """A GPT that reads and writes a cache. The parameters are the GPT's own, not copies."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, pieces: Sequence[Piece], cache: KVCache) -> Tensor:
        """logits_SV: a row for each piece, of the token after its last. Reserve room before.

        Writes keys and values of the pieces and commits them. No two pieces are of one sequence.
        """
        raise NotImplementedError
