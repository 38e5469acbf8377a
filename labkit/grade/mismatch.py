"""Ranks that did not mean the same operation, as a finding."""

import dataclasses
from collections.abc import Sequence

from labkit.comm.agreement import disagreement
from labkit.comm.agreement.difference import ADVICE, Aspect, Difference
from labkit.comm.operation import Operation, Timeline
from labkit.comm.words import named, ranks_named, verb
from labkit.grade.evidence import CaseEvidence
from labkit.grade.outcome import Finding, Outcome
from labkit.grade.own_numbers import counted
from labkit.launch import sources
from labkit.launch.errors import Mismatch

NOT_ALL_CALL = "a collective that not every rank calls"
OTHER_ORDER = "ranks make the same calls in another order"
_NAMES = {
    Aspect.KIND: "ranks call different operations",
    Aspect.MEDIUM: "ranks use different mediums",
    Aspect.ROOT: "ranks name different roots",
    Aspect.REDUCE: "ranks reduce in different ways",
    Aspect.LABEL: "ranks give different labels",
    Aspect.DTYPE: "ranks pass different dtypes",
    Aspect.SHAPE: "ranks pass different shapes",
    Aspect.SPLITS: "ranks expect different numbers of rows",
    Aspect.ORDER: OTHER_ORDER,
}


def explain_mismatch(evidence: CaseEvidence, failure: Mismatch) -> Finding:
    """In what the ranks differ, from their journals."""
    difference = disagreement.find(failure.timeline)
    if difference is None:
        raise AssertionError(f"a mismatch that no journal shows: {failure}")
    difference = _counted(difference, failure.timeline)
    # Ranks that are done with the case go on to the next, where the grader lets them meet: their
    # operation is not the learner's.
    calling = [rank for rank in difference.operations if not evidence.has_returned(rank)]
    if calling and len(calling) < len(difference.operations):
        return not_all_call(evidence, {rank: difference.operations[rank][0] for rank in calling})
    rank = difference.odd_ranks[0]
    return Finding(
        Outcome.WRONG,
        _NAMES[difference.aspect],
        f"{difference.text(sources.place)}. {ADVICE[difference.aspect]}",
        first_seen=f"{evidence.label}: {ranks_named(difference.odd_ranks)}",
        hint=2,
        where=difference.operations[rank][0].origin,
    )


def _counted(difference: Difference, timelines: Sequence[Timeline]) -> Difference:
    """The same, of operations that are numbered as the learner counts them."""
    operations = {}
    for rank, its in difference.operations.items():
        by_index = {each.index: each for each in counted(timelines[rank]).operations}
        operations[rank] = [by_index[each.index] for each in its]
    return dataclasses.replace(difference, operations=operations)


def not_all_call(evidence: CaseEvidence, waiting: dict[int, Operation]) -> Finding:
    """Ranks that are alone in a collective: the others have returned, or are somewhere else."""
    ranks, operation = list(waiting), next(iter(waiting.values()))
    others = [rank for rank in range(evidence.world_size) if rank not in waiting]
    have_returned = all(evidence.has_returned(rank) for rank in others)
    did = f"{verb(others, 'has')} returned without it" if have_returned else "never came to it"
    return Finding(
        Outcome.HUNG,
        NOT_ALL_CALL,
        f"{ranks_named(ranks)} {verb(ranks, 'waits')} in {named(operation)} "
        f"({sources.place(operation.origin)}), and {ranks_named(others)} {did}. Every member "
        "of a group makes the same calls: none may depend on the rank, nor on how much data a rank "
        "has",
        first_seen=f"{evidence.label}: {ranks_named(ranks)}",
        hint=2,
        where=operation.origin,
    )
