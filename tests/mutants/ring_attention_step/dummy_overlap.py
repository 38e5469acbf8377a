"""Mutant: an exponential of one number stands between posting and waiting, and nothing else.

outcome: "over budget"
diagnosis: "computes too little while blocks travel"
"""

import torch


def ring_attention(q_HtK, k_HtK, v_HtK, num_tokens, group):
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    queries_t1 = sum(sizes[:rank]) + torch.arange(sizes[rank]).unsqueeze(1)
    block = torch.stack([k_HtK, v_HtK])
    o_HtK = torch.zeros_like(q_HtK)
    sum_Ht1 = torch.zeros_like(q_HtK[..., :1])
    max_Ht1 = torch.full_like(sum_Ht1, -torch.inf)
    for step in range(n):
        source, under_way = (rank - step) % n, []
        arriving = block
        if step < n - 1:
            shape = (2, len(q_HtK), sizes[(source - 1) % n], q_HtK.shape[2])
            arriving = block.new_empty(shape)
            under_way.append(group.irecv(arriving, (rank - 1) % n))
            under_way.append(group.isend(block, (rank + 1) % n))
            torch.exp(q_HtK.new_zeros(1))
            for each in under_way:
                each.wait()
        if source <= rank:
            keys_s = sum(sizes[:source]) + torch.arange(sizes[source])
            scores_Hts = q_HtK @ block[0].mT * q_HtK.shape[2] ** -0.5
            scores_Hts = scores_Hts.masked_fill(keys_s > queries_t1, -torch.inf)
            new_Ht1 = torch.maximum(max_Ht1, scores_Hts.amax(2, keepdim=True))
            weights_Hts, rescale_Ht1 = torch.exp(scores_Hts - new_Ht1), torch.exp(max_Ht1 - new_Ht1)
            sum_Ht1 = sum_Ht1 * rescale_Ht1 + weights_Hts.sum(2, keepdim=True)
            o_HtK = o_HtK * rescale_Ht1 + weights_Hts @ block[1]
            max_Ht1 = new_Ht1
        block = arriving
    return o_HtK / sum_Ht1
