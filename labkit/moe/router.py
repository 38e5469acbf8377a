"""Routers: tokens choose experts, or experts choose tokens; and what keeps the load even.

TopKRouter: every token chooses its k experts.

    x_ND -> logits_NE -> softmax over E -> the k largest -> weights -> those that fit

The weights, a named choice:

    "of_all"       p_e as it is (Switch): they add up to less than 1, and a token that no expert
                   suits gets a small answer
    "of_chosen"    p_e over the sum of the chosen (GShard, Mixtral): they add up to 1. The same as
                   a softmax over the k chosen logits.

A dropped choice keeps its weight to itself: the others are not made larger, and the token gets
that much less. Choosing has no gradient: the router learns through the weights. With k = 1 and
"of_chosen" the only weight is 1, and it learns nothing: refused. Logits and softmax are computed in
float32 at least, whatever the model's dtype: exp turns a small rounding error of a logit into a
large one of a weight (Switch, section 2.4).

ExpertChoiceRouter: every expert takes the tokens that suit it best.

    TopKRouter            each row of p_NE chooses k columns      experts may be uneven, tokens not
    ExpertChoiceRouter    each column chooses k N/E rows          tokens may be uneven, experts not

Balanced by construction: no loss, no capacity, no straggler. A token may be taken by many experts,
or by none. Whether a token is taken depends on all tokens of its group, also on later ones of its
own sequence. A causal model trained like this has seen what it will not have when it generates word
by word, and its loss is that much too good. It suits encoders. The group is a rank's tokens, as for
capacities (routing.py). The paper's capacity factor c is top_k here: experts per token, on average.

BiasBalancedRouter: a bias that makes a busy expert less likely to be chosen.

    chosen by     p_e + b_e                                 no gradient flows here anyway
    weighed by    p_e                                       the answer does not depend on b
    after a step  b_e += rate * sign(mean load - load_e)    each by the same amount, however uneven

The load is that of the whole batch, over all ranks, so that b is the same everywhere: it is a
buffer, and travels in the state_dict.

Auxiliary losses balance instead by a gradient on the router's weights, against the task's own:

    balance    E * sum over e of f_e P_e      f_e: share of the choices that went to expert e
                                              P_e: mean probability of expert e
    z          mean over tokens of (log sum over e of exp(logit_e))^2     keeps logits small

Balanced, f_e = P_e = 1/E, the first is 1, whatever E and k (where f counts choices per token it is
k: Mixtral's library code); all tokens to one expert, with certainty: E. It counts choices before
any is dropped. f has no gradient, so the loss pushes each P_e down in proportion to f_e.

Over ranks the balance loss is not a mean over tokens, since f and P are multiplied. The mean of the
ranks' own losses demands balance within each rank; the loss of the whole batch demands it of the
batch only. Given f, the loss is linear in P: so each rank takes f of all ranks, an all-reduce of E
counts, and the sum of its own p over all ranks' tokens. These parts add up to the loss of the whole
batch, gradients included.

Papers: Switch, arXiv:2101.03961, equations 4-6; GShard, arXiv:2006.16668; Mixtral,
arXiv:2401.04088, section 2.1; Zhou et al., "Mixture-of-Experts with Expert Choice Routing",
arXiv:2202.09368, section 3.2; Wang et al., "Auxiliary-Loss-Free Load Balancing", arXiv:2408.15664,
and DeepSeek-V3, arXiv:2412.19437, section 2.1.2, where p is a sigmoid of each logit (here it is the
softmax); ST-MoE, arXiv:2202.08906, equation 5; on the batch that f is taken over: Qiu et al.,
arXiv:2501.11873.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.moe.routing import (
    Routing,
    Weights,
    check_choices,
    check_factor,
    check_router_is_trained,
    checked_groups,
    counts_of,
    expert_capacity,
    within_group_capacities,
)


class Router(nn.Module):
    """Scores of tokens for experts: the part that all routers share. gate.weight: (E, D)."""

    def __init__(self, hidden: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        check_choices(num_experts, top_k)
        self.top_k = top_k
        self.gate = nn.Linear(hidden, num_experts, bias=False)

    @property
    def num_experts(self) -> int:
        """E."""
        return self.gate.out_features

    def scores(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits_NE and their softmax over E, in float32 or wider. ValueError for another
        shape."""
        if x_ND.dim() != 2 or x_ND.shape[1] != self.gate.in_features:
            raise ValueError(
                f"x_ND of shape {tuple(x_ND.shape)}: give (tokens, {self.gate.in_features}); "
                "flatten(0, 1) makes one of (batch, time, features)"
            )
        wide = torch.promote_types(x_ND.dtype, torch.float32)
        with torch.autocast(x_ND.device.type, enabled=False):  # it would compute in 16 bits
            logits_NE = F.linear(x_ND.to(wide), self.gate.weight.to(wide))
            return logits_NE, logits_NE.softmax(dim=1)


class TopKRouter(Router):
    """x_ND -> Routing: each token goes to the k experts of its highest probability.

    capacity_factor: None drops nothing, see routing.py. TypeError or ValueError for sizes that
    cannot be.
    """

    def __init__(
        self,
        hidden: int,
        num_experts: int,
        top_k: int,
        *,
        weights: Weights = "of_chosen",
        capacity_factor: float | None = None,
    ) -> None:
        super().__init__(hidden, num_experts, top_k)
        if weights not in ("of_chosen", "of_all"):
            raise ValueError(f"weights={weights!r}: give 'of_chosen' or 'of_all'")
        check_router_is_trained(num_experts, top_k, weights)
        check_factor(capacity_factor)
        self.weights, self.capacity_factor = weights, capacity_factor

    def forward(self, x_ND: Tensor, group_tokens: Sequence[int] | None = None) -> Routing:
        """Route N tokens. group_tokens: the groups that have capacities of their own, in order."""
        logits_NE, probs_NE = self.scores(x_ND)
        experts_Nk = chosen_experts(self.preference(probs_NE), self.top_k)
        weights_Nk = chosen_weights(logits_NE, probs_NE, experts_Nk, self.weights)
        kept_Nk = within_group_capacities(
            experts_Nk, self.num_experts, self.capacity_factor, group_tokens
        )
        tokens_Nk = torch.arange(len(x_ND), device=x_ND.device)[:, None].expand_as(experts_Nk)
        # On a GPU the host waits here to learn how many there are; without a capacity it knows.
        kept_A = None if self.capacity_factor is None else kept_Nk.flatten().nonzero()[:, 0]

        def assigned(of_Nk: Tensor) -> Tensor:
            return of_Nk.flatten() if kept_A is None else of_Nk.flatten().index_select(0, kept_A)

        return Routing(
            logits_NE,
            probs_NE,
            token_A=assigned(tokens_Nk),
            expert_A=assigned(experts_Nk),
            weight_A=assigned(weights_Nk).to(x_ND.dtype),
            chosen_E=counts_of(experts_Nk, self.num_experts),
        )

    def preference(self, probs_NE: Tensor) -> Tensor:
        """Return the scores that choose experts; they do not weigh the outputs."""
        return probs_NE.detach()


def chosen_experts(preference_NE: Tensor, top_k: int) -> Tensor:
    """Return experts_Nk, the most preferred first; of equals the one with the lower number.

    torch.topk leaves it open which of equals it takes, and ranks could part there.
    """
    return preference_NE.argsort(dim=1, descending=True, stable=True)[:, :top_k]


def chosen_weights(
    logits_NE: Tensor, probs_NE: Tensor, experts_Nk: Tensor, weights: Weights
) -> Tensor:
    """Return weights_Nk of the chosen experts, by one of the two conventions above."""
    if weights == "of_all":
        return probs_NE.gather(1, experts_Nk)
    return logits_NE.gather(1, experts_Nk).softmax(dim=1)


class ExpertChoiceRouter(Router):
    """x_ND -> Routing: each expert takes the ceil(k N/E) tokens of its highest probability.

    A token is weighed by its p_e, the softmax over all experts as it is.
    """

    def forward(self, x_ND: Tensor, group_tokens: Sequence[int] | None = None) -> Routing:
        """Route N tokens. group_tokens: how many tokens each group has that experts choose from."""
        logits_NE, probs_NE = self.scores(x_ND)
        token_A, expert_A = self._taken(probs_NE.detach(), group_tokens)
        return Routing(
            logits_NE,
            probs_NE,
            token_A,
            expert_A,
            weight_A=probs_NE[token_A, expert_A].to(x_ND.dtype),
            chosen_E=counts_of(expert_A, self.num_experts),
        )

    def _taken(self, probs_NE: Tensor, group_tokens: Sequence[int] | None) -> tuple[Tensor, Tensor]:
        tokens, before = [], 0
        for of_group in probs_NE.split(checked_groups(group_tokens, len(probs_NE))):
            num_tokens = len(of_group)
            taken = min(num_tokens, expert_capacity(num_tokens, self.num_experts, self.top_k, 1.0))
            # on equal scores the earlier token first
            order_EN = of_group.T.argsort(dim=1, descending=True, stable=True)
            tokens.append(before + order_EN[:, :taken])
            before += num_tokens
        token_EC = torch.cat(tokens, dim=1)
        experts_E1 = torch.arange(self.num_experts, device=probs_NE.device)[:, None]
        return token_EC.flatten(), experts_E1.expand_as(token_EC).flatten()


class BiasBalancedRouter(TopKRouter):
    """A TopKRouter that chooses by p + bias and weighs by p. Call `rebalance` after each step."""

    bias_E: Tensor

    def __init__(
        self,
        hidden: int,
        num_experts: int,
        top_k: int,
        *,
        rate: float = 0.001,
        weights: Weights = "of_chosen",
        capacity_factor: float | None = None,
    ) -> None:
        """rate: what a bias moves in a step. TypeError or ValueError as TopKRouter."""
        super().__init__(
            hidden, num_experts, top_k, weights=weights, capacity_factor=capacity_factor
        )
        self.rate = rate
        self.register_buffer("bias_E", torch.zeros(num_experts))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BiasBalancedRouter:
        """Devices change, the dtype stays: in bfloat16 a rate of 0.001 is lost beside a bias of 1,
        and two biases that differ by it are equal."""
        bias_E = self.bias_E
        super()._apply(fn, recurse)
        self.bias_E = bias_E.to(self.bias_E.device)
        return self

    def preference(self, probs_NE: Tensor) -> Tensor:
        """Return p + b, the scores plus the biases."""
        return probs_NE.detach() + self.bias_E

    @torch.no_grad()
    def rebalance(self, chosen_E: Tensor) -> None:
        """Move each bias by `rate`, against its expert's load of this step.

        chosen_E: choices of each expert over the whole batch, all ranks', those dropped included.
        """
        load_E = chosen_E.to(self.bias_E)
        self.bias_E += self.rate * torch.sign(load_E.mean() - load_E)


def load_balancing_loss(
    routing: Routing, chosen_E: Tensor | None = None, num_tokens: int | None = None
) -> Tensor:
    """Return E * sum f_e P_e of these tokens, (); or their part of it in a larger batch.

    chosen_E: choices of each expert in the whole batch; num_tokens: its tokens. None: these are
    all. Without tokens: 0.
    """
    chosen_E = routing.chosen_E if chosen_E is None else chosen_E
    P_E = routing.probs_NE.sum(0) / _at_least_one(routing, num_tokens)
    f_E = chosen_E.to(P_E.dtype) / chosen_E.sum().clamp(min=1)  # int / int would be float32
    return routing.num_experts * (f_E * P_E).sum()


def z_loss(routing: Routing, num_tokens: int | None = None) -> Tensor:
    """Return the mean squared log-sum-exp of these tokens, (); or their part in a larger batch.

    It keeps logits small, whose rounding errors grow with them. num_tokens: as above.
    """
    z_N = torch.logsumexp(routing.logits_NE, dim=1)
    return z_N.square().sum() / _at_least_one(routing, num_tokens)


def _at_least_one(routing: Routing, num_tokens: int | None) -> int:
    return max(1, routing.num_tokens if num_tokens is None else num_tokens)
