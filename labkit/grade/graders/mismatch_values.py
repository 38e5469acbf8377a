"""Results of a training step, held against one step on all ranks' examples."""

from collections.abc import Callable, Sequence

import torch

from labkit.grade.evidence import Case, CaseEvidence
from labkit.grade.graders.mismatch_theories import THEORIES, Parts, Sums, mean_of_all, sums_of
from labkit.grade.outcome import Finding, Outcome

Tensor = torch.Tensor
_LEARNING_RATE = 0.01
_NAMES = ("scale", "shift", "loss")
# Whole numbers add up exactly; a division, a product and a subtraction round, each by 2**-53 of
# what they give. Thirds round in sums, too, of some hundred summands of up to 200, whose gradients
# are divided by their number and weigh 0.01: by less than 1e-12. Room for another order of it all.
_RTOL, _ATOL = 1e-12, 1e-10
# What bfloat16 keeps, the shortest format in use: a gradient of up to 200 weighs 0.01.
_ROUNDED_RTOL, _ROUNDED_ATOL = 1e-2, 2e-2
_SHORT = ("float32", "float16", "bfloat16")


def wrong_form(evidence: CaseEvidence) -> Finding | None:
    """Something else than three float64 tensors of the shapes in the contract."""
    shape = evidence.case.arguments[0][2].shape
    for rank, record in enumerate(evidence.completed):
        seen = f"{evidence.label}: rank {rank}"
        if len(record.outputs) != len(_NAMES):
            return _form(
                f"the function returns a {record.output_type}; the contract is a tuple of the "
                "tensors (scale, shift, loss)",
                seen,
            )
        for name, output in zip(_NAMES, record.outputs, strict=True):
            wanted = shape if name != "loss" else torch.Size([])
            if output.shape != wanted or output.dtype != torch.float64:
                return _form(
                    f"{name} is {output.dtype} of shape {tuple(output.shape)}; the contract is "
                    f"torch.float64 of shape {tuple(wanted)}",
                    seen,
                )
    return None


def _form(explanation: str, seen: str) -> Finding:
    return Finding(Outcome.WRONG, "returns something else", explanation, first_seen=seen, hint=3)


def wrong_values(evidence: CaseEvidence) -> Finding | None:
    """What is not what one process would get, or None."""
    sums = sums_of(evidence.case)
    outputs = [record.outputs for record in evidence.completed]
    wanted = _results(evidence.case, sums, mean_of_all)
    for index, name in enumerate(_NAMES):
        got = [output[index] for output in outputs]
        expected = [each[index] for each in wanted]
        if _all_close(got, expected):
            continue
        rank = next(r for r in range(len(got)) if not _close(got[r], expected[r]))
        values = f"got {_shown(got[rank])}, expected {_shown(expected[rank])}"
        seen = f"{evidence.label}: {name} on rank {rank}: {values}"
        for theory in THEORIES:
            predicted = _results(evidence.case, sums, theory.results)
            if _all_close(got, [each[index] for each in predicted]):
                return Finding(
                    Outcome.WRONG, theory.name, f"{name}: {theory.explanation}", seen, hint=1
                )
        if _all_close(got, expected, _ROUNDED_RTOL, _ROUNDED_ATOL):
            return _rounded(evidence, name, seen)
        return Finding(
            Outcome.WRONG,
            "not what one process would get",
            f"{name} is not what one process with all the examples would compute",
            seen,
            hint=1,
        )
    return None


def _rounded(evidence: CaseEvidence, name: str, seen: str) -> Finding:
    """The right numbers with fewer digits than float64 has, on the wire or before."""
    operations = [each for of_rank in evidence.operations for each in of_rank]
    short = next((each for each in operations if each.dtype.removeprefix("torch.") in _SHORT), None)
    place = "a tensor on the way" if short is None else f"what {short.kind} takes, {short.dtype},"
    return Finding(
        Outcome.WRONG,
        "fewer digits than float64",
        f"{name} is right but for its last digits: {place} has fewer of them than float64. The "
        "model is float64, and so are its gradients wherever they go: a step that rounds them "
        "trains another model than one process would",
        seen,
        hint=1,
        where=None if short is None else short.origin,
    )


def _results(
    case: Case,
    sums: Sequence[Sums],
    rule: Callable[[Sequence[Sums], int], Parts],
) -> list[Parts]:
    """What every rank returns, if gradients and loss are those of `rule`."""
    results = []
    for rank, (_, _, scale, shift) in enumerate(case.arguments):
        grad_scale, grad_shift, loss = rule(sums, rank)
        results.append(
            (scale - _LEARNING_RATE * grad_scale, shift - _LEARNING_RATE * grad_shift, loss)
        )
    return results


def _all_close(
    got: Sequence[Tensor], expected: Sequence[Tensor], rtol: float = _RTOL, atol: float = _ATOL
) -> bool:
    return all(_close(one, other, rtol, atol) for one, other in zip(got, expected, strict=True))


def _close(got: Tensor, expected: Tensor, rtol: float = _RTOL, atol: float = _ATOL) -> bool:
    return torch.allclose(got, expected, rtol=rtol, atol=atol)


def _shown(values: Tensor) -> str:
    numbers = ", ".join(f"{value:.6g}" for value in values.flatten().tolist())
    return numbers if values.dim() == 0 else f"[{numbers}]"
