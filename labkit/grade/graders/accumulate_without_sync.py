"""accumulate_without_sync is graded on gradients, on the number of all-reduces, and on memory.

What is left to the learner: where the divisions are, and whether gradients travel one by one or
flat, after the last backward or during it.
"""

import dataclasses
import random
from collections.abc import Sequence

import torch

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.accumulate_inputs import (
    BACKWARD,
    FORWARD,
    NAMES,
    NO_MICROBATCH,
    STILL_THERE,
    gradients_of,
    random_cases,
    with_microbatches,
)
from labkit.grade.graders.accumulate_theories import mean, theories
from labkit.grade.graders.gradient_values import changed_parameters, left_on, wrong_gradients
from labkit.grade.graders.gradient_wire import more_than_gradients, not_from_collectives
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome

Diary = Sequence[tuple[int, int]]


class AccumulateWithoutSync(OnRanks):
    """The grader of accumulate_without_sync."""

    functions: Sequence[str] = ("accumulate_without_sync",)
    allowed: Sequence[str] = ("all_reduce",)
    call = staticmethod(with_microbatches)
    num_arguments = 4
    shown_by_a_pass = (
        "the gradients are those of the mean over all microbatches of all ranks; they travel once, "
        "however many microbatches there are, and one microbatch at a time is in memory"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Several microbatches, a single one, a late rank."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: values, communication, memory."""
        found = diagnosis.unlisted_operation(evidence, self.allowed)
        diaries, evidence = _without_diaries(evidence)
        left = left_on(evidence, NAMES)
        if found is not None or isinstance(left, Finding):
            return found or (left if isinstance(left, Finding) else None)
        each = gradients_of(evidence.case)
        if evidence.case.altered is not None:
            return not_from_collectives(evidence, left, mean(each))
        otherwise = (
            "the mean over all microbatches of all ranks is their sum, divided by the number of "
            "microbatches and by the number of ranks"
        )
        parameters = evidence.case.arguments[0][0]
        return (
            changed_parameters(evidence, left, parameters)
            or wrong_gradients(evidence, left, mean(each), theories(each), otherwise)
            or _over_budget(evidence, [value.nbytes for value in parameters.values()])
            or _more_than_one_in_memory(evidence, diaries)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """Here one collective is allowed."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than all_reduce")
        return finding


def _without_diaries(evidence: CaseEvidence) -> tuple[list[Diary], CaseEvidence]:
    """By rank: what the loss function wrote down; and the evidence less that."""
    diaries: list[Diary] = []
    records = []
    for record in evidence.records:
        outputs: list[torch.Tensor] = [] if record is None else record.outputs
        diaries.append([(kind, which) for kind, which in outputs[0].tolist()] if outputs else [])
        records.append(record and dataclasses.replace(record, outputs=outputs[1:]))
    return diaries, dataclasses.replace(evidence, records=tuple(records))


def _over_budget(evidence: CaseEvidence, nbytes: Sequence[int]) -> Finding | None:
    num_microbatches = len(evidence.case.arguments[0][1])
    finding = more_than_gradients(evidence, nbytes)
    payload_bytes = sum(each.payload_bytes for each in evidence.operations[0])
    if finding is None or num_microbatches == 1:
        return finding
    if payload_bytes != num_microbatches * sum(nbytes):
        return finding
    return dataclasses.replace(
        finding,
        diagnosis="communicates for every microbatch",
        explanation=f"the values are right, and the gradients travel {num_microbatches} times, "
        "once for each microbatch: a sum of means is a mean of sums, so once is enough, after the "
        f"last. {finding.explanation}",
        hint=1,
    )


def _more_than_one_in_memory(evidence: CaseEvidence, diaries: Sequence[Diary]) -> Finding | None:
    """A forward pass while another microbatch is in memory; or several in one."""
    for rank, diary in enumerate(diaries):
        waiting = 0
        for kind, which in diary:
            if which == NO_MICROBATCH:
                return _memory(
                    "puts microbatches together",
                    "loss_fn was called with something that is not one of the microbatches: put "
                    "together, they are the batch that did not fit",
                    f"{evidence.label}: rank {rank}",
                )
            if kind == STILL_THERE and not waiting:
                return _memory(
                    "keeps activations after backward",
                    "a microbatch has been backward, and its activations are still there when the "
                    "next one begins: retain_graph=True keeps them for another backward, which "
                    "nobody needs here",
                    f"{evidence.label}: rank {rank}",
                )
            waiting += {FORWARD: 1, BACKWARD: -1, STILL_THERE: 0}[kind]
            if waiting > 1:
                return _memory(
                    "keeps the activations of several microbatches",
                    "the values are right, but a microbatch went forward while another one had not "
                    "been backward yet: activations stay in memory until backward has used them, "
                    "so all of them are there at once. Call backward() on each loss, at once",
                    f"{evidence.label}: rank {rank}",
                )
    return None


def _memory(name: str, explanation: str, seen: str) -> Finding:
    return Finding(Outcome.OVER_BUDGET, name, explanation, seen, hint=1)


GRADER = AccumulateWithoutSync()
