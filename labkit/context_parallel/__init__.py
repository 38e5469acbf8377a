"""Context parallelism: one sequence over the ranks of a group.

The ladder: online_softmax.py merges blocks, ring_attention.py moves them; token_placement.py and
score_blocks.py say who computes which, and shards.py what is refused.

    gathered_attention.py    the baseline: keys and values of the whole sequence on every rank
    ring_attention.py        keys and values go round while blocks are computed
    ulysses.py               all-to-all to whole sequences of some heads, and back
    gpt_cp.py train_cp.py    the lab's GPT on a sequence that is cut, with any of the three
"""

from labkit.context_parallel.gathered_attention import gathered_attention
from labkit.context_parallel.gpt_cp import ContextParallelGPT
from labkit.context_parallel.online_softmax import attend, merge
from labkit.context_parallel.ring_attention import ring_attention
from labkit.context_parallel.token_placement import (
    Placement,
    contiguous,
    gather_sequence,
    shard_sequence,
    zigzag,
)
from labkit.context_parallel.train_cp import train, train_step
from labkit.context_parallel.ulysses import ulysses_attention

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
