"""Rules of thumb for a stuck job, each wrong in its own way, and known by what they answer."""

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


def _waits_for(one: Rank, shown: Shown) -> list[int]:
    if one["state"] != "blocked":
        return []
    if one["peer"] is not None:
        return [one["peer"]]
    group, number = one["group"], one["number"]
    return [member for member in one["members"] if shown[member]["posted"].get(group, 0) < number]


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
