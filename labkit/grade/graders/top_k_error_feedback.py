"""top_k_error_feedback is graded on what is sent, owed and applied, over several steps.

Ranks run several steps of both functions together (top_k_steps.py). Each step is judged from the
debt that the one before has returned, so that over any number of steps all gradients are either
applied or owed.
"""

import dataclasses
import random
from collections.abc import Sequence

import torch

from labkit.comm.words import listed
from labkit.grade import diagnosis
from labkit.grade.code import Code
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.top_k_compressed import steps_of, wrong_step
from labkit.grade.graders.top_k_exchanged import (
    changed_arguments,
    not_from_collectives,
    nothing_sent,
    over_budget,
)
from labkit.grade.graders.top_k_inputs import gradients_of, k_of, random_cases, shift_of
from labkit.grade.graders.top_k_means import wrong_means
from labkit.grade.graders.top_k_steps import PARTS, Steps
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Graded, Outcome
from labkit.grade.submission import Submission

_CHANGES_GRADIENT = (
    "what is sent is right, but the gradient is not what it was before: whoever still needs it, to "
    "clip it or to log its norm, has lost it. gradient + owed is a new tensor; gradient += owed, "
    "and add_(), write to the old one"
)


class TopKErrorFeedback(OnRanks):
    """The grader of top_k_error_feedback."""

    functions: Sequence[str] = ("compress", "exchange")
    allowed: Sequence[str] = ("all_gather",)
    shown_by_a_pass = (
        "over several steps everything in the gradients is either applied or still owed, and in "
        "each step the largest entries go first; all ranks get one mean, also where they have "
        "chosen the same places, and pay for k places and k values"
    )

    def grade(self, code: Submission, seed: int, timeout_s: float) -> Graded:
        """As OnRanks, with a function made of the two."""
        if code.unwritten:
            return Graded(
                Finding(
                    Outcome.NOT_ATTEMPTED,
                    "a part is still to be written",
                    f"write {listed(code.unwritten)}, too, and check again",
                )
            )
        both = Code(("steps",), None, code.code.filename, (Steps(code.code),))
        return super().grade(dataclasses.replace(code, code=both), seed, timeout_s)

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Fresh gradients of several steps."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: form, then each step's compression and mean, then the budget."""
        found = (
            diagnosis.unlisted_operation(evidence, self.allowed)
            or _wrong_form(evidence)
            or nothing_sent(evidence)
        )
        if found is not None:
            return found
        if evidence.case.altered is not None:
            return not_from_collectives(evidence) or over_budget(evidence)
        for number, steps in enumerate(steps_of(evidence), start=1):
            label = f"{evidence.label}, step {number}"
            found = (
                wrong_step(steps, label)
                or wrong_means(steps, label, shift_of(evidence))
                or changed_arguments(steps, label)
            )
            if found is not None:
                return found
        return diagnosis.input_changed(evidence) or over_budget(evidence)

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Here one collective is allowed, and there is no x."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than all_gather")
        if finding.diagnosis == "changes its input":
            return dataclasses.replace(finding, explanation=_CHANGES_GRADIENT)
        return finding


def _wrong_form(evidence: CaseEvidence) -> Finding | None:
    """Something else than the tensors in the contract, in any step of any rank."""
    gradients, k = gradients_of(evidence)[0], k_of(evidence)
    num_steps, numel = gradients.shape
    lengths = dict(zip(PARTS, (k, k, numel, numel, k, k), strict=True))
    for rank, record in enumerate(evidence.completed):
        seen, why = f"{evidence.label}: rank {rank}", ""
        if len(record.outputs) != num_steps * len(PARTS):
            why = (
                f"one of the functions returns a {record.output_type}; the contract is three "
                "tensors (indices, values, owed) from compress, and one from exchange"
            )
        for at, output in enumerate(record.outputs if not why else []):
            name = PARTS[at % len(PARTS)]
            if name.endswith("after it"):
                continue
            is_dtype = (
                output.dtype in (torch.int64, torch.int32)
                if name == "indices"
                else output.dtype == gradients.dtype
            )
            if output.shape != (lengths[name],) or not is_dtype:
                dtype = torch.int64 if name == "indices" else gradients.dtype
                why = (
                    f"{name} is {output.dtype} of shape {tuple(output.shape)}; the contract is "
                    f"{dtype} of shape ({lengths[name]},)"
                )
            elif name == "indices" and not _are_places(output, numel):
                why = f"indices are {output.tolist()[:12]}; they are k different places below numel"
            if why:
                break
        if why:
            return Finding(Outcome.WRONG, "returns something else", why, seen, hint=3)
    return None


def _are_places(indices: torch.Tensor, numel: int) -> bool:
    places = set(indices.tolist())
    return len(places) == len(indices) and all(0 <= place < numel for place in places)


GRADER = TopKErrorFeedback()
