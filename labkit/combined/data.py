"""Who sees which rows of a global batch.

    7 rows, dp 2 x tp 2 x pp 2     dp 0: rows 0 1 2 3, all four of its ranks
                                   dp 1: rows 4 5 6, all four of its ranks

The four ranks of a dp coordinate are one replica of the model: they work on the same rows, each on
its part of the layers. Who gave them different rows (a sampler with the world's rank and size, as
data parallelism has it) would train on quarters of rows that do not belong together, without any
error: sums over tp add up whatever they are given.

Wire: nothing. Every rank draws the whole batch, see labkit.data.
"""

from __future__ import annotations

from labkit.data import Batch
from labkit.mesh import Mesh


def own_rows(batch: Batch, mesh: Mesh) -> Batch:
    """The rows of this rank's dp coordinate; the first coordinates have one more where needed."""
    return batch.share(mesh.dp.rank, mesh.dp.size)


def weight_of(share: Batch, batch: Batch, mesh: Mesh) -> float:
    """What the mean over a share counts, so that the mean over dp is the mean over all rows.

    1 where all shares are as large. Unequal ones count by their rows.
    """
    return len(share) * mesh.dp.size / len(batch)


def require_enough_rows(num_rows: int, num_shares: int, num_microbatches: int) -> None:
    """ValueError unless each share has a row for each microbatch."""
    least = num_rows // num_shares
    if least < num_microbatches:
        raise ValueError(
            f"num_sequences={num_rows} over dp={num_shares} leaves shares of {least}, which cannot "
            f"be cut into {num_microbatches} microbatches; give num_sequences="
            f"{num_shares * num_microbatches} or more, or num_microbatches={max(1, least)} or fewer"
        )
