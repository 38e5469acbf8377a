"""Experts: some of the E MLPs of a layer, over rows that come sorted by expert.

    rows_RD    expert 0 | expert 0 | expert 2 | expert 2 | expert 2       counts 2, 0, 3
               `-- one product --'   `------- one product -------'

A segment of rows is one matrix product, as long as the expert's tokens are many: nothing is padded
to the busiest expert, and nothing is dropped to make segments equal (what MegaBlocks does in one
kernel over all experts, for GPUs, where many small products leave the device idle).

The experts keep their numbers in the layer, whichever rank they are on, so parameters have the
names and the values that they have in the whole: `mlp.experts.3.up.weight`.
Paper: MegaBlocks, arXiv:2211.15841, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.model import MLP, GPTConfig


class Experts(nn.ModuleDict):
    """The MLPs of these numbers: rows_RD, sorted by expert -> rows_RD."""

    def __init__(self, config: GPTConfig, numbers: Iterable[int]) -> None:
        """config: `ffn_hidden` is what is inside one expert."""
        super().__init__({str(number): MLP(config) for number in numbers})

    def forward(self, rows_RD: Tensor, counts: Sequence[int]) -> Tensor:
        """counts: how many rows each of these experts has, in order; 0 is fine.

        An expert without a row takes part with none, so that its gradients are zeros, not missing.
        """
        if not len(self):
            return rows_RD
        parts = rows_RD.split(list(counts))
        return torch.cat([mlp(part) for mlp, part in zip(self.values(), parts, strict=True)])


def held_by_ranks(num_experts: int, num_ranks: int) -> tuple[range, ...]:
    """The experts of each rank, in order; the first E % n ranks hold one more.

    held_by_ranks(5, 3) == (range(0, 2), range(2, 4), range(4, 5)). Ranks beyond E hold none.
    """
    arguments.whole("num_experts", num_experts, "1 or more")
    least, more = divmod(num_experts, arguments.whole("num_ranks", num_ranks, "1 or more"))
    starts = [rank * least + min(rank, more) for rank in range(num_ranks + 1)]
    return tuple(map(range, starts, starts[1:]))
