"""Outputs of ring attention that code under test returned, and the mistakes that explain them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.context_inputs import Given
from labkit.grade.graders.context_theories import mistakes
from labkit.grade.graders.context_watch import Seen, Told
from labkit.grade.graders.gradient_values import shown
from labkit.grade.outcome import Finding, Outcome

_FEW = 0.75  # of all numbers, finite ones


def wrong_form(evidence: CaseEvidence, given: Given) -> Finding | None:
    """No tensor, or one of another shape or dtype than q's."""
    for rank, record in enumerate(evidence.completed):
        q = given.q[rank]
        if record.output_type != Told.__name__:
            is_none = record.output_type == "NoneType"
            name = "returns nothing" if is_none else "returns something that is no tensor"
            why = f"the function returns a {record.output_type}; it should be a dense CPU tensor"
        elif record.outputs[1].shape != q.shape:
            name = "returns another shape"
            why = (
                f"the result has shape {tuple(record.outputs[1].shape)}; the contract is that of "
                f"this rank's queries, {tuple(q.shape)}"
            )
        elif record.outputs[1].dtype != q.dtype:
            name = "returns another dtype"
            why = f"the result is {record.outputs[1].dtype}; the contract is q's, {q.dtype}"
        else:
            continue
        return Finding(Outcome.WRONG, name, why, f"{evidence.label}: rank {rank}", hint=3)
    return None


def wrong_values(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """Outputs that are not those of attention, by the first mistake that leads to all of them."""
    outputs, expected = [each.o for each in seen], given.expected
    rank = _first_wrong(outputs, expected, given.tolerance)
    if rank < 0:
        return None
    name, why, hint = (
        _explained(outputs, given)
        or _nan(outputs)
        or _nearly(outputs, given)
        or (
            "other values than attention's",
            "before each step: `sum`, `o` and the maximum are those of online softmax over the "
            "blocks of rank, rank - 1, ... that have been used so far",
            2,
        )
    )
    wrong = ~((outputs[rank] - expected[rank]).abs() <= given.tolerance)
    head, row, _ = wrong.nonzero()[0].tolist()
    values = f"got {shown(outputs[rank][head, row])}, expected {shown(expected[rank][head, row])}"
    where = f"{evidence.label}: rank {rank}, head {head}, query {row} of its share: {values}"
    return Finding(Outcome.WRONG, name, why, where, hint=hint)


def not_from_messages(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """Outputs that are right on all ranks although a message was changed on its way."""
    assert evidence.case.altered is not None
    if _first_wrong([each.o for each in seen], given.expected, given.tolerance) >= 0:
        return None
    rank, _ = evidence.case.altered
    return Finding(
        Outcome.WRONG,
        "the result does not come from the messages",
        f"one was added to the first number of the first message that rank {rank} receives, which "
        "is of keys or values that it sees, and all outputs are what they would be without: "
        "everything that a rank knows of the others comes to it through `group`",
        first_seen=evidence.label,
    )


def input_changed(evidence: CaseEvidence) -> Finding | None:
    """Queries, keys or values that are not what they were."""
    for rank, record in enumerate(evidence.completed):
        pairs = zip("qkv", evidence.case.arguments[rank], record.arguments, strict=False)
        for name, before, after in pairs:
            if not torch.equal(before, after):
                return Finding(
                    Outcome.WRONG,
                    "changes its input",
                    f"the result is right, and {name} is not what it was before the call: backward "
                    "needs it. What arrives needs a buffer of its own",
                    first_seen=f"{evidence.label}: rank {rank}",
                    hint=3,
                )
    return None


def _explained(outputs: Sequence[Tensor], given: Given) -> tuple[str, str, int] | None:
    # A few NaN are queries that see nothing: whatever else is wrong, shows in the other ones.
    finite = [each.isfinite() for each in outputs]
    num_finite, numel = sum(int(each.sum()) for each in finite), sum(map(Tensor.numel, outputs))
    named = _matched(outputs, given, finite) if num_finite >= _FEW * numel else None
    # The finite ones may be right: then it is in which places NaN are that tells.
    return named or _matched(outputs, given, [torch.ones_like(each) for each in finite])


def _matched(
    outputs: Sequence[Tensor], given: Given, shows: Sequence[Tensor]
) -> tuple[str, str, int] | None:
    """The first mistake that leads to all numbers that show."""
    got, right = (_finite(values, shows) for values in (outputs, given.expected))
    for mistake in mistakes(given):
        values = _finite([mistake.output(rank) for rank in range(len(outputs))], shows)
        if _first_wrong(values, right, given.tolerance) < 0:
            continue  # in this case it makes no difference
        largest = max(float(each.abs().max()) for each in values)
        if _first_wrong(got, values, given.tolerance * max(1.0, largest)) < 0:
            return mistake.name, mistake.explanation, mistake.hint
    return None


def _nan(outputs: Sequence[Tensor]) -> tuple[str, str, int] | None:
    has_nan = [bool(each.isnan().any()) for each in outputs]
    if not any(has_nan) or len(outputs) == 1:
        return None
    if any(
        nan and not bool(each.isnan().any(2).all())
        for nan, each in zip(has_nan, outputs, strict=True)
    ):
        return (
            "NaN for some queries of a rank",
            "a block that is wholly masked, or used before it has come, makes NaN of all queries "
            "of a rank, and here only some have it: where all weights of a query are exp(score - "
            "maximum) = 0, its output is 0 / 0. The maximum is over keys that it sees: mask first",
            3,
        )
    if not has_nan[-1]:
        return (
            "NaN where a block is wholly masked",
            "the last rank, which sees every block, has no NaN, and ranks before it do: all scores "
            "of a later rank's block are -inf, and a softmax of these is NaN. Leave such blocks "
            "out; nothing of them is needed",
            3,
        )
    return (
        "computes with a block that has not come",
        "there is NaN in the output, and none in the inputs. While a check runs, a buffer holds "
        "NaN until wait() returns: a block was used before, or instead of the one in hand",
        3,
    )


def _nearly(outputs: Sequence[Tensor], given: Given) -> tuple[str, str, int] | None:
    coarse = given.tolerance * torch.finfo(torch.bfloat16).eps / torch.finfo(torch.float64).eps
    if _first_wrong(outputs, given.expected, min(coarse, 0.1)) >= 0:
        return None
    return (
        "loses digits on the way",
        f"every number is nearly right, and {given.q[0].dtype} holds more digits: something "
        "travelled, or was computed, in a smaller dtype",
        3,
    )


def _first_wrong(got: Sequence[Tensor], right: Sequence[Tensor], most: float) -> int:
    """The first rank whose output is off by more than `most` somewhere, or is NaN; -1: none."""
    for rank, (one, other) in enumerate(zip(got, right, strict=True)):
        if not bool(((one.double() - other).abs() <= most).all()):
            return rank
    return -1


def _finite(values: Sequence[Tensor], shows: Sequence[Tensor]) -> list[Tensor]:
    """In float64, with 0 for what is not finite, and for what does not show."""
    pairs = zip(values, shows, strict=True)
    return [each.double().nan_to_num(0, 0, 0) * which for each, which in pairs]
