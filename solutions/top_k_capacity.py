"""Top-k routing with a capacity.

An interviewer asks: "A router has given every token a logit for every expert. Each token goes to
its two best, and each expert has a buffer of fixed length. How long is it? Who gets the last
slot? What are the weights of a token that lost one of its two places? And along which way does a
gradient get to the router, when topk has none?"

Write `top_k_capacity(logits_TE, bias_E, k, capacity_factor, renormalise)`: which experts each
token goes to, into which of their slots, and how much each counts in its output.

Contract
    logits_TE        T tokens, E experts, one of each at least, of floating-point numbers; they need
                     a gradient
    bias_E           what balancing has added to each expert, in units of probabilities; it needs
                     no gradient. Both are left as they are
    k                choices of each token, 1 to E
    capacity_factor  a number above 0: each expert has C = ceil(capacity_factor k T / E) slots,
                     however many tokens there are. It is such that floats hold it exactly, as 0.75
                     or 1.25: 1.1 * 50 is a little above 55 in them, and its ceil 56, which is why
                     labkit rounds to 9 digits first. Do so or not
    renormalise      whether the weights of a token's k choices are divided by their sum
    returns          four tensors, K = k:
        expert_TK    int64: a token's k experts, first choice first. p = softmax over all experts,
                     and a token's choices are the k largest of p + bias, in falling order. No two
                     sums of a token are equal
        slot_TK      int64: the choice's slot at its expert, 0 to C - 1; -1 where it is dropped.
                     Slots are given in order: the first choices of all tokens, then all second
                     choices, and so on; within each, earlier tokens first. Whoever finds all C
                     slots of the expert taken is dropped, and takes part in no other
        weight_TK    of logits_TE's dtype: p of the expert, without the bias, and with
                     `renormalise` divided by the sum of p over the token's k choices, dropped ones
                     included; then 0 where the choice is dropped. Backward goes through p alone:
                     indices have no gradient
        token_EC     int64: the token in each slot of each expert; -1 where a slot is empty
    range            logits of 1,000 and -1,000 must not overflow, both in one token's row either
    Not allowed: labkit's own router. Loops over tokens are fine
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
    """expert_TK, slot_TK, weight_TK and token_EC.

    Papers: GShard, arXiv:2006.16668; Switch Transformer, arXiv:2101.03961; the bias: Wang et al.,
    arXiv:2408.15664.
    """
    ### BEGIN SOLUTION
    num_tokens, num_experts = logits_TE.shape
    capacity = math.ceil(capacity_factor * k * num_tokens / num_experts)
    p_TE = torch.softmax(logits_TE, dim=1)
    expert_TK = (p_TE.detach() + bias_E).topk(k, dim=1).indices

    # One list of all choices in the order of their turns: first choices, then second ones.
    expert_KT = expert_TK.T.flatten()
    waiting_KTE = one_hot(expert_KT, num_experts).cumsum(0)  # for each expert, up to this turn
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
    ### END SOLUTION
