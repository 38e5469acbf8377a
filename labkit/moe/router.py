"""TopKRouter: every token chooses its k experts.

    x_ND -> logits_NE -> softmax over E -> the k largest -> weights -> those that fit

The weights, a named choice:

    "of_all"       p_e as it is (Switch): they add up to less than 1, and a token that no expert
                   suits gets a small answer
    "of_chosen"    p_e over the sum of the chosen (GShard, Mixtral): they add up to 1. The same as
                   a softmax over the k chosen logits.

A dropped choice keeps its weight to itself: the others are not made larger, and the token gets
that much less.

Choosing has no gradient. What the router learns, it learns through the weights; with k = 1 and
"of_chosen" the only weight is 1, and it learns nothing: refused.

Logits and softmax are computed in float32 at least, whatever the model's dtype: exp turns a small
rounding error of a logit into a large one of a weight (Switch, section 2.4).
Papers: Switch, arXiv:2101.03961; GShard, arXiv:2006.16668; Mixtral, arXiv:2401.04088, section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit import arguments
from labkit.moe.capacity import within_group_capacities
from labkit.moe.moe_config import Weights, check_choices, check_factor, check_it_learns
from labkit.moe.routing import Routing, counts_of


class Router(nn.Module):
    """Scores of tokens for experts: the part that all routers share. gate.weight: (E, D)."""

    def __init__(self, hidden: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        arguments.whole("hidden", hidden, "D, the features of a token, 1 or more")
        check_choices(num_experts, top_k)
        self.top_k = top_k
        self.gate = nn.Linear(hidden, num_experts, bias=False)

    @property
    def num_experts(self) -> int:
        """E."""
        return self.gate.out_features

    def scores(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """logits_NE and their softmax over E, in float32 or wider. ValueError for another shape."""
        arguments.instance("x_ND", x_ND, Tensor, "give a tensor of tokens, (N, D)")
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

    capacity_factor: None drops nothing, see capacity.py. TypeError or ValueError for sizes that
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
        check_it_learns(num_experts, top_k, weights)
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
        """What the choice is made by; not what it weighs."""
        return probs_NE.detach()


def chosen_experts(preference_NE: Tensor, top_k: int) -> Tensor:
    """experts_Nk, the most preferred first; of equals the one with the lower number.

    torch.topk leaves it open which of equals it takes, and ranks could part there.
    """
    return preference_NE.argsort(dim=1, descending=True, stable=True)[:, :top_k]


def chosen_weights(
    logits_NE: Tensor, probs_NE: Tensor, experts_Nk: Tensor, weights: Weights
) -> Tensor:
    """weights_Nk of the chosen experts, by one of the two conventions above."""
    if weights == "of_all":
        return probs_NE.gather(1, experts_Nk)
    return logits_NE.gather(1, experts_Nk).softmax(dim=1)
