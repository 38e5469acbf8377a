"""Attention, split by heads.

An interviewer asks: "Split an attention layer over the ranks of a node. What does each rank hold of
the four projections? The model has 32 query heads and 8 key-value heads: on how many ranks can you
run it? And on 16, who has which key-value head, and what has to be done with its gradient?"

Write two functions, for n ranks, H query heads and G key-value heads of K features each. G divides
H, and query heads of the same key-value head lie side by side: head h reads key-value head
h // (H/G). With G = H that is plain multi-head attention.

`split_attention_heads(query, key, value, out, num_ranks, rank, num_heads, num_kv_heads)`: the
rank's share of each of the four weights.

Contract
    query     (H K, D): y = x query^T, and head h has the rows h K to (h+1) K
    key       (G K, D), as value: head by head in the same way
    out       (D, H K): its columns are the heads' features, in the order of query's rows
    returns   (query, key, value, out), shares of (H/n K, D), (g K, D), (g K, D) and (D, H/n K), as
              views or copies. The rank's query heads are the r-th of n blocks of H/n; its g
              key-value heads are those that they read, in order, each once
    raises    ValueError, where n does not divide H, or neither of n and G divides the other: a rank
              would have a part of a head, or query heads of two groups and none of them whole. Its
              message ends with all numbers of ranks that would do, ascending, as in "...; try 1,
              2, 4 or 8"

Attention of the rank's heads, times its columns of out, is then a partial result of the layer: one
sum over the ranks makes it whole.

`kv_copies(num_ranks, rank, num_kv_heads)`: the ranks whose key and value shares are the same as
this rank's, and whose gradients of them have to be added up. A list, ascending, with the rank
itself in it; that rank alone, where no other has a copy. n divides G, or G divides n.

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
    """The rank's shares of query, key, value and out."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def kv_copies(num_ranks: int, rank: int, num_kv_heads: int) -> list[int]:
    """The ranks with the same key-value heads as `rank`, itself included, ascending."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
