"""Routing: which token goes to which expert, with which weight, and which choices are dropped.

Letters of shapes, besides those in model.py:

    N  tokens of a batch, flattened     E  experts            k  choices of a token
    A  assignments: pairs (token, expert) that are computed, N*k of them if none is dropped

    token_A    0    0    1    1    2          token 2 has only one: its second choice was dropped
    expert_A   2    0    2    3    0
    weight_A  .7   .3   .6   .4   .8

MoEConfig has the sizes of a layer of experts, and the choice of a router.

Capacity: how many choices an expert takes.

    capacity = ceil(factor * k * N / E)       N: a group's tokens; balanced experts get k N/E each

Static shapes need a capacity: each expert has a buffer of this many rows, whatever the router
chooses. If the router is uneven, full experts drop choices and the others compute padding.

The group: each rank counts its own tokens and enforces the capacity before anything is sent, so
the limit of an expert is per source rank (GShard's local groups). Whether a token is dropped
depends only on the other tokens of its rank. One group of all tokens would drop other choices.

The order is GShard's: the first choices of all tokens come before any second choice, and earlier
tokens before later ones. So the last tokens of a batch are dropped first.

Papers: GShard, arXiv:2006.16668, section 2.2, algorithm 1; Switch, arXiv:2101.03961, section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from labkit import arguments
from labkit.gpt_config import GPTConfig


@dataclass(frozen=True, eq=False)
class Routing:
    """A router's decision on N tokens. Gradients flow through logits, probs and weights."""

    logits_NE: Tensor = field(repr=False)
    probs_NE: Tensor = field(repr=False)
    """softmax over the experts."""
    token_A: Tensor = field(repr=False)
    expert_A: Tensor = field(repr=False)
    weight_A: Tensor = field(repr=False)
    chosen_E: Tensor
    """How many choices each expert got (int64), including dropped ones."""

    @property
    def num_tokens(self) -> int:
        """N."""
        return self.logits_NE.shape[0]

    @property
    def num_experts(self) -> int:
        """E."""
        return self.logits_NE.shape[1]

    @property
    def kept_E(self) -> Tensor:
        """How many choices of each expert are computed."""
        return counts_of(self.expert_A, self.num_experts)

    @property
    def dropped_E(self) -> Tensor:
        """How many choices of each expert are dropped."""
        return self.chosen_E - self.kept_E

    @property
    def num_dropped(self) -> int:
        """How many choices were dropped because their expert was full.

        A token whose choices are all dropped gets zeros from the layer: only the residual remains.
        """
        return int(self.dropped_E.sum())


def counts_of(experts: Tensor, num_experts: int) -> Tensor:
    """Return how often each of 0 to num_experts - 1 appears, (E,) int64; `experts`: any shape.

    Like torch.bincount, which on a GPU makes the host wait for the largest value.
    """
    flat = experts.flatten()
    return flat.new_zeros(num_experts).scatter_add_(0, flat, torch.ones_like(flat))


RouterName = Literal["top_k", "bias_balanced", "expert_choice"]
Weights = Literal["of_chosen", "of_all"]


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """The layer of experts that replaces each MLP of a GPT. TypeError, ValueError for bad sizes."""

    num_experts: int = 4
    top_k: int = 2
    """How many experts compute a token; with expert choice, on average."""
    expert_ffn: int | None = None
    """F of one expert; None for the F of the GPT's MLP."""
    router: RouterName = "top_k"
    weights: Weights = "of_chosen"
    """"of_chosen": the k weights add up to 1 (GShard, Mixtral). "of_all": the softmax over all
    experts, unchanged (Switch). Expert choice always uses "of_all"."""
    capacity_factor: float | None = None
    """None drops nothing. With a factor an expert takes factor * k * N / E choices per group."""
    balance_coefficient: float = 0.01
    """Coefficient of the load-balancing loss; Switch's value."""
    z_coefficient: float = 0.001
    """Coefficient of the z-loss; ST-MoE's value."""
    bias_rate: float = 0.001
    """Change of a bias in a step of a "bias_balanced" router; DeepSeek-V3's value."""

    def __post_init__(self) -> None:
        check_choices(self.num_experts, self.top_k)
        if self.expert_ffn is not None:
            arguments.whole("expert_ffn", self.expert_ffn, "features inside an expert, 1 or more")
        for name, kind in (("router", RouterName), ("weights", Weights)):
            if getattr(self, name) not in get_args(kind):
                names = ", ".join(get_args(kind))
                raise ValueError(f"{name}={getattr(self, name)!r}: give one of {names}")
        if self.router == "expert_choice" and self.capacity_factor is not None:
            raise ValueError(
                f"capacity_factor={self.capacity_factor}: with expert choice every expert takes "
                "top_k * N / E tokens, and none is dropped; leave it out"
            )
        if self.router != "expert_choice":
            check_router_is_trained(self.num_experts, self.top_k, self.weights)
        check_factor(self.capacity_factor)
        for name in ("balance_coefficient", "z_coefficient", "bias_rate"):
            allowed = "0 or more; 0 turns it off"
            arguments.number(name, getattr(self, name), allowed, least=0, below=math.inf)

    def for_expert(self, config: GPTConfig) -> GPTConfig:
        """Return the config whose MLP is one expert."""
        return config if self.expert_ffn is None else replace(config, ffn=self.expert_ffn)


def check_choices(num_experts: int, top_k: int) -> None:
    """Raise TypeError or ValueError unless a token can choose so many of so many experts."""
    arguments.whole("num_experts", num_experts, "1 or more")
    allowed = f"1 to num_experts={num_experts}, the experts of a token"
    arguments.whole("top_k", top_k, allowed, most=num_experts)


def check_router_is_trained(num_experts: int, top_k: int, weights: Weights) -> None:
    """Raise ValueError if a token's weight is always 1: the router gets no gradient."""
    if weights == "of_chosen" and top_k == 1 < num_experts:
        raise ValueError(
            "top_k=1 with weights='of_chosen': the only weight is 1, whatever the router says, "
            "and it never learns; give weights='of_all', as Switch does, or top_k=2"
        )


def check_factor(capacity_factor: float | None) -> None:
    """Raise TypeError or ValueError for an invalid capacity factor. None drops no choice."""
    if capacity_factor is not None:
        allowed = "above 0, such as 1.25; None drops nothing"
        arguments.number("capacity_factor", capacity_factor, allowed, above=0, below=math.inf)


def expert_capacity(num_tokens: int, num_experts: int, top_k: int, factor: float) -> int:
    """Return how many choices an expert takes from a group of `num_tokens`."""
    # Without the rounding 1.1 * 50, which is a little above 55 in floats, would give 56.
    return math.ceil(round(factor * top_k * num_tokens / num_experts, 9))


def within_capacity(experts_Nk: Tensor, num_experts: int, capacity: int) -> Tensor:
    """Return kept_Nk (bool): true for choices of one group that fit.

    experts_Nk[:, 0] has the first choices.
    """
    in_order = experts_Nk.T.flatten()  # all first choices, then all second ones
    by_expert = in_order.argsort(stable=True)
    counts_E = counts_of(in_order, num_experts)
    starts_E = counts_E.cumsum(0) - counts_E
    place = torch.arange(in_order.numel(), device=in_order.device) - starts_E[in_order[by_expert]]
    kept = torch.empty_like(in_order, dtype=torch.bool)
    kept[by_expert] = place < capacity
    return kept.view(experts_Nk.shape[1], -1).T


def within_group_capacities(
    experts_Nk: Tensor, num_experts: int, factor: float | None, group_tokens: Sequence[int] | None
) -> Tensor:
    """Return kept_Nk of consecutive groups of tokens, each with its own capacity.

    group_tokens: how many tokens each group has; None for one group. factor: None keeps all.
    ValueError unless the groups have N tokens together.
    """
    num_tokens, top_k = experts_Nk.shape
    groups = checked_groups(group_tokens, num_tokens)
    if factor is None:
        return torch.ones_like(experts_Nk, dtype=torch.bool)
    kept = [
        within_capacity(of_group, num_experts, expert_capacity(size, num_experts, top_k, factor))
        for of_group, size in zip(experts_Nk.split(groups), groups, strict=True)
    ]
    return torch.cat(kept)


def checked_groups(group_tokens: Sequence[int] | None, num_tokens: int) -> list[int]:
    """Return the number of tokens of each group; None is one group. ValueError for a wrong sum."""
    asked = "give the number of tokens of each rank, in order"
    groups = [num_tokens] if group_tokens is None else list(group_tokens)
    for each in groups:
        arguments.whole("group_tokens", each, asked, least=0)
    if sum(groups) != num_tokens:
        raise ValueError(
            f"group_tokens={groups} are {sum(groups)} tokens, but there are {num_tokens}; {asked}"
        )
    return groups
