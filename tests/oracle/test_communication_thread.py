"""The communication thread: what travels in the background, for as many wrappers as one likes."""

import os
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit import run
from labkit.collectives import ring_all_reduce
from labkit.data_parallel import DDP, BackgroundAllReduce
from labkit.zero import FullyShardedModule, Zero2Optimizer


def step_of_each(world, module):
    """One model after the other, and each is dropped."""
    DDP(module(), world, BackgroundAllReduce(ring_all_reduce, world))(
        torch.ones(2, 3)
    ).sum().backward()
    plain = module()
    Zero2Optimizer(plain.parameters(), torch.optim.SGD, world, lr=0.1)
    plain(torch.ones(2, 3)).sum().backward()
    FullyShardedModule(module(), world)(torch.ones(2, 3)).sum().backward()


def count_what_stays(world):
    def module():
        return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))

    step_of_each(world, module)
    open_before, threads_before = len(os.listdir("/dev/fd")), threading.active_count()
    for _ in range(4):
        step_of_each(world, module)
    return len(os.listdir("/dev/fd")) - open_before, threading.active_count() - threads_before


def test_wrapping_more_models_opens_no_more_threads_or_sockets():
    assert run(count_what_stays, 2).values == [(0, 0)] * 2


def two_at_a_time(world):
    """Two sharded models share the thread; their backward passes run into each other."""
    torch.manual_seed(0)
    models = [FullyShardedModule(nn.Linear(3, 3), world) for _ in range(2)]
    loss = sum(model(torch.ones(2, 3)).square().sum() for model in models)
    loss.backward()
    return [
        sum(p.grad.abs().sum().item() for p in model.parameters() if p.numel()) for model in models
    ]


def test_models_that_share_the_thread_get_their_own_gradients():
    torch.manual_seed(0)
    modules = [nn.Linear(3, 3) for _ in range(2)]
    sum(module(torch.ones(2, 3)).square().sum() for module in modules).backward()
    expected = [sum(p.grad.abs().sum().item() for p in module.parameters()) for module in modules]
    by_rank = run(two_at_a_time, 3).values
    assert [sum(shares) for shares in zip(*by_rank, strict=True)] == pytest.approx(expected)


def step(world):
    model = FullyShardedModule(nn.Linear(3, 3), world)
    loss = model(torch.ones(2, 3)).sum()  # forward
    loss.backward()  # backward


def test_messages_of_the_thread_are_attributed_to_the_callers_line():
    lines = Path(__file__).read_text().splitlines()
    line_of = {line.split("  # ")[-1]: number for number, line in enumerate(lines, 1)}
    for timeline in run(step, 2).timeline:
        sends = [each for each in timeline.operations if each.kind == "send"]
        assert {each.origin.line for each in sends} == {line_of["forward"], line_of["backward"]}
        assert {each.origin.file for each in sends} == {__file__}
