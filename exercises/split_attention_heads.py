"""Attention, split by heads.

An interviewer asks: "Split an attention layer over the ranks of a node. What does each rank hold of
the four projections? The model has 32 query heads and 8 key-value heads. On how many ranks can you
run it? On 16 ranks, which rank has which key-value head, and what happens to its gradient?"

There are n ranks, H query heads and G key-value heads. Each head has K features. G divides H. The
H/G query heads of one group read the same key-value head and lie side by side: query head h reads
key-value head h // (H/G). With G = H this is plain multi-head attention. Write two functions.

1. `split_attention_heads(query, key, value, out, num_ranks, rank, num_heads, num_kv_heads)`
returns the rank's shards of the four weights.

Contract
    query     (H K, D). Query head h has the rows h K to (h + 1) K
    key       (G K, D). Key-value head j has the rows j K to (j + 1) K. The same for value
    out       (D, H K). Its columns are the features of the heads, in the order of query's rows
    rank r    has the r-th of n blocks of H/n query heads, and the g key-value heads that these
              query heads read, in ascending order, each once
    returns   (query, key, value, out): shards of shapes (H/n K, D), (g K, D), (g K, D) and
              (D, H/n K). Views or copies
    raises    ValueError where n does not divide H: a rank would have a part of a query head. Also
              where neither of n and G divides the other: some rank would have query heads of two
              groups, and not all heads of both. The message ends with all numbers of ranks that are
              possible for this H and G, ascending, such as "...; try 1, 2, 4 or 8". What stands
              between the numbers is up to you

Attention over the rank's heads, times its columns of out, gives a partial result of the layer. The
sum over the ranks is the whole result.

2. `kv_copies(num_ranks, rank, num_kv_heads)` returns the ranks that have the same shards of key and
value as `rank`. Their gradients of key and value must be summed.

Contract
    given     n divides G, or G divides n
    returns   a list of ranks, ascending, `rank` included. It is [rank] where no other rank has a
              copy

Papers: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3. Ainslie et al., "GQA",
arXiv:2305.13245.
"""

import torch


def split_attention_heads(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    num_ranks: int,
    rank: int,
    num_heads: int,
    num_kv_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the rank's shards of query, key, value and out."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def kv_copies(num_ranks: int, rank: int, num_kv_heads: int) -> list[int]:
    """Return the ranks with the same key-value heads as `rank`, ascending, `rank` included."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
