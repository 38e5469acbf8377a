"""Ring attention in the fewest lines: queries stay, keys and values go round. The first rung.

    step     rank 0    rank 1    rank 2      the block of keys and values on each rank
    0        kv 0      kv 1      kv 2        all but the last step also send it to the right
    1        kv 2 -    kv 0      kv 1        -: later than all of the rank's queries, so skipped
    2        kv 1 -    kv 2 -    kv 0

The attention is causal, and only its forward pass is here. The softmax is online: each query has a
running maximum and a running sum, and every block rescales the output computed so far.
Layout: q, k, v and the output are sharded by tokens, one contiguous shard per rank. A rank has t
queries, and a block has s keys: see labkit/model.py for H and K.
Sent: n - 1 blocks per rank, together (n-1)/n of the keys and values of the whole sequence.
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
