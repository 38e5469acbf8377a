"""What a rank runs of expert_all_to_all: the call, with experts that keep count.

On the rank, around the code under test; nothing here judges.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders import expert_inputs
from labkit.grade.graders.expert_inputs import computed
from labkit.grade.graders.routing_watch import OwnRouting
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup

LIVES_ELSEWHERE = "does not live on rank"


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    applied: Sequence[tuple[int, int]]
    """(expert, rows) for each call of `apply`, in order."""
    output: Tensor


class Told(list[Tensor]):
    """What was seen; told apart by its type from whatever the code under test returns."""


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> object:
    """Run on a rank: the call, and what was seen; where no tensor comes back: that."""
    x, experts, weights = arguments
    first, applied = group.rank * len(weights), list[tuple[int, int]]()

    def apply(expert: int, rows: Tensor) -> Tensor:
        if not first <= expert < first + len(weights):
            raise ValueError(
                f"expert {expert} {LIVES_ELSEWHERE} {group.rank}, where experts {first} to "
                f"{first + len(weights) - 1} are"
            )
        if rows.dim() != 2 or rows.shape[1] != x.shape[1]:
            raise ValueError(f"apply takes rows (N, {x.shape[1]}), and got {tuple(rows.shape)}")
        applied.append((int(expert), len(rows)))
        return computed(rows, weights[int(expert) - first])

    mode = OwnRouting(group.gate, but_for=(__file__, expert_inputs.__file__))
    with group.gate.watching(mode):
        returned = function(x, experts, len(weights) * group.size, apply, group)
    if not is_plain_tensor(returned):
        return returned
    return Told([torch.tensor(applied, dtype=torch.int64).view(-1, 2), returned])


def seen_on(evidence: CaseEvidence) -> list[Seen]:
    """By rank, what `watched` has told, in the driver."""
    return [
        Seen([(expert, rows) for expert, rows in record.outputs[0].tolist()], record.outputs[1])
        for record in evidence.completed
    ]
