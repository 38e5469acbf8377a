"""Mutant: a softmax that subtracts the mean of the logits.

outcome: "wrong"
diagnosis: "subtracts something else than the largest"
"""

import math

import torch
from torch.nn.functional import one_hot


def top_k_capacity(logits_TE, bias_E, k, capacity_factor, renormalise):
    num_tokens, num_experts = logits_TE.shape
    capacity = math.ceil(capacity_factor * k * num_tokens / num_experts)
    e_TE = (logits_TE - logits_TE.mean(1, keepdim=True)).exp()
    p_TE = e_TE / e_TE.sum(1, keepdim=True)
    expert_TK = (p_TE.detach() + bias_E).topk(k, dim=1).indices

    # One list of all choices in the order of their turns: first choices, then second ones.
    expert_KT = expert_TK.T.flatten()
    waiting_KTE = one_hot(expert_KT, num_experts).cumsum(0)
    slot_KT = waiting_KTE.gather(1, expert_KT[:, None])[:, 0] - 1
    slot_TK = slot_KT.view(k, num_tokens).T
    kept_TK = slot_TK < capacity

    weight_TK = p_TE.gather(1, expert_TK)
    if renormalise:
        weight_TK = weight_TK / weight_TK.sum(dim=1, keepdim=True)

    token_EC = torch.full((num_experts, capacity), -1)
    token_TK = torch.arange(num_tokens)[:, None].expand(-1, k)
    token_EC[expert_TK[kept_TK], slot_TK[kept_TK]] = token_TK[kept_TK]
    return expert_TK, slot_TK.where(kept_TK, -1), weight_TK * kept_TK, token_EC
