"""Mistakes in ring attention, by the outputs that come of them.

A rank computes online softmax over the blocks in the order in which they come (context_blocks.py),
with masks and blocks that a mistake makes others than they should be.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.grade.graders import softmax_theories
from labkit.grade.graders.context_blocks import Sees, by_head, causal, output, positions, queries
from labkit.grade.graders.context_inputs import Given

# In the words of a ring: its first block is the own one, and its mask is a causal one.
_SAID_BEFORE = {"only the first block counts", "ignores the mask"}


@dataclass(frozen=True)
class Mistake:
    """A name for it, and a rank's output."""

    name: str
    explanation: str
    output: Callable[[int], Tensor]
    hint: int = 2


def mistakes(given: Given) -> list[Mistake]:
    """In the order in which they are tried."""
    return [
        *_of_masks(given),
        *_of_directions(given),
        *_of_sources(given),
        *_of_blocks(given),
        *_of_softmax(given),
    ]


def _shape(given: Given, rank: int, source: int) -> Tensor:
    """(t, s) of True: every query sees every key of the block."""
    return torch.ones(given.sizes[rank], given.sizes[source], dtype=torch.bool)


def _of_masks(given: Given) -> list[Mistake]:
    rows: list[tuple[str, str, Sees]] = [
        (
            "is not causal",
            "every query attends to all keys, those of later positions included",
            lambda rank, step, source: _shape(given, rank, source),
        ),
        (
            "masks by positions within the blocks",
            "query i of the share sees keys 0 to i of every block. Positions count from the "
            "beginning of the sequence: of an earlier rank's block all keys are seen, of a later "
            "one's none",
            lambda rank, step, source: _shape(given, rank, source).tril(),
        ),
        (
            "masks by positions within the blocks",
            "query i of the share sees keys 0 to i of its own block and of every block before it: "
            "of those before it, all keys are seen",
            lambda rank, step, source: _shape(given, rank, source).tril() & (source <= rank),
        ),
        (
            "does not mask within its own block",
            "blocks of later ranks are left out, and in its own block a query sees the keys after "
            "it, too",
            lambda rank, step, source: _shape(given, rank, source) & (source <= rank),
        ),
    ]
    return [_with_masks(given, *row) for row in rows]


def _of_directions(given: Given) -> list[Mistake]:
    rows: list[tuple[str, str, Sees]] = [
        (
            "hides a query's own position",
            "the query at position i sees positions 0 to i - 1: it sees its own key as well",
            lambda rank, step, source: (
                positions(given, lambda *_: source)(rank, step, source)
                & (given.begin(source) + torch.arange(given.sizes[source]) != queries(given, rank))
            ),
        ),
        (
            "attends to later positions",
            "the mask is the wrong way round: a query sees its own position and those after it",
            lambda rank, step, source: (
                given.begin(source) + torch.arange(given.sizes[source]) >= queries(given, rank)
            ),
        ),
        (
            "leaves out the blocks of earlier ranks",
            "blocks of earlier ranks are those that are seen, wholly; here blocks of later ranks "
            "are computed, and earlier ones are left out",
            lambda rank, step, source: (
                _shape(given, rank, source).tril()
                if source == rank
                else _shape(given, rank, source) & (source > rank)
            ),
        ),
    ]
    return [_with_masks(given, *row) for row in rows]


def _with_masks(given: Given, name: str, why: str, sees: Sees) -> Mistake:
    return Mistake(name, why, lambda rank: output(given, rank, sees))


def _of_sources(given: Given) -> list[Mistake]:
    """Blocks that are taken for another rank's, and so masked by other positions."""
    n = len(given.q)
    claims: list[tuple[str, Callable[[int, int], int]]] = [
        ("rank + step", lambda rank, step: (rank + step) % n),
        ("rank - step - 1", lambda rank, step: (rank - step - 1) % n),
        ("rank - step + 1", lambda rank, step: (rank - step + 1) % n),
        ("step", lambda rank, step: step),
        ("rank - 1", lambda rank, step: (rank - 1) % n if step else rank),
        ("rank", lambda rank, step: rank),
    ]
    return [
        _with_masks(
            given,
            "takes a block for another rank's",
            f"the masks are those of blocks of rank {claim}. What comes from the left is, after "
            "`step` steps, the block of rank - step, modulo n: it decides which positions its keys "
            "have",
            positions(given, claimed),
        )
        for claim, claimed in claims
    ]


def _of_blocks(given: Given) -> list[Mistake]:
    n, right = len(given.q), causal(given)

    def without(left_out: Callable[[int], bool]) -> Sees:
        return lambda rank, step, source: right(rank, step, source) & (not left_out(step))

    found = [
        _with_masks(
            given,
            "leaves out the block that comes last",
            f"the output lacks the block of step {n - 1}: a rank computes with n blocks, its own "
            "and n - 1 that come. It sends n - 1 times, and computes once more",
            without(lambda step: step == n - 1),
        ),
        _with_masks(
            given,
            "leaves out its own block",
            "the output lacks the rank's own keys: they are the first block, and need no message",
            without(lambda step: step == 0),
        ),
        _with_masks(
            given,
            "attends to its own block only",
            "nothing of another rank's keys and values is in the output",
            without(lambda step: step > 0),
        ),
    ]
    own = [Given(given.q, [given.k[rank]] * n, [given.v[rank]] * n) for rank in range(n)]
    if len(set(given.sizes)) == 1 and n > 1:
        found.append(
            Mistake(
                "computes with its own block in every step",
                "blocks go around, and the keys and values that are used are the rank's own each "
                "time: what has come is the block of the next step",
                lambda rank: output(own[rank], rank, right),
                3,
            )
        )
    return found


def _of_softmax(given: Given) -> list[Mistake]:
    """Mistakes of online softmax, with the blocks and masks as they should be."""
    right = causal(given)

    def with_its(mistake: softmax_theories.Mistake, is_skipping: bool) -> Mistake:
        return Mistake(
            mistake.name,
            mistake.explanation,
            lambda rank: by_head(given, rank, right, mistake.values, is_skipping),
            mistake.hint,
        )

    return [
        with_its(each, is_skipping)
        for is_skipping in (True, False)
        for each in softmax_theories.of_outputs()
        if each.name not in _SAID_BEFORE
    ]
