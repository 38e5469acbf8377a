"""Mistakes in expert_all_to_all, by the outputs that come of them: the round trip by rules.

With the rules as they stand it is right, and with one of them replaced it is what that mistake
leads to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.grade.graders.expert_inputs import Given, computed


class Restores(Enum):
    """How results get back to their tokens' places."""

    BY_THE_INVERSE = "y[order] = results"
    NOT = "results as they come"
    BY_THE_SAME = "results[order]"


@dataclass(frozen=True)
class Rules:
    """How the round trip is made. As it stands: right."""

    sorts: bool = True
    """Whether rows leave sorted by expert."""
    regroups: bool = True
    """Whether rows that come rank by rank are put together by expert."""
    restores: Restores = Restores.BY_THE_INVERSE


class Mistake(NamedTuple):
    """A name for it, and the rules of it."""

    name: str
    explanation: str
    rules: Rules


MISTAKES: Sequence[Mistake] = (
    Mistake(
        "leaves the rows sorted by expert",
        "the results are right, and in the order in which rows were sent: sorted by expert. Row t "
        "belongs to token t: y[order] = results puts them back",
        Rules(restores=Restores.NOT),
    ),
    Mistake(
        "permutes again instead of back",
        "results[order] sorts once more what is sorted; the way back is the inverse, y[order] = "
        "results, or results[order.argsort()]",
        Rules(restores=Restores.BY_THE_SAME),
    ),
    Mistake(
        "takes rows by rank for rows by expert",
        "rows come from rank 0, then from rank 1, and of each rank expert by expert. Here they are "
        "cut as if all rows of the first expert came first: put each expert's parts from all ranks "
        "together, and take them apart again on the way back",
        Rules(regroups=False),
    ),
    Mistake(
        "does not sort the rows",
        "the splits say how many rows go to each rank, and all_to_all sends the first ones, "
        "whichever they are: rows have to be sorted by expert first",
        Rules(sorts=False, restores=Restores.NOT),
    ),
    Mistake(
        "does not sort the rows",
        "the results were put in order, and the rows were not: x_TD[order] is what is sent",
        Rules(sorts=False),
    ),
)


def outputs(rules: Rules, given: Given) -> list[Tensor]:
    """By rank: what comes of these rules."""
    orders = [experts.argsort(stable=True) for experts in given.experts]
    leaving = [
        rows[order] if rules.sorts else rows
        for rows, order in zip(given.tokens, orders, strict=True)
    ]
    parts = [  # by source and expert
        list(rows.split(counts.tolist()))
        for rows, counts in zip(leaving, given.counts, strict=True)
    ]
    for expert in range(given.num_experts):
        _compute(rules, given, parts, expert)
    if not rules.regroups:
        _compute_as_they_come(given, parts)
    back = [torch.cat(each) for each in parts]
    return [_restored(rules, *pair) for pair in zip(back, orders, strict=True)]


def _compute(rules: Rules, given: Given, parts: list[list[Tensor]], expert: int) -> None:
    if rules.regroups:
        for its in parts:
            its[expert] = computed(its[expert], given.weights[expert])


def _compute_as_they_come(given: Given, parts: list[list[Tensor]]) -> None:
    """Each rank cuts all that came as if it came expert by expert."""
    for rank in range(given.num_ranks):
        here = range(rank * given.num_here, (rank + 1) * given.num_here)
        rows = torch.cat([its[expert] for its in parts for expert in here])
        weights = given.weights[here.start : here.stop]
        per_row = weights.repeat_interleave(given.counts[:, here.start : here.stop].sum(0), 0)
        results = iter(computed(rows, per_row).split([len(its[e]) for its in parts for e in here]))
        for its in parts:
            for expert in here:
                its[expert] = next(results)


def _restored(rules: Rules, results: Tensor, order: Tensor) -> Tensor:
    if rules.restores is Restores.NOT:
        return results
    if rules.restores is Restores.BY_THE_SAME:
        return results[order]
    return torch.empty_like(results).index_copy(0, order, results)


def is_telling(given: Given) -> bool:
    """Whether mistakes differ from what is right, and from each other."""
    made = [given.expected, *(outputs(each.rules, given) for each in MISTAKES)]
    if given.num_ranks == 1:  # then rows by rank are rows by expert
        made = [each for i, each in enumerate(made) if i == 0 or MISTAKES[i - 1].rules.regroups]
    between = given.counts.view(given.num_ranks, given.num_ranks, -1).sum(2)
    # Else what a rank sends would do for what it receives, or one way's splits for the other's.
    is_balanced = torch.equal(between.sum(0), between.sum(1)) and given.num_ranks > 1
    return not is_balanced and not any(
        all(map(torch.equal, one, other)) for i, one in enumerate(made) for other in made[:i]
    )
