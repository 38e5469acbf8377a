"""Softmax over blocks that arrive one at a time.

An interviewer asks: "A sequence has a million tokens, so the scores of one query do not fit in
memory. Keys and values arrive in blocks, each block once. Compute exact attention. What do you keep
from block to block? What do you do with it when a larger score arrives? What if a whole block is
masked?"

Write `online_softmax(q_TK, blocks, scale)`. It returns the attention of all queries over the keys
of all blocks, and the log-sum-exp of each query's scores.

Contract
    q_TK     T queries of K features, float32 or float64
    blocks   an iterator that gives each block once, as (k_SK, v_SK, mask_TS): S keys and S values
             of q's dtype, and booleans, True where a query may see a key. S is 1 or more and
             differs from block to block. There is at least one block
    scale    the score of a query and a key is scale * (q . k)
    returns  (o_TK, lse_T), both of q's dtype. Over the keys that a query may see, in all blocks:
             o = sum of exp(score) v / sum of exp(score), and lse = log(sum of exp(score)), the
             natural logarithm. For a query that may see no key at all, o is 0 and lse is -inf
    range    scores reach 10,000 and -10,000. They must not overflow or vanish, also in float32
    q_TK and the blocks must not change. Do not use torch's own attention.

Budget
    blocks   at most two are in memory at any time: the current one, and the one before it, which
             the variables of a loop hold until the next one arrives
    bytes    besides these blocks, at any time no more than 8 tensors of (T, S) numbers take, S of
             the largest block. The test has S > K. So nothing may grow with the number of blocks
"""

from collections.abc import Iterator

import torch

Block = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def online_softmax(
    q_TK: torch.Tensor, blocks: Iterator[Block], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention over all blocks, and the log-sum-exp of each query's scores.

    Papers: Milakov and Gimelshein, arXiv:1805.02867; FlashAttention, arXiv:2205.14135.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
