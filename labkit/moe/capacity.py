"""Capacity: how many choices an expert takes, and who is turned away.

    capacity = ceil(factor * k * N / E)       N tokens of a group, of which balance gives k N/E

Static shapes want it: a buffer of so many rows for each expert, whatever the router says. The
price is choices dropped where the router is uneven, and rows of padding where it is too.

The group: each rank counts its own tokens and enforces the capacity before anything is sent, so
the limit of an expert is per source rank (GShard's local groups). Whether a token is dropped
depends on its rank's other tokens only, and other ranks are not asked. Over one group of all
tokens other choices would be dropped.

The order, GShard's: first choices of all tokens before second choices of any, and among equals
earlier tokens first. So what comes last in a batch is dropped first.

Papers: GShard, arXiv:2006.16668, section 2.2, algorithm 1; Switch, arXiv:2101.03961, section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit import arguments
from labkit.moe.moe_config import check_choices
from labkit.moe.routing import counts_of


def expert_capacity(num_tokens: int, num_experts: int, top_k: int, factor: float) -> int:
    """Choices that an expert takes from a group of `num_tokens`.

    TypeError or ValueError for counts that cannot be, and a factor that is not above 0.
    """
    arguments.whole("num_tokens", num_tokens, "0 or more", least=0)
    check_choices(num_experts, top_k)
    arguments.number("factor", factor, "above 0, such as 1.25", above=0, below=math.inf)
    # 1.1 * 50 is a little above 55 in floats, and would be 56.
    return math.ceil(round(factor * top_k * num_tokens / num_experts, 9))


def within_capacity(experts_Nk: Tensor, num_experts: int, capacity: int) -> Tensor:
    """kept_Nk (bool): which choices of one group of tokens fit. experts_Nk[:, 0]: first choices."""
    arguments.whole("capacity", capacity, "choices that an expert takes, 0 or more", least=0)
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
    """kept_Nk of several groups of tokens that follow each other, each with a capacity of its own.

    group_tokens: how many tokens each has; None: all are one group. factor: None keeps all.
    ValueError for groups that are not N tokens together.
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
    """Tokens of each group; None: all in one. ValueError where they are not all tokens."""
    asked = "give the number of tokens of each rank, in order"
    if group_tokens is not None:
        arguments.instance("group_tokens", group_tokens, Sequence, asked)
    groups = [num_tokens] if group_tokens is None else list(group_tokens)
    for each in groups:
        arguments.whole("group_tokens", each, asked, least=0)
    if sum(groups) != num_tokens:
        raise ValueError(
            f"group_tokens={groups} are {sum(groups)} tokens, and there are {num_tokens}; {asked}"
        )
    return groups
