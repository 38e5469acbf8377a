"""Mutant: exp of the scores as they are.

outcome: "wrong"
diagnosis: "subtracts no maximum"
"""

import torch


def online_softmax(q_TK, blocks, scale):
    o_TK = torch.zeros_like(q_TK)
    sum_T1 = q_TK.new_zeros(len(q_TK), 1)
    for k_SK, v_SK, mask_TS in blocks:
        weights_TS = torch.exp(scale * (q_TK @ k_SK.T)) * mask_TS
        sum_T1 = sum_T1 + weights_TS.sum(1, keepdim=True)
        o_TK = o_TK + weights_TS @ v_SK
    return o_TK / sum_T1.masked_fill(sum_T1 == 0, 1), sum_T1.log().squeeze(1)
