"""The two auxiliary losses of a router.

An interviewer asks: "Without an auxiliary loss your router sends every token to two experts. Which
loss do you add? Counts have no gradient: how does a gradient reach the router? What is the loss in
perfect balance, and what is it if all tokens go to one expert? Do dropped choices count? What is
the z-loss for?"

Write `load_balancing_loss(logits_TE, expert_TK, kept_TK)`: the load-balancing loss of the Switch
Transformer for k choices, and the router's z-loss.

Contract
    logits_TE   T tokens, E experts, at least one of each; floating point. They need a gradient.
                Logits of 1,000 and -1,000 do not overflow, not even both for one token
    expert_TK   int64: the k experts of each token. The router chose them, maybe with a bias: they
                need not be those with the largest logits
    kept_TK     bool: False where the choice was dropped, because its expert was full
                The three arguments stay unchanged
    returns     (balance, z), two tensors of shape (), computed in logits_TE's dtype. Each has a
                graph, so that it can be differentiated by logits_TE
        balance E * sum over e of f_e P_e. f_e is the share of all T k choices that are for expert
                e, dropped choices included: all f add up to 1. P_e is the mean of p_e over all
                tokens, where p is the softmax over all experts. The gradient comes through P; f is
                a constant
        z       the mean over tokens of (log of the sum over experts of exp(logit)) squared
    Not allowed: labkit.moe
"""

import torch


def load_balancing_loss(
    logits_TE: torch.Tensor, expert_TK: torch.Tensor, kept_TK: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return balance and z, without their coefficients.

    Papers: Switch Transformer, arXiv:2101.03961, section 2.2; ST-MoE, arXiv:2202.08906, for z.
    """
    raise NotImplementedError("not attempted yet: your code replaces this line")
