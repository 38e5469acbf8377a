"""Tensor parallelism: every rank holds a shard of every layer, and computes all tokens.

Read in this order:

    plain.py               start here: a column and a row layer in the fewest lines, f and g
    activation_layout.py   how ranks hold features between layers; f and g:
                           `enter_parallel_region` and `leave_parallel_region`
    linear.py              ColumnLinear and RowLinear, as in the paper; how a tensor is sharded
    attention.py           the two halves of a block; which rank has which heads, also with fewer
                           key-value heads than ranks
    vocab.py               embedding and cross-entropy over a vocabulary that is cut
    gpt_tp.py              parallelize: shards the lab's GPT; its training
    gradients.py           gathers the whole model; sums gradients of replicated parameters that
                           ranks use for different tokens or heads; the gradient norm
    fused.py               linear.py with communication that overlaps backward; one gather for
                           three weights

collectives/backend.py has the implementations of the collectives.
examples/one_file/tensor_parallel.py is a GPT in plain torch.distributed, without labkit.
"""

from labkit.collectives.backend import LIBRARY, RING, SHARED_MEMORY, CollectiveBackend
from labkit.tensor_parallel.activation_layout import (
    ActivationLayout,
    Replicated,
    SequenceSharded,
    enter_parallel_region,
    leave_parallel_region,
)
from labkit.tensor_parallel.attention import (
    HeadShares,
    ParallelAttention,
    ParallelMLP,
    head_choices,
)
from labkit.tensor_parallel.fused import column_linear, row_linear
from labkit.tensor_parallel.gpt_tp import TensorParallelGPT, parallelize, train
from labkit.tensor_parallel.gradients import (
    clip_gradients,
    gather_full,
    gather_full_gradients,
    gather_full_state,
    load_full_state,
    summed_over,
)
from labkit.tensor_parallel.linear import (
    REPLICATED,
    ColumnLinear,
    RowLinear,
    Sharding,
    even_sharding,
    gather_features,
    share_features,
)
from labkit.tensor_parallel.vocab import vocab_cross_entropy, vocab_embedding

__all__ = [
    "ActivationLayout",
    "CollectiveBackend",
    "ColumnLinear",
    "HeadShares",
    "LIBRARY",
    "ParallelAttention",
    "ParallelMLP",
    "REPLICATED",
    "RING",
    "Replicated",
    "RowLinear",
    "SHARED_MEMORY",
    "SequenceSharded",
    "Sharding",
    "TensorParallelGPT",
    "clip_gradients",
    "column_linear",
    "enter_parallel_region",
    "even_sharding",
    "gather_features",
    "gather_full",
    "gather_full_gradients",
    "gather_full_state",
    "head_choices",
    "leave_parallel_region",
    "load_full_state",
    "parallelize",
    "row_linear",
    "share_features",
    "summed_over",
    "train",
    "vocab_cross_entropy",
    "vocab_embedding",
]
