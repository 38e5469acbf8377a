"""Mutant: right, and in arrays of numpy, of which nobody knows how many there are.

outcome: "wrong"
diagnosis: "computes outside of torch"
"""

import numpy as np
import torch


def online_softmax(q_TK, blocks, scale):
    q = q_TK.numpy()
    o, total = np.zeros_like(q), np.zeros_like(q[:, :1])
    largest = np.full_like(total, -np.inf)
    for k_SK, v_SK, mask_TS in blocks:
        scores = np.where(mask_TS.numpy(), q @ k_SK.numpy().T * q.dtype.type(scale), -np.inf)
        new = np.maximum(largest, scores.max(1, keepdims=True))
        shift = np.where(np.isneginf(new), 0, new)
        weights, rescale = np.exp(scores - shift), np.exp(largest - shift)
        total = total * rescale + weights.sum(1, keepdims=True)
        o, largest = o * rescale + weights @ v_SK.numpy(), new
    lse = np.where(total == 0, -np.inf, largest + np.log(np.where(total == 0, 1, total)))
    o = o / np.where(total == 0, 1, total)
    return torch.from_numpy(o).to(q_TK.dtype), torch.from_numpy(lse[:, 0]).to(q_TK.dtype)
