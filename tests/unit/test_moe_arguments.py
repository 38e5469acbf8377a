"""Mixtures of experts and their routers refuse bad arguments by name, with a reason."""

import pytest
import torch

from labkit import moe
from labkit.model import GPTConfig
from labkit.moe import MoEConfig

CONFIG = GPTConfig(context=7, num_layers=1, hidden=16, num_heads=2)
ROUTER = moe.TopKRouter(16, 4, 2)
X_ND = torch.zeros(3, 16)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ROUTER(X_ND[None]), r"x_ND of shape \(1, 3, 16\): give \(tokens, 16\)"),
        (lambda: ROUTER(torch.zeros(3, 8)), r"x_ND of shape \(3, 8\): give \(tokens, 16\)"),
        (lambda: moe.ExpertChoiceRouter(16, 4, 2)(X_ND[None]), r"x_ND of shape \(1, 3, 16\)"),
        (lambda: moe.MoE(CONFIG, MoEConfig())(X_ND), r"x_ND of shape \(48,\)"),
        (lambda: MoEConfig(top_k=1), "top_k=1 with weights='of_chosen'"),
        (lambda: moe.MoEGPT(CONFIG, MoEConfig())(X_ND), "tokens are torch.float32"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_one_choice_per_token_is_allowed_if_its_weight_can_differ_from_1():
    for fine in (
        {"weights": "of_all"},
        {"router": "expert_choice"},
        {"num_experts": 1},
    ):
        assert MoEConfig(top_k=1, **fine).top_k == 1
    assert moe.expert_capacity(0, 4, 2, 1.25) == 0, "a rank may have no tokens"
