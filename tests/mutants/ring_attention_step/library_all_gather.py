"""Mutant: the library gathers all keys and values.

outcome: "wrong"
diagnosis: "calls a library collective"
"""

import torch


def ring_attention(q_HtK, k_HtK, v_HtK, num_tokens, group):
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    block = torch.zeros(max(sizes), 2, len(q_HtK), q_HtK.shape[2], dtype=q_HtK.dtype)
    block[: sizes[rank]] = torch.stack([k_HtK, v_HtK]).permute(2, 0, 1, 3)
    parts = group.all_gather(block).split(max(sizes))
    k_HTK, v_HTK = torch.cat([part[:size] for part, size in zip(parts, sizes)]).permute(1, 2, 0, 3)
    queries_t1 = sum(sizes[:rank]) + torch.arange(sizes[rank]).unsqueeze(1)
    scores_HtT = q_HtK @ k_HTK.mT * q_HtK.shape[2] ** -0.5
    scores_HtT = scores_HtT.masked_fill(torch.arange(num_tokens) > queries_t1, -torch.inf)
    return scores_HtT.softmax(2) @ v_HTK
