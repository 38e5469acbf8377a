"""Attention on a ring.

An interviewer asks: "A million tokens are cut over eight GPUs, and every token attends to all
before it. No GPU has room for all keys. Which data moves, how often, and what is computed while it
does? Which GPU has the most to do?"

Write `ring_attention(q_HtK, k_HtK, v_HtK, num_tokens, group)`: causal attention of this rank's
queries over the keys and values of the whole sequence. Forward only.

Contract
    q, k, v     (H, t, K): the heads' queries, keys and values of this rank's share of the sequence.
                Rank r has the r-th, as torch.tensor_split cuts num_tokens into n: the first
                num_tokens % n ranks have one token more. Left as they are
    num_tokens  of the whole sequence; n or more
    returns     o_HtK, a new tensor of q's dtype: for the query at position i of the sequence the
                softmax of q . k / sqrt(K) over positions 0 to i, times their values
    group       `group.rank`, `group.size`; `group.isend(tensor, rank)` and `group.irecv(buffer,
                rank)`, each returning a Pending whose `wait()` completes it; `group.send` and
                `group.recv`, which block. Nothing else
    Not allowed: torch's attention (scaled_dot_product_attention and its like), labkit's, and
                arrays outside of torch, such as numpy's, where the order cannot be seen

Budget, on n ranks
    messages  all to the right neighbour, rank + 1: first this rank's own keys and values, then what
              has come from the left, n - 1 blocks in all. A block is one message, or two, one with
              its keys and one with its values; never padded, and never sent back home
    order     while this rank computes with a block, the same block is on its way to the right and
              the next one on its way here: both are posted before, and waited for afterwards
    computed  nothing for a block that lies wholly after this rank's share
    bytes     beside q, k and v, at any time 3 blocks of keys and values, of which at most two have
              been received or are under way, and 8 (H, t, t) tensors of numbers: nothing is (T, T),
              nor (t, T). (t is the longest share, at least twice K)
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
    """Causal attention of this rank's queries over the whole sequence.

    Wire: n - 1 blocks of keys and values to the right, 2 H t K numbers each.
    Paper: Liu et al., "Ring Attention", arXiv:2310.01889.
    """
    ### BEGIN SOLUTION
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    positions_t1 = sum(sizes[:rank]) + torch.arange(sizes[rank]).unsqueeze(1)
    block = torch.stack([k_HtK, v_HtK])
    o_HtK = torch.zeros_like(q_HtK)
    sum_Ht1 = torch.zeros_like(q_HtK[..., :1])
    max_Ht1 = torch.full_like(sum_Ht1, -torch.inf)
    for step in range(n):
        source, under_way = (rank - step) % n, []
        arriving = block
        if step < n - 1:
            arriving = block.new_empty(2, len(q_HtK), sizes[(source - 1) % n], q_HtK.shape[2])
            under_way.append(group.irecv(arriving, (rank - 1) % n))
            under_way.append(group.isend(block, (rank + 1) % n))
        if source <= rank:  # its own block comes first, so every query has seen a key from then on
            k_HsK, v_HsK = block
            is_later_ts = sum(sizes[:source]) + torch.arange(sizes[source]) > positions_t1
            scores_Hts = q_HtK @ k_HsK.mT * q_HtK.shape[2] ** -0.5
            scores_Hts = scores_Hts.masked_fill(is_later_ts, -torch.inf)
            new_Ht1 = torch.maximum(max_Ht1, scores_Hts.amax(2, keepdim=True))
            weights_Hts, rescale_Ht1 = torch.exp(scores_Hts - new_Ht1), torch.exp(max_Ht1 - new_Ht1)
            sum_Ht1 = sum_Ht1 * rescale_Ht1 + weights_Hts.sum(2, keepdim=True)
            o_HtK = o_HtK * rescale_Ht1 + weights_Hts @ v_HsK
            max_Ht1 = new_Ht1
        for each in under_way:
            each.wait()
        block = arriving
    return o_HtK / sum_Ht1
    ### END SOLUTION
