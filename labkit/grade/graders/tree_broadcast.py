"""tree_broadcast is graded on values, on ceil(log2 n) steps, and on one receive for each rank.

What is left to the learner, because the contract does not depend on it: which tree it is (for n
that is no power of two there are several), who sends to whom, blocking or not.
"""

import dataclasses
import random
from collections.abc import Sequence

from labkit.grade import diagnosis, ledger
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.broadcast_inputs import inputs_of, random_cases, root_of
from labkit.grade.graders.broadcast_messages import over_budget
from labkit.grade.graders.broadcast_values import not_from_messages, wrong_values
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome

_ALL_WAIT = "every rank is in recv: nobody sends"
_POWERS_OF_TWO = (1, 2, 4, 8)
_HAPPENED = "What happened: "
_ONE_RECEIVE = (
    "Every rank but the root receives once, from the rank that sends to it, and does nothing in "
    "the steps before"
)


class TreeBroadcast(OnRanks):
    """The grader of tree_broadcast."""

    functions: Sequence[str] = ("tree_broadcast",)
    allowed: Sequence[str] = ("send", "recv", "isend", "irecv")
    # 4 first: with 2 or 3 ranks a star, a chain and a tree take the same number of steps.
    world_sizes: Sequence[int] = (4, 3, 8, 1, 2, 5, 6, 7)
    shown_by_a_pass = (
        "every rank has the root's x, whichever rank is the root; it comes to each in one message, "
        "and to the last in ceil(log2 n) steps"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Fresh inputs: every root, dtypes, shapes, layouts, late ranks."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong, values before steps."""
        x = inputs_of(evidence)[0]
        form = diagnosis.unlisted_operation(evidence, self.allowed) or diagnosis.result_form(
            evidence, x.shape, x.dtype
        )
        if form is not None:
            return form
        if evidence.case.altered is not None:
            return not_from_messages(evidence) or over_budget(evidence)
        return (
            wrong_values(evidence)
            or diagnosis.input_changed(evidence)
            or diagnosis.result_shares_memory(evidence)
            or diagnosis.result_returned_before(evidence)
            or ledger.disagreement(evidence)
            or over_budget(evidence)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What everybody waits for; and mistakes that show with another root than 0 only."""
        if finding.diagnosis == _ALL_WAIT:
            return dataclasses.replace(
                finding,
                explanation="every rank waits for a message before it sends its own, the root too. "
                "The root has x already: it receives nothing, and begins by sending",
            )
        if finding.diagnosis.startswith("waits for a message that nobody"):
            finding = dataclasses.replace(
                finding, explanation=f"{finding.explanation}. {_ONE_RECEIVE}"
            )
        before = attempt.cases[: attempt.cases.index(evidence)]
        has_passed = before and all(root_of(each) == 0 for each in before)
        if has_passed and root_of(evidence) != 0 and _is_about_ranks(finding):
            return dataclasses.replace(
                finding,
                diagnosis="works only where rank 0 is the root",
                explanation=f"from rank 0 it works, and from rank {root_of(evidence)} it does not. "
                "A rank's place in the tree is counted from the root, (rank - root) % n; a place "
                "becomes a rank again by (place + root) % n, in every send and every recv. "
                f"{_HAPPENED}{finding.explanation}",
                hint=2,
            )
        return finding

    def compare(self, finding: Finding, world_size: int, passed: Sequence[int]) -> Finding:
        """A mistake that shows only where the last step of the tree has ranks left over."""
        if not passed or world_size in _POWERS_OF_TWO or not _is_about_ranks(finding):
            return finding
        return dataclasses.replace(
            finding,
            diagnosis="works only where n is a power of two",
            explanation=f"with {passed[0]} ranks it works, and with {world_size} it does not: in "
            "the last step only some of the ranks have someone left to send to. There are "
            "ceil(log2 n) steps, and nobody sends to a position that is not below n. "
            f"{_HAPPENED}{finding.explanation.rpartition(_HAPPENED)[2]}",
            hint=3,
        )


def _is_about_ranks(finding: Finding) -> bool:
    """Whether it may come from who sends to whom."""
    return finding.outcome in (Outcome.CRASHED, Outcome.HUNG) or finding.diagnosis in (
        "a rank that nobody sends to",
        "sends before it has received",
        "the root's x is overwritten",
        "receives, and returns its own x",
        "not the root's values",
        "works only where rank 0 is the root",
    )


GRADER = TreeBroadcast()
