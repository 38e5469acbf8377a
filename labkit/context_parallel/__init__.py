"""Context parallelism: one sequence over the ranks of a group.

The ladder: ring.py merges blocks, ring.py moves them; shards.py and
ring.py say who computes which, and shards.py what is refused.

    attention_cp.py    the baseline: keys and values of the whole sequence on every rank
    ring.py        keys and values go round while blocks are computed
    attention_cp.py               all-to-all to whole sequences of some heads, and back
    gpt_cp.py gpt_cp.py    the lab's GPT on a sequence that is cut, with any of the three
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
