"""Mutant: all blocks become one.

outcome: "over budget"
diagnosis: "keeps blocks that it has seen"
"""

import torch


def online_softmax(q_TK, blocks, scale):
    keys, values, masks = zip(*blocks)
    mask_TS = torch.cat(masks, 1)
    scores_TS = (scale * (q_TK @ torch.cat(keys).T)).masked_fill(~mask_TS, -torch.inf)
    lse_T = scores_TS.logsumexp(1)
    shift_T = lse_T.masked_fill(lse_T == -torch.inf, 0)
    return torch.exp(scores_TS - shift_T[:, None]) @ torch.cat(values), lse_T
