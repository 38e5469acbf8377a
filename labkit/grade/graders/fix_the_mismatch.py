"""fix_the_mismatch is graded on what one process with all the examples would compute.

How the ranks come to agree is left to the learner: one collective or four, sums or weighted means.
"""

import dataclasses
import random
from collections.abc import Sequence

import torch

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.mismatch_budget import calls_differ, over_budget
from labkit.grade.graders.mismatch_values import wrong_form, wrong_values
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding

_FULL_BATCH = 4
_MAX_DELAY_S = 0.002
_THIRDS = 3.0


class FixTheMismatch(OnRanks):
    """The grader of fix_the_mismatch."""

    functions: Sequence[str] = ("train_step",)
    allowed: Sequence[str] = (
        "all_reduce",
        "all_gather",
        "all_to_all",
        "barrier",
        "broadcast",
        "gather",
        "reduce_scatter",
        "scatter",
    )
    shown_by_a_pass = (
        "every rank gets what one process with all the examples gets, however they are dealt; all "
        "ranks make the same calls, at most 4 of them, with 2 D + 2 numbers in all"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Batches: all uneven, one short, ranks without any, a late rank, all equal, and large."""
        n = world_size
        full = [_FULL_BATCH] * n
        short = [*full[:-1], rng.randrange(1, _FULL_BATCH)]
        rng.shuffle(short)
        empty = [rng.randrange(1, _FULL_BATCH + 1) for _ in range(n)]
        for rank in rng.sample(range(n), rng.randrange(1, n) if n > 1 else 0):
            empty[rank] = 0
        uneven = rng.sample(range(1, 9), n)
        large = [rng.randrange(100, 400), *rng.sample(range(1, 9), n - 1)]
        rng.shuffle(large)
        late = rng.randrange(n)
        late_s = tuple(_MAX_DELAY_S * (rank == late) for rank in range(n))
        return [
            # Uneven ones first: a mismatch is worth telling before a budget.
            _case("all batches uneven", uneven, rng),
            _case("one short batch", short, rng),
            _case("ranks without examples", empty, rng),
            dataclasses.replace(_case(f"rank {late} late", uneven, rng), delays_s=late_s),
            _case("equal batches", full, rng),
            # Whole numbers are exact in float32, too; a third in no format.
            _case("thirds, and a large batch", large, rng, _THIRDS),
        ]

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: calls, then values, then budget."""
        return (
            calls_differ(evidence)
            or wrong_form(evidence)
            or wrong_values(evidence)
            or diagnosis.input_changed(evidence)
            or over_budget(evidence)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Here collectives are allowed, but only those of the group."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="communicates past the group")
        return finding


def _case(label: str, batches: Sequence[int], rng: random.Random, divisor: float = 1.0) -> Case:
    """Whole numbers as float64, over `divisor`: undivided, sums are exact in any order."""
    num_features = rng.randrange(2, 7)

    def drawn(*shape: int) -> torch.Tensor:
        """Numbers from -9 to 9, over `divisor`."""
        generator = torch.Generator().manual_seed(rng.getrandbits(63))
        return torch.randint(-9, 10, shape, generator=generator).to(torch.float64) / divisor

    scale, shift = drawn(num_features), drawn(num_features)
    arguments = tuple(
        (drawn(batch, num_features), drawn(batch, num_features), scale.clone(), shift.clone())
        for batch in batches
    )
    examples = f"{', '.join(map(str, batches))} examples, D = {num_features}"
    return Case(f"{label} ({examples})", arguments, (0.0,) * len(batches))


GRADER = FixTheMismatch()
