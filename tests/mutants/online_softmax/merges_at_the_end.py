"""Mutant: outputs of all blocks are kept, and merged after the loop.

outcome: "over budget"
diagnosis: "keeps something of every block"
"""

import torch


def online_softmax(q_TK, blocks, scale):
    outputs, lses = [], []
    for k_SK, v_SK, mask_TS in blocks:
        scores_TS = (scale * (q_TK @ k_SK.T)).masked_fill(~mask_TS, -torch.inf)
        lses.append(scores_TS.logsumexp(1))
        outputs.append(torch.softmax(scores_TS, 1).nan_to_num() @ v_SK)
        del k_SK, v_SK, mask_TS, scores_TS
    lse_BT = torch.stack(lses)
    lse_T = lse_BT.logsumexp(0)
    shift_T = lse_T.masked_fill(lse_T == -torch.inf, 0)
    return (torch.exp(lse_BT - shift_T)[:, :, None] * torch.stack(outputs)).sum(0), lse_T
