"""Top-k routing with a capacity.

An interviewer asks: "A router has a logit for every token and expert. Each token goes to its two
best experts, and each expert has a buffer of fixed length. How long is the buffer? Which token gets
the last slot? What are the weights of a token that lost one of its two slots? topk has no gradient:
how does a gradient reach the router?"

Write `top_k_capacity(logits_TE, bias_E, k, capacity_factor, renormalise)`: the experts of each
token, its slots at these experts, and the weights of their outputs.

Contract
    logits_TE        T tokens, E experts, at least one of each; floating point. They need a gradient
    bias_E           added to the probabilities for the choice only, to balance the experts. It
                     needs no gradient. logits_TE and bias_E stay unchanged
    k                choices per token, 1 to E
    capacity_factor  above 0. Each expert has C = ceil(capacity_factor * k * T / E) slots; C may be
                     larger than T. Factors are exact in floats, such as 0.75 or 1.25
    renormalise      whether the weights of a token are divided by the sum of p over its k choices.
                     This sum is above 0
    returns          four tensors, where K = k:
        expert_TK    int64: the k experts of each token, best first. With p = softmax over all
                     experts, they are those with the k largest p + bias, in falling order. No two
                     sums of a token are equal
        slot_TK      int64: the slot of each choice at its expert, 0 to C - 1. Slots are given in
                     this order: the first choices of all tokens, then all second choices, and so
                     on; earlier tokens first. A choice that finds all C slots of its expert taken
                     is dropped: its slot is -1. The token's other choices are not affected
        weight_TK    logits_TE's dtype: p of the expert, without the bias. With `renormalise` it is
                     divided by the sum of p over all k choices of the token, dropped ones included.
                     After that, the weight of a dropped choice is 0. The gradient of logits_TE
                     comes from these weights
        token_EC     int64: the token in each slot of each expert; -1 in an empty slot
    range            logits of 1,000 and -1,000 do not overflow, not even both for one token
    Not allowed: labkit.moe. Loops over tokens are fine
"""

import math

import torch
from torch.nn.functional import one_hot


def top_k_capacity(
    logits_TE: torch.Tensor,
    bias_E: torch.Tensor,
    k: int,
    capacity_factor: float,
    renormalise: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return expert_TK, slot_TK, weight_TK and token_EC.

    Papers: GShard, arXiv:2006.16668; Switch Transformer, arXiv:2101.03961; the bias: Wang et al.,
    arXiv:2408.15664.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
