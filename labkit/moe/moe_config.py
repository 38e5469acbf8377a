"""The sizes of a mixture of experts, and how its tokens are routed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from labkit import arguments
from labkit.gpt_config import GPTConfig

RouterName = Literal["top_k", "bias_balanced", "expert_choice"]
Weights = Literal["of_chosen", "of_all"]


@dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """The layer of experts that replaces each MLP of a GPT. Bad sizes: TypeError, ValueError."""

    num_experts: int = 4
    top_k: int = 2
    """Experts of a token; with expert choice, of a token on average."""
    expert_ffn: int | None = None
    """F of one expert; None: as the GPT's MLP."""
    router: RouterName = "top_k"
    weights: Weights = "of_chosen"
    """"of_chosen": the k weights add up to 1 (GShard, Mixtral). "of_all": the softmax over all
    experts as it is (Switch). Expert choice has the latter always."""
    capacity_factor: float | None = None
    """None: dropless. Else an expert takes factor * k * N / E choices of a group of N tokens."""
    balance_coefficient: float = 0.01
    """Of the load-balancing loss; Switch's."""
    z_coefficient: float = 0.001
    """Of the z-loss; ST-MoE's."""
    bias_rate: float = 0.001
    """What a bias moves in a step, where the router is "bias_balanced"; DeepSeek-V3's."""

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
            check_it_learns(self.num_experts, self.top_k, self.weights)
        check_factor(self.capacity_factor)
        for name in ("balance_coefficient", "z_coefficient", "bias_rate"):
            allowed = "0 or more; 0 turns it off"
            arguments.number(name, getattr(self, name), allowed, least=0, below=math.inf)

    def of_expert(self, config: GPTConfig) -> GPTConfig:
        """The config whose MLP is one expert."""
        return config if self.expert_ffn is None else replace(config, ffn=self.expert_ffn)


def check_choices(num_experts: int, top_k: int) -> None:
    """TypeError or ValueError unless a token can choose so many of so many experts."""
    arguments.whole("num_experts", num_experts, "1 or more")
    allowed = f"1 to num_experts={num_experts}, the experts of a token"
    arguments.whole("top_k", top_k, allowed, most=num_experts)


def check_it_learns(num_experts: int, top_k: int, weights: Weights) -> None:
    """ValueError where a token's weight is 1 whatever the router says: no gradient comes of it."""
    if weights == "of_chosen" and top_k == 1 < num_experts:
        raise ValueError(
            "top_k=1 with weights='of_chosen': the only weight is 1, whatever the router says, "
            "and it never learns; give weights='of_all', as Switch does, or top_k=2"
        )


def check_factor(capacity_factor: float | None) -> None:
    """TypeError or ValueError for what is no capacity factor; None is one: nothing is dropped."""
    if capacity_factor is not None:
        allowed = "above 0, such as 1.25; None drops nothing"
        arguments.number("capacity_factor", capacity_factor, allowed, above=0, below=math.inf)
