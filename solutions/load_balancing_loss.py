"""The two auxiliary losses of a router.

An interviewer asks: "Without a push your router sends everything to two experts. Which loss do you
add? Counts have no gradient: how does it reach the router? What is its value in perfect balance,
and what if all goes to one expert? Do dropped tokens count? And what does the z-loss do, and in
which dtype?"

Write `load_balancing_loss(logits_TE, expert_TK, kept_TK)`: the load-balancing loss of the Switch
Transformer, for k choices, and the router's z-loss.

Contract
    logits_TE   T tokens, E experts, one of each at least, floating point, of any size: 1,000 and
                -1,000 must not overflow, both in one token's row either. They need a gradient
    expert_TK   int64: the k experts of each token, as the router has chosen them (with a bias,
                perhaps: they need not be those with the largest logits)
    kept_TK     booleans: where the choice found a slot at its expert; elsewhere it was dropped
                All three are left as they are
    returns     (balance, z), each a tensor of shape (), of logits_TE's dtype, with a graph:
        balance E * sum over e of f_e P_e. f_e: the share of all T k choices that are for expert e,
                dropped ones included, so that all f add up to 1. P_e: the mean over all tokens of
                p_e, with p = softmax over all experts. The gradient goes through P; f is a number
        z       the mean over tokens of (log of the sum over experts of exp(logit)) squared
    Not allowed: labkit's own losses
"""

import torch


def load_balancing_loss(
    logits_TE: torch.Tensor, expert_TK: torch.Tensor, kept_TK: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """balance and z, neither with its coefficient.

    Papers: Switch Transformer, arXiv:2101.03961, section 2.2; ST-MoE, arXiv:2202.08906, for z.
    """
    ### BEGIN SOLUTION
    num_experts = logits_TE.shape[1]
    # What the router wanted: what was dropped is what the loss is there for.
    counts_E = torch.bincount(expert_TK.flatten(), minlength=num_experts).to(logits_TE)
    f_E = counts_E / expert_TK.numel()
    p_E = torch.softmax(logits_TE, dim=1).mean(dim=0)
    balance = num_experts * (f_E * p_E).sum()
    z = torch.logsumexp(logits_TE, dim=1).square().mean()
    return balance, z
    ### END SOLUTION
