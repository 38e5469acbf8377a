"""Mutant: the maximum is over all keys of a block, hidden ones included.

outcome: "wrong"
diagnosis: "takes the maximum before it masks"
"""

import torch


def online_softmax(q_TK, blocks, scale):
    o_TK = torch.zeros_like(q_TK)
    sum_T1 = q_TK.new_zeros(len(q_TK), 1)
    max_T1 = torch.full_like(sum_T1, -torch.inf)
    for k_SK, v_SK, mask_TS in blocks:
        scores_TS = scale * (q_TK @ k_SK.T)
        new_T1 = torch.maximum(max_T1, scores_TS.amax(1, keepdim=True))
        weights_TS = torch.exp(scores_TS.masked_fill(~mask_TS, -torch.inf) - new_T1)
        rescale_T1 = torch.exp(max_T1 - new_T1)
        sum_T1 = sum_T1 * rescale_T1 + weights_TS.sum(1, keepdim=True)
        o_TK = o_TK * rescale_T1 + weights_TS @ v_SK
        max_T1 = new_T1
    lse_T = (max_T1 + sum_T1.log()).squeeze(1)
    return o_TK / sum_T1.masked_fill(sum_T1 == 0, 1), lse_T
