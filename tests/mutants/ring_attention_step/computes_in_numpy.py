"""Mutant: in the right order, and where nobody can see it.

outcome: "wrong"
diagnosis: "computes outside of torch"
"""

import numpy as np
import torch


def ring_attention(q_HtK, k_HtK, v_HtK, num_tokens, group):
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    queries_t1 = sum(sizes[:rank]) + np.arange(sizes[rank])[:, None]
    block, q = torch.stack([k_HtK, v_HtK]), q_HtK.numpy()
    o, total = np.zeros_like(q), np.zeros_like(q[..., :1])
    largest = np.full_like(total, -np.inf)
    for step in range(n):
        source, under_way = (rank - step) % n, []
        arriving = block
        if step < n - 1:
            shape = (2, len(q_HtK), sizes[(source - 1) % n], q_HtK.shape[2])
            arriving = block.new_empty(shape)
            under_way.append(group.irecv(arriving, (rank - 1) % n))
            under_way.append(group.isend(block, (rank + 1) % n))
        if source <= rank:
            k, v = block.numpy()
            keys_s = sum(sizes[:source]) + np.arange(sizes[source])
            scores = q @ k.swapaxes(1, 2) * q.shape[2] ** -0.5
            scores = np.where(keys_s > queries_t1, -np.inf, scores)
            new = np.maximum(largest, scores.max(2, keepdims=True))
            weights, rescale = np.exp(scores - new), np.exp(largest - new)
            total = total * rescale + weights.sum(2, keepdims=True)
            o, largest = o * rescale + weights @ v, new
        for each in under_way:
            each.wait()
        block = arriving
    return torch.from_numpy(o / total)
