"""Outputs of expert_all_to_all, and the mistake that each kind of wrong ones comes from."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.expert_inputs import Given, computed
from labkit.grade.graders.expert_theories import MISTAKES, outputs
from labkit.grade.graders.expert_watch import Seen, Told
from labkit.grade.graders.gradient_values import is_nearly, shown
from labkit.grade.graders.sums import Recognised
from labkit.grade.outcome import Finding, Outcome


def wrong_form(evidence: CaseEvidence, given: Given) -> Finding | None:
    """Something else than a tensor like x_TD."""
    for rank, record in enumerate(evidence.completed):
        x, seen = given.tokens[rank], f"{evidence.label}: rank {rank}"
        if record.output_type != Told.__name__:
            is_none = record.output_type == "NoneType"
            name = "returns nothing" if is_none else "returns something that is no tensor"
            why = f"the function returns a {record.output_type}; it should be a dense CPU tensor"
        elif record.outputs[1].shape != x.shape:
            name, why = (
                "returns another shape",
                f"the result has shape {tuple(record.outputs[1].shape)}, and x_TD has "
                f"{tuple(x.shape)}: each token has one output",
            )
        elif record.outputs[1].dtype != x.dtype:
            name = "returns another dtype"
            why = f"the result is {record.outputs[1].dtype}, and x_TD is {x.dtype}"
        else:
            continue
        return Finding(Outcome.WRONG, name, why, seen, hint=3)
    return None


def wrong_outputs(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """Rows that are not what their token's expert makes of them."""
    got, right = [each.output for each in seen], given.expected
    wrong = [rank for rank in range(len(got)) if not torch.equal(got[rank], right[rank])]
    if not wrong:
        return None
    rank = wrong[0]
    token = int((got[rank] != right[rank]).any(1).nonzero()[0])
    name, why, hint = (
        _by_rules(given, got)
        or _by_rows(given, got, right)
        or (
            "another output than the expert's",
            "row t of the result is what expert expert_T[t] makes of x_TD[t]",
            2,
        )
    )
    numbers = f"got {shown(got[rank][token])}, expected {shown(right[rank][token])}"
    where = f"{evidence.label}: rank {rank}, token {token} for expert "
    where += f"{int(given.experts[rank][token])}: {numbers}"
    return Finding(Outcome.WRONG, name, why, where, hint)


def _by_rules(given: Given, got: Sequence[Tensor]) -> Recognised | None:
    for mistake in MISTAKES:
        if all(map(torch.equal, got, outputs(mistake.rules, given))):
            return mistake.name, mistake.explanation, 2
    return None


def _by_rows(given: Given, got: Sequence[Tensor], right: Sequence[Tensor]) -> Recognised | None:
    """What the rows are that are wrong: unchanged, twice through an expert, zero, another's."""
    ours, due = torch.cat(list(got)), torch.cat(list(right))
    wrong = (ours != due).any(1)
    tokens, weights = torch.cat(list(given.tokens))[wrong], given.weights
    experts = torch.cat(list(given.experts))[wrong]
    rows = ours[wrong]
    if not rows.isfinite().all() or is_nearly(rows, due[wrong]):
        return _NOT_SENT if not rows.isfinite().all() else _ROUNDED
    if torch.equal(rows, tokens):
        return (
            "rows that no expert has seen",
            "these rows are the tokens as they were: they went there and back, or stayed, and "
            "`apply` was not called for them",
            1,
        )
    if torch.equal(rows, computed(computed(tokens, weights[experts]), weights[experts])):
        return "an expert is applied twice", "these rows went through their expert twice", 2
    if not rows.any():
        return (
            "results are lost",
            "these rows are zeros: the results of some experts, or of some ranks' tokens, have not "
            "come back, or not to their places",
            2,
        )
    of_any = computed(tokens[:, None], weights[None])  # (rows, E, D)
    if (of_any == rows[:, None]).all(2).any(1).all():
        return (
            "rows reach another expert",
            "these rows are what other experts make of the tokens: rows and counts are not in the "
            "same order, or the rank of an expert is not expert // (E / n)",
            2,
        )
    of_all = computed(torch.cat(list(given.tokens))[:, None], weights[None]).flatten(0, 1)
    if (of_all[None] == rows[:, None]).all(2).any(1).all():
        return (
            "rows of other tokens",
            "these rows are what experts make of other tokens: on the way back, or when they are "
            "put in order, rows come into each other's places",
            2,
        )
    return None


_ROUNDED: Recognised = (
    "loses digits on the way",
    "every number is nearly right, and x_TD's dtype holds all of them: rows travelled in a smaller "
    "one. That is compression, a decision of its own",
    3,
)
_NOT_SENT: Recognised = (
    "numbers that nobody has computed",
    "the result has inf or NaN in it: memory that no message has filled",
    3,
)


def not_from_collectives(
    evidence: CaseEvidence, given: Given, seen: Sequence[Seen]
) -> Finding | None:
    """Outputs that are right on all ranks although what travelled was changed."""
    assert evidence.case.altered is not None
    rank, number = evidence.case.altered
    if not all(map(torch.equal, [each.output for each in seen], given.expected)):
        return None
    return Finding(
        Outcome.WRONG,
        "the result does not come from the collectives",
        f"one number was changed in what rank {rank} handed to its collective number {number}, "
        "with which it sends results back, and all results are what they would be without",
        first_seen=evidence.label,
        hint=1,
    )
