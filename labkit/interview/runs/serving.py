"""Generating for several requests at once with a small GPT, and weights in fewer bits."""

from collections import deque

import torch
from torch import Tensor

from labkit import Group
from labkit.interview.runs.real_run import real_run, run
from labkit.model import GPT, GPTConfig

_CONFIG = GPTConfig(context=128, num_layers=1, hidden=32, num_heads=2, ffn=64)


@real_run
def forward_passes(lengths: tuple[int, ...], slots: int, continuous: bool) -> int:
    """Forward passes until every request has its tokens; each pass has a place for `slots` of them.

    lengths: tokens that each request wants, in the order of arrival, up to 127. Static: the next
    begin when all of a batch have ended; continuous: when a slot is free. Greedy, without a cache.
    """
    return run(_serve, 1, (lengths, slots, continuous)).values[0]


def _serve(world: Group, lengths: tuple[int, ...], slots: int, continuous: bool) -> int:
    model, num_passes = GPT(_CONFIG, 0), 0
    waiting = deque(lengths)
    active: list[tuple[list[int], int]] = []  # tokens so far, and how many are wanted
    while waiting or active:
        if continuous or not active:
            while waiting and len(active) < slots:
                active.append(([0], waiting.popleft()))  # a prompt of one token
        _one_token_each(model, [tokens for tokens, _ in active])
        num_passes += 1
        active = [(tokens, wanted) for tokens, wanted in active if len(tokens) <= wanted]
    return num_passes


@torch.no_grad()
def _one_token_each(model: GPT, sequences: list[list[int]]) -> None:
    """Append the next token to each sequence: one forward pass of all, padded on the right."""
    longest = max(map(len, sequences))
    inputs_BT = torch.tensor([each + [0] * (longest - len(each)) for each in sequences])
    logits_BTV = model(inputs_BT)  # causal: what pads comes after, and is not seen
    for each, logits_TV in zip(sequences, logits_BTV, strict=True):
        each.append(int(logits_TV[len(each) - 1].argmax()))


@real_run
def quantization_error(bits: int, group: int) -> float:
    """Relative error of X W^T where W is rounded to `bits`, each `group` inputs with a scale.

    W: 1024 x 1024 normal numbers, X: 256 rows of them. Symmetric, the scale by the largest value;
    the error is the norm of the difference over the norm of the exact product, both in float32.
    """
    generator = torch.Generator().manual_seed(0)
    weight_OI = torch.randn(1024, 1024, generator=generator)
    x_BI = torch.randn(256, 1024, generator=generator)
    exact_BO = x_BI @ weight_OI.T
    rounded_BO = x_BI @ _rounded(weight_OI, bits, group).T
    return ((rounded_BO - exact_BO).norm() / exact_BO.norm()).item()


def _rounded(weight_OI: Tensor, bits: int, group: int) -> Tensor:
    most = 2 ** (bits - 1) - 1
    groups = weight_OI.unflatten(1, (-1, group))
    scale = groups.abs().amax(-1, keepdim=True) / most
    return ((groups / scale).round().clamp(-most, most) * scale).flatten(1)
