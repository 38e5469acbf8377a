"""Outputs and log-sum-exps that code under test returned, and the mistakes that explain them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.gradient_values import shown
from labkit.grade.graders.softmax_inputs import Given
from labkit.grade.graders.softmax_lse_theories import of_lse
from labkit.grade.graders.softmax_theories import Mistake, of_outputs
from labkit.grade.graders.softmax_watch import Seen, Told
from labkit.grade.outcome import Finding, Outcome

_BLIND = (
    "NaN for a query that sees no key",
    "its sum of weights is 0, and 0 / 0 is NaN: the contract is zeros, and -inf for the "
    "log-sum-exp. Padding makes such queries, and one NaN spoils whatever it is added to",
    3,
)
_GAP = (
    "NaN where a block is wholly masked",
    "all scores of a query in a block are -inf, and so is a maximum over them: -inf - -inf is NaN. "
    "Subtract 0 where the maximum is -inf; the weights are exp(-inf) = 0 then, as they should be",
    3,
)


def wrong_form(evidence: CaseEvidence, given: Given) -> Finding | None:
    """No pair of tensors, or of other shapes or dtypes than they should have."""
    record, num_queries = evidence.completed[0], len(given.q)
    seen = f"{evidence.label}"
    name = "returns something else than output and log-sum-exp"
    if record.output_type != Told.__name__:
        why = (
            f"the function returns a {record.output_type}; the contract is (o_TK, lse_T), a tuple "
            "of two dense tensors"
        )
        return Finding(Outcome.WRONG, name, why, seen, hint=3)
    o, lse = record.outputs[1:]
    shapes = f"({tuple(o.shape)}, {tuple(lse.shape)})"
    wanted = f"({tuple(given.q.shape)}, ({num_queries},))"
    if (lse.shape, o.shape) == (given.q.shape, (num_queries,)):
        name, why = "returns the log-sum-exp first", "the output comes first, o_TK, and then lse_T"
    elif o.shape != given.q.shape or lse.shape != (num_queries,):
        name = "returns other shapes"
        why = f"the shapes are {shapes}, and the contract is {wanted}"
    elif o.dtype != given.q.dtype or lse.dtype != given.q.dtype:
        name = "returns another dtype"
        why = f"the dtypes are {o.dtype} and {lse.dtype}, and the contract is q's, {given.q.dtype}"
    else:
        return None
    return Finding(Outcome.WRONG, name, why, seen, hint=3)


def wrong_values(evidence: CaseEvidence, given: Given, seen: Seen) -> Finding | None:
    """Values that are not those of attention, by the first mistake that leads to them."""
    o, lse = given.expected
    largest = float(given.whole[1].abs().max())
    if not _is_close(seen.o, o, given.tolerance * largest):
        named = _nan(seen.o, given) or _explained(seen.o, o, of_outputs(), given, largest)
        what = "output"
        named = named or _nearly(seen.o, o, given) or _otherwise(what)
        got, expected = seen.o, o
    elif not _is_close(seen.lse, lse, given.tolerance):
        named = _nan(seen.lse, given) or _explained(seen.lse, lse, of_lse(), given, 1.0)
        what = "log-sum-exp"
        named = named or _nearly(seen.lse, lse, given) or _otherwise(what)
        got, expected = seen.lse, lse
    else:
        return None
    row = _first_wrong(got, expected, given.tolerance * (largest if what == "output" else 1))
    where = f"{what} of query {row}: got {shown(got[row])}, expected {shown(expected[row])}"
    name, why, hint = named
    return Finding(Outcome.WRONG, name, why, f"{evidence.label}: {where}", hint=hint)


def _nan(got: Tensor, given: Given) -> tuple[str, str, int] | None:
    """NaN in just the rows in which masks alone can have made it."""
    rows = got.isnan().reshape(len(got), -1).any(1)
    if not rows.any() or not bool((given.gaps | ~rows).all()):
        return None
    return _BLIND if torch.equal(rows, given.blind) else _GAP


def _explained(
    got: Tensor, right: Tensor, mistakes: Sequence[Mistake], given: Given, largest: float
) -> tuple[str, str, int] | None:
    """The first mistake that leads to `got`; what overflows may be NaN, inf or 0."""
    most = given.tolerance * largest
    for mistake in mistakes:
        values = _finite(mistake.values(given))
        if _is_close(values, _finite(right), most):
            continue  # in this case it makes no difference
        if _is_close(_finite(got), values, most * max(1.0, float(values.abs().max()))):
            return mistake.name, mistake.explanation, mistake.hint
    return None


def _nearly(got: Tensor, right: Tensor, given: Given) -> tuple[str, str, int] | None:
    """What may come of fewer digits."""
    coarse = given.tolerance * torch.finfo(torch.bfloat16).eps / torch.finfo(given.q.dtype).eps
    if not _is_close(got, right, min(coarse, 0.1)):
        return None
    return (
        "loses digits on the way",
        f"every number is nearly right, and {given.q.dtype} holds more digits: something was "
        "computed in a smaller dtype, or a factor that should become 0 is kept above it",
        3,
    )


def _otherwise(what: str) -> tuple[str, str, int]:
    return (
        "other values than attention's" if what == "output" else "another log-sum-exp",
        "before each block: `sum` is the sum of exp(score - maximum) over all keys seen so far, "
        "`o` that of exp(score - maximum) v, and `maximum` the largest score so far, of each query",
        2,
    )


def _is_close(got: Tensor, right: Tensor, most: float) -> bool:
    return _first_wrong(got, right, most) < 0


def _first_wrong(got: Tensor, right: Tensor, most: float) -> int:
    """The first row that is off by more than `most`, or is not finite where it should be; -1."""
    got, right = got.double(), right.double()
    is_right = (got == right) | ((got - right).abs() <= most)
    wrong = (~is_right).reshape(len(got), -1).any(1).nonzero()
    return int(wrong[0]) if len(wrong) else -1


def _finite(values: Tensor) -> Tensor:
    return values.double().nan_to_num(0, 0, 0)
