"""Auxiliary losses of a router: balance, and logits that stay small.

    balance    E * sum over e of f_e P_e      f_e: share of the choices that went to expert e
                                              P_e: mean probability of expert e
    z          mean over tokens of (log sum over e of exp(logit_e))^2

Balanced, f_e = P_e = 1/E, the first is 1, whatever E and k (where f counts choices per token it is
k: Mixtral's library code); all tokens to one expert, with certainty: E. It counts choices before
any is dropped. f has no gradient, so the loss pushes each P_e down in proportion to f_e.

Over ranks: the loss is not a mean over tokens, since f and P are multiplied. The mean of the ranks'
own losses demands balance within each rank; the loss of the whole batch demands it of the batch
only, and a rank may be uneven (its texts are of one kind, say). Given f, the loss is linear in P:
so each rank takes f of all ranks, an all-reduce of E counts, and the sum of its own p over all
ranks' tokens. These parts add up to the loss of the whole batch, gradients included.

Papers: Switch, arXiv:2101.03961, equations 4-6; ST-MoE, arXiv:2202.08906, equation 5; on the
batch that f is taken over: Qiu et al., arXiv:2501.11873.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit import arguments
from labkit.moe.routing import Routing


def load_balancing_loss(
    routing: Routing, chosen_E: Tensor | None = None, num_tokens: int | None = None
) -> Tensor:
    """E * sum f_e P_e of these tokens, (); or their part of it in a larger batch.

    chosen_E: choices of each expert in the whole batch; num_tokens: its tokens. None: these are
    all. Without tokens: 0.
    """
    arguments.instance("routing", routing, Routing, "give a Routing, as a layer returns it")
    chosen_E = routing.chosen_E if chosen_E is None else chosen_E
    P_E = routing.probs_NE.sum(0) / _at_least_one(routing, num_tokens)
    f_E = chosen_E.to(P_E.dtype) / chosen_E.sum().clamp(min=1)  # int / int would be float32
    return routing.num_experts * (f_E * P_E).sum()


def z_loss(routing: Routing, num_tokens: int | None = None) -> Tensor:
    """Mean of the squared log-sum-exp of these tokens, (); or their part of it in a larger batch.

    It keeps logits small, whose rounding errors grow with them. num_tokens: as above.
    """
    arguments.instance("routing", routing, Routing, "give a Routing, as a layer returns it")
    z_N = torch.logsumexp(routing.logits_NE, dim=1)
    return z_N.square().sum() / _at_least_one(routing, num_tokens)


def _at_least_one(routing: Routing, num_tokens: int | None) -> int:
    return max(1, routing.num_tokens if num_tokens is None else num_tokens)
