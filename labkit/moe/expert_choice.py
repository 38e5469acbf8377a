"""Expert choice: every expert takes the tokens that suit it best.

    TopKRouter            each row of p_NE chooses k columns      experts may be uneven, tokens not
    ExpertChoiceRouter    each column chooses k N/E rows          tokens may be uneven, experts not

Balanced by construction: no loss, no capacity, no straggler. A token may be taken by many experts,
or by none.

It looks at the future: whether a token is taken depends on all tokens of its group, also on later
ones of its own sequence. A causal model trained like this has seen what it will not have when it
generates word by word, and its loss is that much too good. It suits encoders.

The group that an expert chooses from is a rank's tokens, as for capacities (capacity.py).
Paper: Zhou et al., "Mixture-of-Experts with Expert Choice Routing", arXiv:2202.09368, section 3.2,
whose capacity factor c is top_k here: experts per token, on average.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.moe.capacity import checked_groups, expert_capacity
from labkit.moe.router import Router
from labkit.moe.routing import Routing, counts_of


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
            # of equals the earlier token
            order_EN = of_group.T.argsort(dim=1, descending=True, stable=True)
            tokens.append(before + order_EN[:, :taken])
            before += num_tokens
        token_EC = torch.cat(tokens, dim=1)
        experts_E1 = torch.arange(self.num_experts, device=probs_NE.device)[:, None]
        return token_EC.flatten(), experts_E1.expand_as(token_EC).flatten()
