"""Mutant: each rank sends its block to all others.

outcome: "over budget"
diagnosis: "sends to others than its right neighbour"
"""

import torch


def ring_attention(q_HtK, k_HtK, v_HtK, num_tokens, group):
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    queries_t1 = sum(sizes[:rank]) + torch.arange(sizes[rank]).unsqueeze(1)
    own = block = torch.stack([k_HtK, v_HtK])
    o_HtK, lse_Ht1 = torch.zeros_like(q_HtK), torch.full_like(q_HtK[..., :1], -torch.inf)
    for step in range(n):
        source, under_way, arriving = (rank - step) % n, [], block
        if step < n - 1:
            shape = (2, len(q_HtK), sizes[(source - 1) % n], q_HtK.shape[2])
            arriving = block.new_empty(shape)
            under_way.append(group.irecv(arriving, (source - 1) % n))
            under_way.append(group.isend(own, (rank + step + 1) % n))
        if source <= rank:
            keys_s = sum(sizes[:source]) + torch.arange(sizes[source])
            scores_Hts = q_HtK @ block[0].mT * q_HtK.shape[2] ** -0.5
            scores_Hts = scores_Hts.masked_fill(keys_s > queries_t1, -torch.inf)
            its_Ht1 = scores_Hts.logsumexp(2, keepdim=True)
            new_Ht1 = torch.logaddexp(lse_Ht1, its_Ht1)
            its_HtK = torch.exp(scores_Hts - new_Ht1) @ block[1]
            o_HtK, lse_Ht1 = o_HtK * torch.exp(lse_Ht1 - new_Ht1) + its_HtK, new_Ht1
        for each in under_way:
            each.wait()
        block = arriving
    return o_HtK
