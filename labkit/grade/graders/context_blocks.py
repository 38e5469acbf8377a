"""What a rank computes on a ring: online softmax over blocks, in the order in which they come.

Its own comes first, then its left neighbour's, and so on.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from labkit.grade.graders import softmax_inputs, softmax_theories
from labkit.grade.graders.context_inputs import Given
from labkit.grade.graders.softmax_rules import Rules

Sees = Callable[[int, int, int], Tensor]
"""(rank, step, source) -> (t, s), which keys of the block that comes in this step are seen."""


def output(given: Given, rank: int, sees: Sees) -> Tensor:
    """(H, t, K) with these masks."""
    return by_head(given, rank, sees, lambda its: softmax_theories.output(Rules(), its))


def causal(given: Given) -> Sees:
    """As it should be."""
    return positions(given, lambda rank, step: (rank - step) % len(given.q))


def positions(given: Given, claimed: Callable[[int, int], int]) -> Sees:
    """By positions in the sequence; claimed: whose block (rank, step) takes it for."""

    def sees(rank: int, step: int, source: int) -> Tensor:
        keys = given.begin(claimed(rank, step)) + torch.arange(given.sizes[source])
        return keys <= queries(given, rank)

    return sees


def queries(given: Given, rank: int) -> Tensor:
    """(t, 1), the positions of a rank's queries in the sequence."""
    return given.begin(rank) + torch.arange(given.sizes[rank]).unsqueeze(1)


def by_head(
    given: Given,
    rank: int,
    sees: Sees,
    values: Callable[[softmax_inputs.Given], Tensor],
    is_skipping: bool = False,
) -> Tensor:
    """is_skipping: without blocks of which nothing is seen."""
    sources = [(rank - step) % len(given.q) for step in range(len(given.q))]
    masks = [sees(rank, step, source) for step, source in enumerate(sources)]
    outputs = []
    for head, q in enumerate(given.q[rank]):
        blocks = [
            (given.k[source][head], given.v[source][head], mask)
            for source, mask in zip(sources, masks, strict=True)
            if not is_skipping or mask.any()
        ]
        outputs.append(values(softmax_inputs.Given(q, blocks, given.num_features**-0.5)))
    return torch.stack(outputs)
