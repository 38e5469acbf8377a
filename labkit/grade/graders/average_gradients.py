"""average_gradients is graded on the gradients that it leaves, and on what it communicates.

What is left to the learner: one all-reduce per parameter or fewer, in place or not, and where the
division is.
"""

import dataclasses
import random
from collections.abc import Sequence

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.average_inputs import (
    Given,
    given_in,
    random_cases,
    unused_in,
    with_module,
)
from labkit.grade.graders.average_theories import frozen_ones, mean, one_by_one, theories
from labkit.grade.graders.gradient_values import (
    NO_THEORY,
    changed_parameters,
    left_on,
    wrong_gradients,
)
from labkit.grade.graders.gradient_wire import more_than_gradients, not_from_collectives
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome


class AverageGradients(OnRanks):
    """The grader of average_gradients."""

    functions: Sequence[str] = ("average_gradients",)
    allowed: Sequence[str] = ("all_reduce",)
    call = staticmethod(with_module)
    num_arguments = 2
    shown_by_a_pass = (
        "every trained parameter has the mean of its gradients on every rank, also where it is "
        "tied, or where a rank did not use it; frozen ones have none, and each gradient travels "
        "once"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Fresh modules: plain, tied, frozen, unused on a rank, in several dtypes."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong, values before budget."""
        given = given_in(evidence)
        left = left_on(evidence, list(given.parameters))
        found = diagnosis.unlisted_operation(evidence, self.allowed)
        if found is not None or isinstance(left, Finding):
            return found or (left if isinstance(left, Finding) else None)
        if evidence.case.altered is not None:
            return not_from_collectives(evidence, left, mean(given))
        otherwise = "add the gradients of all ranks up, and divide by their number"
        wrong = wrong_gradients(evidence, left, mean(given), theories(given), otherwise)
        if wrong is not None and wrong.diagnosis == NO_THEORY:
            wrong = one_by_one(evidence, given, left) or wrong
        return (
            changed_parameters(evidence, left, given.parameters)
            or frozen_ones(evidence, given, left)
            or wrong
            or _over_budget(evidence, given)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What only frozen parameters bring about, and what only unused ones do."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than all_reduce")
        given = given_in(evidence)
        is_crash = finding.outcome is Outcome.CRASHED
        happened = f"What happened: {finding.explanation}"
        if is_crash and given.frozen:
            return dataclasses.replace(
                finding,
                diagnosis="crashes on a frozen parameter",
                explanation=f"{' and '.join(given.frozen)} are frozen: requires_grad is False, and "
                f"grad is None on every rank. Leave them out. {happened}",
                hint=2,
            )
        if unused_in(given) and (not evidence.completed or is_crash):
            ((rank, names),) = unused_in(given).items()
            name, why = (
                ("crashes where a rank has no gradient", "there its grad is None")
                if is_crash
                else (
                    "a rank without a gradient leaves the others waiting",
                    "and makes fewer all-reduces than the others, so that each meets another one "
                    "than it should",
                )
            )
            return dataclasses.replace(
                finding,
                # Whether they wait, or meet another all-reduce, depends on which gradient it is.
                outcome=finding.outcome if is_crash else Outcome.HUNG,
                diagnosis=name,
                explanation=f"rank {rank} has no gradient for {' and '.join(names)}, {why}. "
                "Whether a parameter is trained is the same on all ranks, and whether it has a "
                f"gradient is not: let the rank take part with zeros. {happened}",
                hint=2,
            )
        return finding


def _over_budget(evidence: CaseEvidence, given: Given) -> Finding | None:
    """More than one all-reduce per trained parameter, or more bytes than the gradients have."""
    finding = more_than_gradients(
        evidence, [given.parameters[name].nbytes for name in given.trained]
    )
    if finding is None or not given.tied:
        return finding
    return dataclasses.replace(
        finding,
        diagnosis="reduces a tied parameter twice",
        explanation=f"{' and '.join(given.tied)} is another name of a parameter that has one "
        "gradient, and it travels once for each name. module.parameters() gives it once; a loop "
        f"over the submodules' parameters does not. {finding.explanation}",
    )


GRADER = AverageGradients()
