"""Mutant: the scores of all blocks are kept, copied out of torch, and used at the end.

outcome: "wrong"
diagnosis: "computes outside of torch"
"""

import numpy as np
import torch


def online_softmax(q_TK, blocks, scale):
    q, kept = q_TK.double().numpy(), []
    for k_SK, v_SK, mask_TS in blocks:
        scores = np.where(mask_TS.numpy(), scale * q @ k_SK.double().numpy().T, -np.inf)
        kept.append((scores, v_SK.double().numpy().copy()))
    scores, values = (np.concatenate(each, axis) for axis, each in zip((1, 0), zip(*kept)))
    largest = scores.max(1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = weights.sum(1, keepdims=True)
    is_blind = total == 0
    o, sums = weights @ values, np.where(is_blind, 1, total)
    o_TK, sums_T1 = torch.from_numpy(o).to(q_TK.dtype), torch.from_numpy(sums).to(q_TK.dtype)
    lse_T1 = torch.from_numpy(np.where(is_blind, -np.inf, largest)).to(q_TK.dtype) + sums_T1.log()
    return o_TK / sums_T1, lse_T1[:, 0]
