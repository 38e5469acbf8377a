"""Mutant: torch's own attention, block by block.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

import torch
from torch.nn.functional import scaled_dot_product_attention


def online_softmax(q_TK, blocks, scale):
    o_TK, lse_T = torch.zeros_like(q_TK), torch.full_like(q_TK[:, 0], -torch.inf)
    for k_SK, v_SK, mask_TS in blocks:
        its_TK = scaled_dot_product_attention(q_TK, k_SK, v_SK, attn_mask=mask_TS, scale=scale)
        scores_TS = (scale * (q_TK @ k_SK.T)).masked_fill(~mask_TS, -torch.inf)
        its_T = scores_TS.logsumexp(1)
        new_T = torch.logaddexp(lse_T, its_T)
        shift_T = new_T.masked_fill(new_T == -torch.inf, 0)
        o_TK = o_TK * torch.exp(lse_T - shift_T)[:, None]
        o_TK = o_TK + its_TK * torch.exp(its_T - shift_T)[:, None]
        lse_T = new_T
    return o_TK, lse_T
