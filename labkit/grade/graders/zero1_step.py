"""zero1_step is graded on parameters, on the bytes of states, and on bytes sent.

What is left to the learner: how segments are cut, and in how many calls they travel.
"""

import dataclasses
import random
from collections.abc import Sequence

import torch

from labkit.grade import diagnosis
from labkit.grade.evidence import Attempt, Case, CaseEvidence
from labkit.grade.graders.gradient_values import is_close, is_nearly, shown
from labkit.grade.graders.shard_wire import ROUNDED, Why, over_budget, shard_numel
from labkit.grade.graders.zero1_inputs import Given, given_in, random_cases, several_steps
from labkit.grade.graders.zero1_theories import mistakes
from labkit.grade.on_ranks import OnRanks
from labkit.grade.outcome import Finding, Outcome


class Zero1Step(OnRanks):
    """The grader of zero1_step."""

    functions: Sequence[str] = ("zero1_step",)
    allowed: Sequence[str] = ("all_reduce", "reduce_scatter", "all_gather")
    call = staticmethod(several_steps)
    num_arguments = 4
    shown_by_a_pass = (
        "the parameters are those of one process with the whole batch, for any size; each rank "
        "keeps an nth of the states, and sends no more than an all-reduce does"
    )

    def cases(self, world_size: int, rng: random.Random) -> list[Case]:
        """Sizes that divide and others, fewer numbers than ranks, a late rank."""
        return random_cases(world_size, rng)

    def judge(self, evidence: CaseEvidence) -> Finding | None:
        """The first thing wrong: values, states, traffic."""
        found = diagnosis.unlisted_operation(evidence, self.allowed)
        if found is not None:
            return found
        given = given_in(evidence.case)
        left = [record.outputs[1:] for record in evidence.completed]
        if evidence.case.altered is not None:
            return _not_from_collectives(evidence, given, left)
        return (
            _other_memory(evidence)
            or _wrong_parameters(evidence, given, left)
            or _fewer_states(evidence, given)
            or _more_states(evidence, given)
            or _more_traffic(evidence, given)
        )

    def refine(self, finding: Finding, evidence: CaseEvidence, attempt: Attempt) -> Finding:
        """What only a size that n does not divide brings about."""
        if finding.diagnosis == "calls a library collective":
            return dataclasses.replace(finding, diagnosis="calls another operation than the three")
        before = attempt.cases[: attempt.cases.index(evidence)]
        is_first = _is_uneven(evidence) and not any(_is_uneven(each) for each in before)
        if finding.outcome is Outcome.CRASHED and before and is_first:
            return dataclasses.replace(
                finding,
                diagnosis="crashes where n does not divide the size",
                explanation="segments are to be equally long: pad until n divides the size. "
                f"{finding.explanation}",
                hint=2,
            )
        return finding


def _is_uneven(evidence: CaseEvidence) -> bool:
    return bool(given_in(evidence.case).parameters.numel() % evidence.world_size)


def _other_memory(evidence: CaseEvidence) -> Finding | None:
    for rank, record in enumerate(evidence.completed):
        if record.outputs[0][1]:
            return Finding(
                Outcome.WRONG,
                "gives the parameters other memory",
                "the tensor has its numbers in another place now, and what was a view of it is a "
                "view of the old ones: a model's layers compute with such views, and their weights "
                "stay as they were. Copy into the tensor, with copy_ for example; an assignment to "
                ".data exchanges what lies behind it",
                first_seen=f"{evidence.label}: rank {rank}",
                hint=3,
            )
    return None


def _wrong_parameters(
    evidence: CaseEvidence, given: Given, left: Sequence[Sequence[torch.Tensor]]
) -> Finding | None:
    for step, right in enumerate(given.right()):
        wrong = [rank for rank, after in enumerate(left) if not is_close(after[step], right)]
        if not wrong:
            continue
        got = left[wrong[0]][step]
        name, explanation = (
            "other parameters than one process",
            "one process would step with the mean of all gradients on all parameters, and have "
            "states for all of them",
        )
        before = given.parameters
        if all(is_nearly(after[step] - before, right - before) for after in left):
            name, explanation = ROUNDED
        if step == 0:
            for each in mistakes(given):
                if all(is_close(after[0], each.parameters(r)) for r, after in enumerate(left)):
                    name, explanation = each.name, each.explanation
                    break
        index = int((~torch.isclose(got, right, rtol=1e-9, atol=1e-9)).nonzero()[0])
        values = f"got {shown(got[index])}, expected {shown(right[index])}"
        seen = f"{evidence.label}: rank {wrong[0]}, parameter {index} after step {step + 1}"
        return Finding(Outcome.WRONG, name, explanation, f"{seen}: {values}", hint=2)
    return None


def _not_from_collectives(
    evidence: CaseEvidence, given: Given, left: Sequence[Sequence[torch.Tensor]]
) -> Finding | None:
    assert evidence.case.altered is not None
    altered, _ = evidence.case.altered
    right = given.right()[-1]
    for rank, after in enumerate(left):
        if is_close(after[-1], right):
            return Finding(
                Outcome.WRONG,
                "the parameters do not come from the collectives",
                f"in this case one number was changed in what rank {altered} handed to its first "
                f"collective, and rank {rank} has the parameters of the unchanged ones all the "
                "same: it does not use what it receives",
                first_seen=evidence.label,
            )
    return None


def _fewer_states(evidence: CaseEvidence, given: Given) -> Finding | None:
    state_bytes = [int(record.outputs[0][0]) for record in evidence.completed]
    needed_bytes = 2 * given.parameters.nbytes
    if sum(state_bytes) >= needed_bytes:
        return None
    return Finding(
        Outcome.WRONG,
        "does not step with the optimizer that it is given",
        f"the parameters are right, and the ranks' optimizers have {sum(state_bytes):,} bytes of "
        f"states together, where Adam has {needed_bytes:,}: whatever made the step, keeps states "
        "where nobody shards, saves or counts them. Pass each number to optimizer.step on one rank",
        first_seen=evidence.label,
        hint=1,
    )


def _more_states(evidence: CaseEvidence, given: Given) -> Finding | None:
    numel, n = given.parameters.numel(), evidence.world_size
    most_bytes = 2 * shard_numel(numel, n) * given.parameters.element_size()
    for rank, record in enumerate(evidence.completed):
        state_bytes = int(record.outputs[0][0])
        if state_bytes > most_bytes:
            is_all = state_bytes >= 2 * given.parameters.nbytes
            return Finding(
                Outcome.OVER_BUDGET,
                "keeps the states of all parameters" if is_all else "segments are too long",
                f"the parameters are right, and the optimizer of rank {rank} keeps "
                f"{state_bytes:,} bytes of states; an nth of them are {most_bytes:,}. What is "
                "passed to optimizer.step gets states: this rank's segment, and no more",
                first_seen=evidence.label,
                hint=1,
            )
    return None


def _more_traffic(evidence: CaseEvidence, given: Given) -> Finding | None:
    n, parameters = evidence.world_size, given.parameters
    segment_bytes = shard_numel(parameters.numel(), n) * parameters.element_size()
    return over_budget(
        evidence,
        2 * (n - 1) * segment_bytes * given.num_steps,
        f"{{bytes}} in {given.num_steps} steps, and 2 (n-1) k numbers in each of them are "
        "{budget} bytes",
        Why(
            "sends more than an all-reduce",
            "an all-reduce of the gradients is what plain data parallelism sends, and ZeRO-1 "
            "sends no more: a reduce_scatter of them, and an all_gather of segments",
        ),
        Why(
            "all-reduces the gradients",
            "an all_reduce gives every rank all means, and it uses an nth of them: its second "
            "half is paid for nothing, and then comes the all_gather. A reduce_scatter gives "
            "each rank what it needs",
        ),
    )


GRADER = Zero1Step()
