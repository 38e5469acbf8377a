"""Gradient-boosted trees on row shards, equal to one process in every bit.

Read in this order:

    sketch.py       bin edges over all ranks: weighted quantile summaries, merged and pruned
    bins.py         a rank's rows as bins: a dense matrix, or column blocks of sparse rows
    histogram.py    sums by node, feature and bin in fixed point; two ways to merge them
    split.py        gain, default direction of missing values, a split that all ranks agree on
    tree.py         trees as arrays, and prediction
    boosting.py     training: start here for the whole picture
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit.trees.bins import SparseRows
    from labkit.trees.boosting import BoostingConfig, train
    from labkit.trees.tree import Booster, Tree


__getattr__, __dir__, __all__ = lazy(__name__)
