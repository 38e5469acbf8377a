"""Mutant: all blocks go around first; an exponential of a few numbers hides that.

outcome: "over budget"
diagnosis: "gathers all blocks before it computes"
"""

import torch


def ring_attention(q_HtK, k_HtK, v_HtK, num_tokens, group):
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    blocks = {rank: torch.stack([k_HtK, v_HtK])}
    for step in range(n - 1):
        source = (rank - step) % n
        shape = (2, len(q_HtK), sizes[(source - 1) % n], q_HtK.shape[2])
        arriving = q_HtK.new_empty(shape)
        under_way = [
            group.irecv(arriving, (rank - 1) % n),
            group.isend(blocks[source], (rank + 1) % n),
        ]
        torch.exp(q_HtK[:, :1])
        for each in under_way:
            each.wait()
        blocks[(source - 1) % n] = arriving
    k_HTK, v_HTK = torch.cat([blocks[source] for source in range(rank + 1)], 2)
    num_seen = k_HTK.shape[1]
    queries_t1 = sum(sizes[:rank]) + torch.arange(sizes[rank]).unsqueeze(1)
    scores_HtT = q_HtK @ k_HTK.mT * q_HtK.shape[2] ** -0.5
    scores_HtT = scores_HtT.masked_fill(torch.arange(num_seen) > queries_t1, -torch.inf)
    return scores_HtT.softmax(2) @ v_HTK
