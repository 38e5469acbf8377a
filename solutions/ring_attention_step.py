"""Attention on a ring.

An interviewer asks: "A sequence of a million tokens is split over eight GPUs, and every token
attends to all tokens before it. No GPU has room for all keys. Which data moves, how often, and what
does a GPU compute meanwhile? Which GPU computes most?"

Write `ring_attention(q_HtK, k_HtK, v_HtK, num_tokens, group)`. It returns the causal attention of
this rank's queries over the keys and values of the whole sequence. Forward only.

Contract
    q, k, v     (H, t, K): queries, keys and values of this rank's shard of the sequence. Rank r has
                the r-th shard that torch.tensor_split cuts from num_tokens: the first
                num_tokens % n ranks have one token more. The three must not change
    num_tokens  T, of the whole sequence; n or more
    group       has `group.rank`, `group.size`, `group.isend(tensor, rank)` and `group.irecv(buffer,
                rank)`, whose Pending's `wait()` completes them, and `group.send` and `group.recv`,
                which block
    returns     o_HtK, a new tensor of q's dtype. For the query at position i of the sequence it is
                softmax(q . k / sqrt(K)) over the positions 0 to i, times their values
    Write the attention with torch's operators. Do not use torch's own attention.

Budget, on n ranks
    messages  all go to the right neighbour, rank + 1: first this rank's own keys and values, then
              the blocks that arrived from the left, n - 1 blocks in all. A block is one message, or
              two: one with its keys and one with its values. Blocks are not padded, and no block is
              sent back to the rank that it came from
    order     while a rank computes with a block, the same block is on its way to the right and the
              next block is on its way here. Post both before the computation, and wait for both
              after it
    compute   nothing for a block that lies wholly after this rank's shard
    blocks    while a rank computes, at most 3 blocks are in memory besides q, k, v: a copy of its
              own, the one in hand, and the one that arrives. So the block before is dropped
    bytes     besides these, at any time no more than 8 tensors of (H, t, t) numbers take. Here t is
              the longest shard, at least 2 K. With two or more ranks no tensor of any dtype is
              (T, T) or (t, T)
"""

import torch

from labkit.comm import Group


def ring_attention(
    q_HtK: torch.Tensor,
    k_HtK: torch.Tensor,
    v_HtK: torch.Tensor,
    num_tokens: int,
    group: Group,
) -> torch.Tensor:
    """Compute causal attention of this rank's queries over the whole sequence.

    Traffic: n - 1 blocks of keys and values to the right, 2 H t K numbers each.
    Paper: Liu et al., "Ring Attention", arXiv:2310.01889.
    """
    ### BEGIN SOLUTION
    n, rank = group.size, group.rank
    sizes = [len(shard) for shard in torch.arange(num_tokens).tensor_split(n)]
    positions_t1 = sum(sizes[:rank]) + torch.arange(sizes[rank]).unsqueeze(1)
    block = torch.stack([k_HtK, v_HtK])
    o_HtK = torch.zeros_like(q_HtK)
    sum_Ht1 = torch.zeros_like(q_HtK[..., :1])
    max_Ht1 = torch.full_like(sum_Ht1, -torch.inf)
    for step in range(n):
        source = (rank - step) % n
        if step < n - 1:
            arriving = block.new_empty(2, len(q_HtK), sizes[(source - 1) % n], q_HtK.shape[2])
            incoming = group.irecv(arriving, (rank - 1) % n)
            outgoing = group.isend(block, (rank + 1) % n)
        if source <= rank:  # its own block is first, so from then on every query has seen a key
            is_later_ts = sum(sizes[:source]) + torch.arange(sizes[source]) > positions_t1
            scores_Hts = q_HtK @ block[0].mT * q_HtK.shape[2] ** -0.5
            scores_Hts = scores_Hts.masked_fill(is_later_ts, -torch.inf)
            new_Ht1 = torch.maximum(max_Ht1, scores_Hts.amax(2, keepdim=True))
            weights_Hts, rescale_Ht1 = torch.exp(scores_Hts - new_Ht1), torch.exp(max_Ht1 - new_Ht1)
            sum_Ht1 = sum_Ht1 * rescale_Ht1 + weights_Hts.sum(2, keepdim=True)
            o_HtK = o_HtK * rescale_Ht1 + weights_Hts @ block[1]
            max_Ht1 = new_Ht1
        if step < n - 1:
            incoming.wait()
            outgoing.wait()
            block = arriving
    return o_HtK / sum_Ht1
    ### END SOLUTION
