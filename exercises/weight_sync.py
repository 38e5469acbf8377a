"""Bring new weights from the ranks that train to the ranks that generate.

An interviewer asks: "The trainer has just made a step. Its weights are cut by rows over the ranks
that train, in float32. The engines have them in bfloat16, cut by rows otherwise, and several
replicas of everything. How does each rank get its part? How many bytes is that? What does the fleet
serve if the step has failed on one of the ranks?"

Write `weight_sync(held, has, wants, served, version, failed, group)`. Every rank calls it.

Contract
    held     a dict: held[name] = float32 tensor (rows, columns): the rows of each weight that this
             rank trains, those of has[name][group.rank]
    has      a dict, the same on every rank: has[name] = a list by rank of (start, stop), the rows
             that each rank trains. Together they are all rows, each once. A part may be empty
    wants    a dict of the same form: wants[name] = a list by rank of the rows that each rank
             serves. Several ranks may serve the same rows, and a part may be empty. A rank may
             train, serve, or both
    served   (version, weights): what this rank serves now: the number of a version, and a dict of
             bfloat16 tensors, the rows of wants[name][group.rank]. It must not change: requests
             are computed with it until the new one is complete
    version  the number of the new version
    failed   True if this rank's part of the step has failed: its rows are of no version

    returns  (version, weights) to serve from now on. If no rank has failed: the new version, and
             new bfloat16 tensors of the rows that this rank serves. If a rank has failed: what is
             served now, on every rank, with its old version

    group    `group.rank`, `group.size`; `group.isend(tensor, rank)` and
             `group.irecv(buffer, rank)`, which return a Pending with `wait()`;
             `group.all_reduce(x, op)` with op "sum", "max" or "min"

Budget
    bytes    a rank sends each row, in bfloat16, to the ranks that serve it and do not train it,
             and to no other: (stop - start) * columns * 2 bytes. Besides, at most 64 bytes for an
             agreement
    A failed step sends no rows.
"""

import torch
from torch import Tensor

from labkit.comm import Group

Rows = dict[str, list[tuple[int, int]]]
Weights = dict[str, Tensor]


def weight_sync(
    held: Weights,
    has: Rows,
    wants: Rows,
    served: tuple[int, Weights],
    version: int,
    failed: bool,
    group: Group,
) -> tuple[int, Weights]:
    """Return the version and the weights that this rank serves from now on.

    Wire: each row that a rank serves and does not train, once, in bfloat16; one number to agree.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
