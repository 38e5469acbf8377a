"""Mutant: one loop for the sum, another one for the output.

outcome: "wrong"
diagnosis: "goes through the blocks twice"
"""

import torch


def online_softmax(q_TK, blocks, scale):
    lse_T = torch.full_like(q_TK[:, 0], -torch.inf)
    for k_SK, v_SK, mask_TS in blocks:
        scores_TS = (scale * (q_TK @ k_SK.T)).masked_fill(~mask_TS, -torch.inf)
        lse_T = torch.logaddexp(lse_T, scores_TS.logsumexp(1))
    o_TK = torch.zeros_like(q_TK)
    shift_T = lse_T.masked_fill(lse_T == -torch.inf, 0)
    for k_SK, v_SK, mask_TS in blocks:
        scores_TS = (scale * (q_TK @ k_SK.T)).masked_fill(~mask_TS, -torch.inf)
        o_TK += torch.exp(scores_TS - shift_T[:, None]) @ v_SK
    return o_TK, lse_T
