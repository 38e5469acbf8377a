"""Rules for a stuck job, each wrong in its own way, and known by what they answer.

A rule of thumb blames a rank at a glance; a misreading follows the waits, and takes the wrong ranks
for those that are missing in a collective.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.grade.graders.straggler_cases import DEADLOCK, STRAGGLER, Case, Shown

Rank = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Theory:
    """A rule that blames a rank. `key`: which rank of those that `among` admits; the least."""

    name: str
    explanation: str
    key: Callable[[Rank], float]
    among: Callable[[Rank], bool] = lambda one: True

    def blamed(self, shown: Shown) -> int | None:
        """The rank; None where the rule has nothing to say."""
        admitted = [one for one in shown if self.among(one)]
        return min(admitted, key=self.key)["rank"] if admitted else None


def _is_blocked(one: Rank) -> bool:
    return bool(one["state"] == "blocked")


_LONGEST = (
    "how long a rank has been waiting says when it came, not who is missing: who has waited "
    "longest was the first to be ready"
)
_LAST = (
    "the last rank to arrive did arrive. What the others wait for is a rank that has not posted "
    "its part at all"
)
THEORIES = (
    Theory(
        "blames the rank that waits longest", _LONGEST, lambda one: -one["seconds"], _is_blocked
    ),
    Theory("blames the rank that waits longest", _LONGEST, lambda one: -one["seconds"]),
    Theory("blames the last to arrive", _LAST, lambda one: one["seconds"], _is_blocked),
    Theory("blames the last to arrive", _LAST, lambda one: one["seconds"]),
    Theory(
        "looks at the number and not at the group",
        "numbers of operations count within one group. The lowest number of all says nothing: "
        "compare a rank's `number` with what the members of its group have `posted` in that group",
        lambda one: one["number"],
    ),
    Theory(
        "blames the busiest rank",
        "a busy core may be a data loader's, and a rank that reads from a slow disk uses none; on "
        "GPUs a blocked rank polls, and looks busy as well",
        lambda one: -one["cpu"],
    ),
)


def theory_of_ranks(cases: Sequence[Case], ranks: Sequence[int]) -> Theory | None:
    """The rule that blames just these ranks, in every case."""
    for theory in THEORIES:
        if [theory.blamed(case.shown) for case in cases] == list(ranks):
            return theory
    return None


def follows_one_wait(cases: Sequence[Case], ranks: Sequence[int]) -> bool:
    """Whether each rank is what another one waits for directly, and some of them wait, too."""
    return all(
        any(rank in _waits_for(one, case.shown) for one in case.shown)
        for case, rank in zip(cases, ranks, strict=True)
    )


def leads_into_a_circle(cases: Sequence[Case], ranks: Sequence[int]) -> bool:
    """Whether each wrong rank is waited for, and some circle ends the waits behind it."""
    wrong = [
        (case, rank) for case, rank in zip(cases, ranks, strict=True) if rank not in case.ranks
    ]
    return all(
        all(_is_blocked(case.shown[each]) for each in case.ranks)
        and any(rank in _waits_for(one, case.shown) for one in case.shown)
        for case, rank in wrong
    )


def _waits_for(one: Rank, shown: Shown, missing: "Missing | None" = None) -> list[int]:
    if not _is_blocked(one):
        return []
    if one["peer"] is not None:
        return [one["peer"]]
    return (missing or _missing)(one, shown)


Missing = Callable[[Rank, Shown], list[int]]
"""The ranks that a rank waits for in its collective, as someone reads what is shown."""


def _missing(one: Rank, shown: Shown) -> list[int]:
    return [member for member in one["members"] if _posted(one, shown[member]) < one["number"]]


def _missing_of_all(one: Rank, shown: Shown) -> list[int]:
    return [rank for rank in range(len(shown)) if _posted(one, shown[rank]) < one["number"]]


def _behind_the_last(one: Rank, shown: Shown) -> list[int]:
    last = max(_posted(one, other) for other in shown)
    return [member for member in one["members"] if _posted(one, shown[member]) < last]


def _posted(one: Rank, other: Rank) -> int:
    """The number of the last collective that `other` has posted in the group of `one`."""
    return int(other["posted"].get(one["group"], 0))


@dataclass(frozen=True, slots=True)
class Misreading:
    """Waits that are followed well, and read wrong."""

    name: str
    explanation: str
    missing: Missing

    def answers(self, cases: Sequence[Case], start: int, turn: int) -> list[tuple[str, int]]:
        """What it says, where waits are followed from the first blocked rank (start: 0) or the
        last (-1), and of several missing ranks to the first (turn: 0) or the last.
        """
        return [self._answer(case.shown, start, turn) for case in cases]

    def _answer(self, shown: Shown, start: int, turn: int) -> tuple[str, int]:
        rank = [one["rank"] for one in shown if _is_blocked(one)][start]
        path: list[int] = []
        while rank not in path:
            path.append(rank)
            following = _waits_for(shown[rank], shown, self.missing)
            if not following:
                return STRAGGLER if shown[rank]["state"] == "running" else DEADLOCK, rank
            rank = following[turn]
        return DEADLOCK, rank


MISREADINGS = (
    Misreading(
        "asks ranks that are no members",
        "a collective needs the members of its group, and no other rank: one that is not among "
        "`members` has posted nothing there, and nobody waits for it",
        _missing_of_all,
    ),
    Misreading(
        "compares with the group's last collective",
        "a rank may post a collective before an earlier one is complete. Who waits for number 4 "
        "needs those members that have not posted number 4, whatever number some member has "
        "come to since: compare with the `number` of the rank that waits",
        _behind_the_last,
    ),
)


def misreading_of(cases: Sequence[Case], answers: Sequence[tuple[str, int]]) -> Misreading | None:
    """The misreading that gives just these answers, in every case."""
    for each, start, turn in itertools.product(MISREADINGS, (0, -1), (0, -1)):
        if each.answers(cases, start, turn) == list(answers):
            return each
    return None


def kind_by_cpu(cases: Sequence[Case], kinds: Sequence[str]) -> bool:
    """Whether a job counts as a straggler wherever some rank keeps a core busy, and only there."""
    return [kind == STRAGGLER for kind in kinds] == [case.has_busy_core for case in cases]


def kind_by_state(cases: Sequence[Case], kinds: Sequence[str], state: str) -> bool:
    """Whether a job counts as a straggler (state running) or a deadlock (returned) wherever some
    rank is in that state, and only there."""
    said = STRAGGLER if state == "running" else DEADLOCK
    return [kind == said for kind in kinds] == [
        any(one["state"] == state for one in case.shown) for case in cases
    ]
