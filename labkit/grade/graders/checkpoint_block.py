"""checkpoint_block is graded on values and gradients, on forward passes, and on bytes kept.

What is left to the learner: a Function, hooks on saved tensors, or whatever else does it.
"""

import dataclasses
import random
from collections.abc import Sequence

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.checkpoint_budget import more_bytes, other_passes
from labkit.grade.graders.checkpoint_inputs import given_in, random_cases
from labkit.grade.graders.checkpoint_values import crash_by_name, wrong_graph, wrong_values
from labkit.grade.graders.checkpoint_watch import Told, seen_in, watched
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding


class CheckpointBlock(OnRanks):
    """The grader of checkpoint_block."""

    functions: Sequence[str] = ("checkpointed",)
    allowed: Sequence[str] = ()
    world_sizes: Sequence[int] = (1,)
    call = staticmethod(watched)
    num_arguments = 2
    shown_by_a_pass = (
        "output and gradients are those of the block, with dropout, with a frozen parameter and "
        "where x needs no gradient; it runs twice, and between the two x is all that is kept"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """One block, dropout, three blocks, a frozen parameter."""
        return random_cases(rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: values, passes, bytes."""
        given, record = given_in(evidence.case), evidence.completed[0]
        if record.output_type != Told.__name__:
            return diagnosis.result_form(evidence, given.x.shape, given.x.dtype)
        seen = seen_in(record.outputs, given)
        finding = (
            wrong_graph(seen, given)
            or wrong_values(seen, given)
            or other_passes(seen, given)
            or more_bytes(seen, given)
        )
        return finding and dataclasses.replace(
            finding, first_seen=": ".join(filter(None, (evidence.label, finding.first_seen)))
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What torch's messages stand for."""
        return crash_by_name(finding, given_in(evidence.case))


GRADER = CheckpointBlock()
