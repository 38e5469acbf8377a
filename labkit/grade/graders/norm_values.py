"""The norm and the gradients that ranks come back with, against those of the whole model."""

import math
from collections.abc import Sequence

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.norm_gradients import gradients_of, is_close, right, scalings
from labkit.grade.graders.norm_inputs import Given
from labkit.grade.graders.norm_theories import in_float32, mistakes
from labkit.grade.graders.norm_watch import Seen
from labkit.grade.outcome import Finding, Outcome

# A thousand squares of float32 numbers, added up in it: whoever scales first may.
_RTOL = 1e-5
_NEARLY = 0.05

_OVERFLOWS = (
    "squares leave float32",
    "1e25 squared is more than float32 holds, and 1e-30 squared is 0 in it: the sum of squares is "
    "inf or 0, and inf clips every gradient to 0. Add up in float64, or divide by the largest "
    "number of all ranks first",
)
_LOSES_DIGITS = (
    "loses digits in the sum",
    "the norm is nearly right: squares were added up in a smaller dtype than float32, such as "
    "bfloat16, which drops what is small beside the sum. Convert before you square",
)


def wrong_form(evidence: CaseEvidence, seen: Sequence[Seen]) -> Finding | None:
    """Something that is no number; or parameters that are others than before."""
    for rank, each in enumerate(seen):
        if each.norm is None:
            name, why = (
                "returns something else",
                f"the function returns a {each.type}; the contract is a float, the norm",
            )
        elif each.num_made:
            name, why = (
                "gives a gradient to a parameter without one",
                f"{each.num_made} parameters have a gradient afterwards and had none: an optimizer "
                "leaves out what has None, and with zeros it still decays and moves by momentum",
            )
        elif each.num_moved:
            name, why = (
                "puts other tensors into .grad",
                f"{each.num_moved} gradients are other tensors than before: buckets and ZeRO's "
                "flat buffers hold views of the old ones, which stay unclipped. Multiply in place",
            )
        elif each.num_changed:
            name, why = (
                "changes the parameters",
                "the optimizer makes the step; this works on gradients only",
            )
        else:
            continue
        return Finding(Outcome.WRONG, name, why, f"{evidence.label}: rank {rank}", hint=3)
    return None


def wrong_norm(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """Another norm than that of the whole."""
    expected = given.norm()
    norms = [_norm(each) for each in seen]
    wrong = [rank for rank, norm in enumerate(norms) if not _is_close(norm, expected)]
    if not wrong:
        if len(set(norms)) == 1:
            return None
        name, why = (
            "ranks have slightly different norms",
            "they differ in the last digits, and so will the copies of a parameter that ranks "
            "scale by them: all take the result of the same all-reduce",
        )
        return Finding(Outcome.WRONG, name, why, f"{evidence.label}: {norms}", hint=2)
    name, why, hint = _named(given, norms)
    rank = wrong[0]
    values = f"got {norms[rank]:.9g}, expected {expected:.9g}"
    return Finding(Outcome.WRONG, name, why, f"{evidence.label}: rank {rank}, {values}", hint)


def _named(given: Given, norms: Sequence[float]) -> tuple[str, str, int]:
    expected = given.norm()
    if in_float32(given) and not all(0 < norm < math.inf for norm in norms):
        return *_OVERFLOWS, 3
    for each in mistakes(given):
        if all(map(_is_close, norms, each.norms)):
            return each.name, each.explanation, each.hint
    if all(abs(norm - expected) <= _NEARLY * expected for norm in norms):
        return *_LOSES_DIGITS, 3
    return (
        "another norm than the whole gradient's",
        "each rank adds up the squares of what it is the first to have, the sum goes over all "
        "ranks, and then comes the root",
        2,
    )


def not_from_collectives(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding:
    """For a norm that is right on every rank although what travelled was changed."""
    assert evidence.case.altered is not None
    altered, _ = evidence.case.altered
    return Finding(
        Outcome.WRONG,
        "the norm does not come from the collectives",
        f"in this case one number was changed in what rank {altered} handed to its sums, and every "
        "rank has the norm of the unchanged gradients",
        first_seen=evidence.label,
    )


def is_right_everywhere(given: Given, seen: Sequence[Seen]) -> bool:
    """Whether every rank has the norm of the whole."""
    return all(_is_close(_norm(each), given.norm()) for each in seen)


def wrong_gradients(evidence: CaseEvidence, given: Given, seen: Sequence[Seen]) -> Finding | None:
    """Gradients that are not what is left of them after clipping."""
    all_of = [
        (rank, number) for rank in range(len(seen)) for number in range(len(seen[rank].gradients))
    ]
    wrong = [
        (rank, number)
        for rank, number in all_of
        if not is_close(seen[rank].gradients[number], right(given, rank, number))
    ]
    if not wrong:
        return None
    name, why, hint = (
        "other gradients than clipped ones",
        "each gradient is multiplied by max_norm / norm where the norm is larger than max_norm, "
        "and stays as it is otherwise; on every rank, whether it counts there or not",
        3,
    )
    for each in scalings(given):
        if all(is_close(seen[r].gradients[i], each.left(r, i)) for r, i in all_of):
            name, why, hint = each.name, each.explanation, each.hint
            break
    rank, number = wrong[0]
    got = float(seen[rank].gradients[number].flatten()[0])
    before = float(gradients_of(given, rank)[number].flatten()[0])
    expected = float(right(given, rank, number).flatten()[0])
    return Finding(
        Outcome.WRONG,
        name,
        why,
        f"{evidence.label}: rank {rank}, gradient {number}: {before:.6g} became {got:.6g}, "
        f"expected {expected:.6g} with max_norm {given.max_norm:.6g} and norm {given.norm():.6g}",
        hint,
    )


def _norm(seen: Seen) -> float:
    assert seen.norm is not None, "the form comes first"
    return seen.norm


def _is_close(norm: float, expected: float) -> bool:
    return abs(norm - expected) <= _RTOL * abs(expected)
