"""The doctor: why a run does not end, from where its ranks are.

In this order, and the first that fits is the verdict:

    mismatch    ranks mean different operations where they should mean the same
    left        ranks wait for one that has returned (or takes no part, or is dead)
    cycle       ranks wait for each other
    stopped     a rank's process is stopped, by a signal or a debugger: it executes nothing
    slow        ranks wait for one that computes: no deadlock, and its stack says what it does
    under way   all that is needed has been posted: data is moving, or the network is not
    busy        nobody waits

The first three are proofs: what these ranks wait for cannot come. Unless the rank that should
bring it has other threads, which may still do so: then it is reported, and the run goes on, except
for threads that all wait themselves, as a communication thread does (in data_parallel). The others
may end well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from labkit.comm import Operation, Timeline, mismatch
from labkit.comm.mismatch import ADVICE, Difference
from labkit.comm.operation import known_as, listed, places, purpose, ranks_named, verb
from labkit.comm.recorder import is_foreign
from labkit.doctor import sources
from labkit.doctor.halt import cure
from labkit.doctor.position import activity, plural, position_of
from labkit.doctor.verdict import (
    ALL_RECEIVE,
    ALL_SEND,
    CALL_ALIKE,
    CALL_ON_ALL,
    COUNT_CALLS,
    COUNT_MESSAGES,
    MIXED,
    NOT_ASKED,
    NOT_RECORDED,
    STOPPED,
    Fault,
    Stage,
    Verdict,
)
from labkit.doctor.waiting import View, Wait, cycle, waits, waits_of

_MOST_SHOWN = 8
_RECENT = 1000  # operations of a rank; others are not that far behind, or ahead


def diagnose(views: Sequence[View]) -> Verdict:
    """The verdict on ranks of which these things are known. `views` has an entry per rank.

    It goes through every operation of the run, at 15 us for each: for a run that is over.
    """
    operations = [Timeline([*view.operations, *view.recorded.operations]) for view in views]
    difference = mismatch.first_difference(operations)
    return diagnose_waits(views) if difference is None else _mismatch(difference)


def diagnose_now(views: Sequence[View]) -> Verdict:
    """The same of a run under way, however much it has done: of journals their ends alone count.

    What is in them has been compared by the ranks, each operation before it started; the ends are
    for a program that caught what its rank said and went on. torch's record was compared by nobody.
    """
    operations = [Timeline(list(view.operations[-_RECENT:])) for view in views]
    recorded = [Timeline(list(view.recorded.operations)) for view in views]
    difference = mismatch.first_difference(operations) or mismatch.first_difference(recorded)
    return diagnose_waits(views) if difference is None else _mismatch(difference)


def _mismatch(difference: Difference) -> Verdict:
    text, todo = difference.text(sources.place), ADVICE[difference.aspect]
    return Verdict(Fault.MISMATCH, text, todo, tuple(difference.odd_ranks), is_proof=True)


def diagnose_waits(views: Sequence[View]) -> Verdict:
    """The same, but for mismatches."""
    found = waits(views)
    return (
        _left(views, found)
        or _cycle(views, found)
        or _stopped(views, found)
        or _slow(views, found)
        or _under_way(found)
        or _busy(views)
    )


def _left(views: Sequence[View], found: Mapping[int, Wait]) -> Verdict | None:
    for wait in _by_age(found):
        gone = [rank for rank in wait.absent if views[rank].stage.is_over]
        if gone:
            operation = wait.operation
            without = "calling it"
            if not operation.is_internal:
                ends = {"send": "receiving it", "recv": "sending it"}
                without = ends.get(operation.kind, without)
            absent = _together_said(gone, [position_of(views[rank]) for rank in gone])
            text = f"{_waiting(_together(wait, found))}; {listed(absent)}, without {without}"
            todo = COUNT_CALLS if operation.is_collective else COUNT_MESSAGES
            if operation.is_internal and not operation.is_collective:
                todo = CALL_ON_ALL
            if all(views[rank].stage is Stage.IDLE for rank in gone):
                todo = NOT_ASKED
            return _unless_threads_bring_it(Verdict(Fault.LEFT, text, todo, tuple(gone)), views)
    return None


def _cycle(views: Sequence[View], found: Mapping[int, Wait]) -> Verdict | None:
    ring = cycle(found)
    if not ring:
        return None
    ranks = [wait.rank for wait in ring]
    steps = [
        f"rank {wait.rank} in {known_as(wait.operation)} "
        f"({purpose(wait.operation)}{sources.place(wait.operation.origin)})"
        for wait in sorted(ring, key=lambda wait: wait.rank)[:_MOST_SHOWN]
    ]
    if len(ring) > _MOST_SHOWN:
        steps.append(f"{len(ring) - _MOST_SHOWN} more likewise")
    how = "for each other" if len(ring) == 2 else "in a cycle, each for the next"
    text = f"{ranks_named(sorted(ranks))} wait {how}: {listed(steps)}"
    kinds = {wait.operation.kind for wait in ring}
    todos = {frozenset(["send"]): ALL_SEND, frozenset(["recv"]): ALL_RECEIVE}
    todo = todos.get(frozenset(kinds), MIXED)
    if any(w.operation.is_internal and not w.operation.is_collective for w in ring):
        todo = CALL_ALIKE
    return _unless_threads_bring_it(Verdict(Fault.CYCLE, text, todo, tuple(sorted(ranks))), views)


def _unless_threads_bring_it(verdict: Verdict, views: Sequence[View]) -> Verdict:
    """Return the verdict as a proof, or say that other threads of its ranks may still post."""
    if _cannot_bring(views, verdict.ranks):
        return replace(verdict, is_proof=True)
    busy = [rank for rank in verdict.ranks if views[rank].has_others_at_work]
    clause = f"unless another thread of {ranks_named(busy)} still brings it"
    return replace(verdict, text=f"{verdict.text}, {clause}")


def _cannot_bring(views: Sequence[View], ranks: Sequence[int]) -> bool:
    """Return whether these ranks have no other threads that may still post something.

    They may not either where every thread of every rank is held, and nothing is under way. A rank
    that has returned may have left threads behind.
    """
    if not any(views[rank].has_others_at_work for rank in ranks):
        return True
    active = [
        rank
        for rank, view in enumerate(views)
        if view.stage is Stage.RUNNING or view.has_others_at_work
    ]
    # A signal's handler runs in the main thread, also while that waits for a lock.
    are_held = all(
        views[rank].stack.is_held and not views[rank].recorded.has_handlers for rank in active
    )
    return are_held and not any(wait.can_end for rank in active for wait in waits_of(rank, views))


def _stopped(views: Sequence[View], found: Mapping[int, Wait]) -> Verdict | None:
    halts = {rank: view.halt for rank, view in enumerate(views) if view.is_stopped and view.halt}
    if not halts:
        return None
    ranks, why = list(halts), list(halts.values())
    text = listed(_together_said(ranks, [halt.description for halt in why])) + cure(why)
    waiting = [wait for wait in _by_age(found) if wait.rank not in ranks]
    if waiting:
        text = f"{_waiting(_together(waiting[0], found))}, and {text}"
    return Verdict(Fault.STOPPED, text, STOPPED, tuple(ranks))


def _slow(views: Sequence[View], found: Mapping[int, Wait]) -> Verdict | None:
    for wait in _by_age(found):
        late = [rank for rank in wait.missing if rank not in found]
        if late:
            where = [position_of(views[rank]) for rank in late]
            who = _together_said(late, where, ", which ")
            text = f"{_waiting(_together(wait, found))} for {listed(who)}"
            todo = (
                f"{ranks_named(late).capitalize()} {verb(late, 'has')} not come there yet: slow, "
                "in a loop, or on another path. That is no deadlock by itself."
            )
            return Verdict(Fault.SLOW, text, todo, tuple(late))
    return None


def _under_way(found: Mapping[int, Wait]) -> Verdict | None:
    for wait in _by_age(found):
        text = (
            f"{_waiting(_together(wait, found))}, and every rank that is needed has called it: "
            "its data is under way, or a connection is stuck"
        )
        todo = NOT_RECORDED if is_foreign(wait.operation) else ""
        return Verdict(Fault.UNDER_WAY, text, todo, tuple(found))
    return None


def _together_said(ranks: Sequence[int], said: Sequence[str], link: str = " ") -> list[str]:
    """`ranks 1 and 3 are idle`: those of whom the same is said in one."""
    ranks_of: dict[str, list[int]] = {}
    for rank, text in zip(ranks, said, strict=True):
        ranks_of.setdefault(text, []).append(rank)
    return [f"{ranks_named(each)}{link}{plural(text, each)}" for text, each in ranks_of.items()]


def _by_age(found: Mapping[int, Wait]) -> list[Wait]:
    """The longest wait first."""
    return sorted(found.values(), key=lambda wait: wait.operation.waited_s or 0.0)


def _together(wait: Wait, found: Mapping[int, Wait]) -> list[Wait]:
    """All who wait in the same operation."""
    operation = wait.operation
    if not operation.is_collective:
        return [wait] if operation.label is None else _labelled_alike(operation, found)
    key = (operation.group_name, operation.sequence)
    return [
        each
        for each in found.values()
        if each.operation.is_collective
        and (each.operation.group_name, each.operation.sequence) == key
    ]


def _labelled_alike(operation: Operation, found: Mapping[int, Wait]) -> list[Wait]:
    """All who wait for a message of the same purpose, as in a ring."""
    return [
        each
        for each in found.values()
        if (each.operation.group_name, each.operation.label, each.operation.is_collective)
        == (operation.group_name, operation.label, False)
    ]


def _waiting(together: Sequence[Wait]) -> str:
    """`ranks 0, 2 and 3 wait in all_reduce #4 (cell 7, line 12)`."""
    ranks = [wait.rank for wait in together]
    operations = [wait.operation for wait in together]
    return (
        f"{ranks_named(ranks)} {verb(ranks, 'waits')} in {known_as(operations[0])} "
        f"({purpose(operations[0])}{places(operations, sources.place)})"
    )


def _busy(views: Sequence[View]) -> Verdict:
    starting = [rank for rank, view in enumerate(views) if view.stage is Stage.STARTING]
    running = [rank for rank, view in enumerate(views) if view.stage is Stage.RUNNING]
    if starting:
        text = f"{ranks_named(starting)} {verb(starting, 'was')} still starting"
        todo = "Imports of the function and unpickling its arguments take time."
        return Verdict(Fault.BUSY, text, todo, tuple(starting))
    if not running:
        return Verdict(Fault.BUSY, "no rank is in the function any more")
    said = [activity(views[rank]) for rank in running]
    text = f"no rank waits for another: {listed(_together_said(running, said))}"
    return Verdict(Fault.BUSY, text, "The stacks say what they do.", tuple(running))
