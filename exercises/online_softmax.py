"""Softmax over blocks that come one at a time.

An interviewer asks: "A sequence of a million tokens: the scores of one query do not fit. Keys and
values come to you in blocks, each once. Compute exact attention. What do you keep from block to
block? What do you do to it when a larger score comes? And what if a block is wholly masked?"

Write `online_softmax(q_TK, blocks, scale)`: attention of all queries over the keys of all blocks,
and the log-sum-exp of each query's scores.

Contract
    q_TK     T queries of K features, float32 or float64. Left as it is
    blocks   an iterator; it gives each block once, as (k_SK, v_SK, mask_TS): S keys and values, of
             q's dtype, and booleans, True where a query may see a key. S is 1 or more and differs
             from block to block. There is at least one block. Blocks are left as they are
    scale    the score of a query and a key is scale * (q . k)
    returns  (o_TK, lse_T) of q's dtype, over the keys that each query may see, in all blocks:
             o = sum of exp(score) v / sum of exp(score), and lse = log(sum of exp(score)), the
             natural logarithm. A query that may see no key at all has zeros, and -inf
    range    scores of 10,000 and -10,000 must not overflow or vanish, in float32 either
    Not allowed: torch's attention (scaled_dot_product_attention and its like), labkit's, and
                arrays outside of torch, such as numpy's, where what is in memory cannot be seen

Budget
    blocks   at most two in memory at any time: the one in hand, and the one before it, which the
             names of a loop hold until the next is there
    bytes    beside those, at any time 8 (T, S) tensors of numbers (S of the largest block, which
             has more keys than features): nothing grows with the number of blocks
"""

from collections.abc import Iterator

import torch

Block = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def online_softmax(
    q_TK: torch.Tensor, blocks: Iterator[Block], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over all blocks, and the log-sum-exp of each query's scores.

    Papers: Milakov and Gimelshein, arXiv:1805.02867; FlashAttention, arXiv:2205.14135.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
