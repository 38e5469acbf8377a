"""Context parallelism: one sequence over the ranks of a group.

Read in this order:

    plain.py          start here: causal ring attention in the fewest lines, forward only
    shards.py         which tokens a rank holds, and what is refused
    ring.py           attention over blocks of keys, which merge; keys and values go round a ring
                      while blocks are computed
    attention_cp.py   the baseline, keys and values of the whole sequence on every rank; Ulysses, an
                      all-to-all to whole sequences of some heads, and back
    gpt_cp.py         the lab's GPT on a sequence that is cut, with any of the three
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
