"""Mutant: each block's own softmax, averaged.

outcome: "wrong"
diagnosis: "averages the blocks' softmaxes"
"""

import torch


def online_softmax(q_TK, blocks, scale):
    o_TK, lse_T, num_blocks = torch.zeros_like(q_TK), None, 0
    for k_SK, v_SK, mask_TS in blocks:
        scores_TS = (scale * (q_TK @ k_SK.T)).masked_fill(~mask_TS, -torch.inf)
        o_TK = o_TK + torch.softmax(scores_TS, 1).nan_to_num() @ v_SK
        its_T = scores_TS.logsumexp(1)
        lse_T = its_T if lse_T is None else torch.logaddexp(lse_T, its_T)
        num_blocks += 1
    return o_TK / num_blocks, lse_T
