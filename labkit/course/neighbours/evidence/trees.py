"""Traffic of boosted trees over row shards, and how many of them equal those of one process."""

import torch

from labkit import Group
from labkit.interview.real_run import real_run, run
from labkit.trees import Booster, BoostingConfig, train

_BINS = 64


@real_run
def tree_sent_bytes(world_size: int, num_rows: int, merge: str) -> int:
    """Bytes that rank 0 sends to find the first split of a tree, over all ranks' `num_rows` rows.

    8 features with 64 bins, two sums of 8 bytes in each; merge: "all_reduce" or "reduce_scatter".
    """
    config = BoostingConfig(num_trees=1, max_depth=1, num_bins=_BINS, merge=merge)
    traffic = run(_boosted, world_size, (config, num_rows)).traffic[0].by_operation
    return sum(each.sent_bytes for kind, each in traffic.items() if kind in ("send", "all_gather"))


@real_run
def first_unequal_tree(world_size: int, exact: bool) -> int:
    """Count the trees, of ten, before the first that differs from one process, in any bit.

    exact: sums of whole numbers; else of float64. All ranks have the same bin edges.
    """
    config = BoostingConfig(num_trees=10, num_bins=_BINS, exact=exact)
    alone, ranks = (run(_boosted, n, (config, 2_000)).values[0] for n in (1, world_size))
    return ranks.equal_trees(alone)


def _boosted(world: Group, config: BoostingConfig, num_rows: int) -> Booster:
    generator = torch.Generator().manual_seed(0)
    rows_NF = torch.randint(_BINS, (num_rows, 8), generator=generator).float()
    labels_N = rows_NF[:, 0] * rows_NF[:, 1] + rows_NF[:, 2] / 3
    edges_FE = torch.arange(1, _BINS).double().expand(8, -1)
    rows, labels = (each.tensor_split(world.size)[world.rank] for each in (rows_NF, labels_N))
    return train(world, rows, labels, config, edges_FE)
