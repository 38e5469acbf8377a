"""Context parallelism: one sequence over the ranks of a group.

Read in this order:

    plain.py          start here: causal ring attention in the fewest lines, forward only
    shards.py         which tokens a rank holds, and checks of queries, keys and values
    ring.py           ring attention with gradients: the attention of each block is merged with that
                      of the earlier ones, while keys and values go round the ring
    attention_cp.py   the baseline, keys and values of the whole sequence on every rank; Ulysses, an
                      all-to-all to whole sequences of some heads, and back
    gpt_cp.py         the lab's GPT on a sharded sequence, with any of the three
"""

from labkit.context_parallel.attention_cp import gathered_attention, ulysses_attention
from labkit.context_parallel.gpt_cp import ContextParallelGPT, train, train_step
from labkit.context_parallel.ring import attend, merge, ring_attention
from labkit.context_parallel.shards import (
    Placement,
    contiguous,
    gather_sequence,
    shard_sequence,
    zigzag,
)

__all__ = [
    "ContextParallelGPT",
    "Placement",
    "attend",
    "contiguous",
    "gather_sequence",
    "gathered_attention",
    "merge",
    "ring_attention",
    "shard_sequence",
    "train",
    "train_step",
    "ulysses_attention",
    "zigzag",
]
