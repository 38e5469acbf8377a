"""What sequence_parallel_norm returns, by its form; and what it leaves of its arguments."""

import torch

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.sequence_inputs import Given, Step
from labkit.grade.graders.sequence_watch import Seen
from labkit.grade.outcome import Finding, Outcome

Shape = tuple[int, ...]
OfRanks = list[list[Seen]]
"""By rank, then by step."""


def wrong_form(evidence: CaseEvidence, given: Given, seen: OfRanks) -> Finding | None:
    """No two tensors, or of other shapes than the rank's rows and all rows."""
    for rank, its in enumerate(seen):
        for step, each in zip(given.steps, its, strict=False):
            found = _other_form(each, step, rank)
            if found is not None:
                return Finding(Outcome.WRONG, *found, f"{evidence.label}: rank {rank}", hint=2)
    return None


def _other_form(seen: Seen, step: Step, rank: int) -> tuple[str, str] | None:
    something_else = "returns something else than the residual and x"
    if not seen.has_form:
        why = "a tuple of two dense tensors on the CPU was expected; is there a return?"
        return something_else, why
    own, all_rows = tuple(step.r[rank].shape), tuple(step.z[rank].shape)
    residual, x = (tuple(part.shape) for part in (seen.residual_nD, seen.x_ND))
    if (residual, x) == (own, all_rows):
        dtypes = {seen.residual_nD.dtype, seen.x_ND.dtype}
        if dtypes == {torch.float64}:
            return None
        said = " and ".join(sorted(str(each).removeprefix("torch.") for each in dtypes))
        return "returns another dtype", f"what comes in is float64, and what comes back is {said}"
    return _by_rows(step, own, residual, x) or (
        something_else,
        f"tensors of {own} and {all_rows} were expected, and there are some of {residual} and {x}",
    )


def _by_rows(step: Step, own: Shape, residual: Shape, x: Shape) -> tuple[str, str] | None:
    """What other numbers of rows come of."""
    n, k, (num_rows, num_features) = step.num_ranks, step.rows_per_rank, step.z[0].shape
    all_rows, padded = (num_rows, num_features), (n * k, num_features)
    mine = f"this rank has {own[0]}"
    if (x, residual) == (own, all_rows):
        return "returns x first", "the residual of this rank's rows comes first, and then x"
    if n > 1 and residual in (all_rows, padded):
        why = f"the residual has {residual[0]} rows, and {mine}"
        return "returns the residual of all rows", why
    if x == padded != all_rows:
        return "returns the padding", f"x has {x[0]} rows, and there are {num_rows}: cut it off"
    if (residual, x) == ((k, num_features), all_rows):
        why = f"the residual has {k} rows, and {mine}: the last ranks have fewer"
        return "keeps the padding of its rows", why
    if (residual, x) == (own, own):
        why = f"x has this rank's {own[0]} rows: the next column layer takes all {num_rows}"
        return "does not gather the normalised rows", why
    return None


def changed_arguments(evidence: CaseEvidence, seen: OfRanks) -> Finding | None:
    """What is passed is the caller's: its values, and the hooks on it."""
    for rank, its in enumerate(seen):
        for each in its:
            for name, is_other in zip(("z_ND", "r_nD", "weight_D"), each.changed, strict=True):
                if is_other:
                    what = f"changes {name}"
                    why = f"{name} has other values than before the call: compute with a new tensor"
                    return Finding(
                        Outcome.WRONG, what, why, f"{evidence.label}: rank {rank}", hint=3
                    )
            if each.num_hooks:
                return Finding(
                    Outcome.WRONG,
                    "leaves a hook on what it is passed",
                    "after backward there is a hook on z_ND, r_nD or weight_D that was not there "
                    "before: the next step adds another, and both of them run, so its gradient is "
                    "reduced twice. Communicate in the backward of a Function",
                    f"{evidence.label}: rank {rank}",
                    hint=3,
                )
    return None
