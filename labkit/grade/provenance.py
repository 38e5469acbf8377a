"""Which rank's data ended up where: a wrong sum taken apart into its summands.

For whole random numbers a segment of a result can be written in one way only as a sum of segments
of inputs. Solving for the factors says what the code under test did with them:

    factors[r, s, k, j]    how many times segment j of rank k's input is in segment s of rank r's
                           result; a right all-reduce has 1 where j == s, and 0 elsewhere
"""

from collections.abc import Sequence

import torch

_LARGEST_FACTOR = 16


def segments_needed(world_size: int) -> int:
    """Elements that a segment must have for its factors to be certain: twice the unknowns."""
    return 2 * world_size**2


def factors(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The factors [n, n, n, n] that explain `outputs` exactly; None where there are none.

    inputs, outputs: by rank, all of one shape, whole numbers, with a size that n divides.
    """
    n = len(inputs)
    if inputs[0].numel() % n or inputs[0].numel() < n * segments_needed(n):
        return None
    x_KJL = torch.stack([x.reshape(n, -1) for x in inputs]).double()
    out_RSL = torch.stack([out.reshape(n, -1) for out in outputs]).double()
    if not out_RSL.isfinite().all():
        return None
    summands_UL = x_KJL.flatten(0, 1)  # one row per unknown factor: rank k, segment j
    out_ML = out_RSL.flatten(0, 1)
    factors_UM = torch.linalg.lstsq(summands_UL.T, out_ML.T).solution.round()
    if factors_UM.abs().max() > _LARGEST_FACTOR:
        return None
    if not torch.equal(factors_UM.T @ summands_UL, out_ML):
        return None
    return factors_UM.T.reshape(n, n, n, n).long()
