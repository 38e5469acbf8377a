"""What a pipeline cannot perform is refused before anything is sent, by name."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import run
from labkit.model import GPTConfig
from labkit.pipeline import Pipeline, PipelineGPT, one_f_one_b, parse, plan


def attempt(world, make):
    """The error that every rank gets."""
    try:
        make(world)
    except (ValueError, TypeError) as why:
        return f"{type(why).__name__}: {why}"
    return "nothing"


def pipeline(world, module=None, loss=F.mse_loss, schedule=None):
    schedule = schedule or plan(one_f_one_b, world.size, 2)
    return Pipeline(schedule, {world.rank: module or nn.Linear(3, 3)}, loss, world)


X = torch.ones(4, 3)
WRONG = {
    "other stages": (
        lambda w: Pipeline(plan(one_f_one_b, 1, 2), {3: nn.Linear(3, 3)}, F.mse_loss, w),
        r"stages=\[3\] on rank 0, which holds \[0\]",
    ),
    "no dict": (
        lambda w: Pipeline(plan(one_f_one_b, 1, 2), nn.Linear(3, 3), F.mse_loss, w),
        "stages=Linear on rank 0",
    ),
    "other ranks": (
        lambda w: pipeline(w, schedule=plan(one_f_one_b, 3, 2)),
        "a schedule of 3 ranks for a group of 1",
    ),
    "no step": (lambda w: pipeline(w, schedule=parse("F0 B0 B0")), "B0 of stage 0 is there twice"),
    "few rows": (
        lambda w: pipeline(w).step(X[:1], X[:1]),
        "a batch of 1 rows cannot be cut into 2 microbatches",
    ),
    "unequal rows": (lambda w: pipeline(w).step(X, X[:3]), "4 rows of inputs and 3 of targets"),
    "no tensor": (lambda w: pipeline(w).step([1], X), "inputs=list: give a tensor"),
    "no tensor out": (
        lambda w: pipeline(w, Pair()).step(X, X),
        "stage 0 gave tuple: a stage gives one tensor",
    ),
    "rows lost": (
        lambda w: pipeline(w, nn.Sequential(nn.Linear(3, 3), nn.Flatten(0))).step(X, X),
        r"stage 0 took 2 rows and gave \(6,\)",
    ),
    "frozen": (
        lambda w: pipeline(w, nn.Linear(3, 3).requires_grad_(False)).step(X, X),
        "without a gradient",
    ),
    "loss of many": (
        lambda w: pipeline(w, loss=lambda y, t: y - t).step(X, X),
        r"loss gave \(2, 3\)",
    ),
    "too many stages": (
        lambda w: PipelineGPT(GPTConfig(num_layers=2), plan(one_f_one_b, 5, 2), 0),
        "num_stages=5 for 4 layers",
    ),
    "no such rank": (
        lambda w: PipelineGPT(GPTConfig(num_layers=2), plan(one_f_one_b, 2, 2), 2),
        "rank=2: 0 to 1",
    ),
    "a layer left out": (
        lambda w: PipelineGPT(
            GPTConfig(num_layers=2), plan(one_f_one_b, 2, 2), 0, layers=[range(2), range(3, 4)]
        ),
        "layers=.* for 2 stages of layers 0 .embedding. to 3",
    ),
}


class Pair(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize("case", WRONG)
def test_the_error_names_what_is_wrong(case):
    make, reason = WRONG[case]
    (told,) = run(attempt, 1, (make,)).values
    assert re.search(reason, told), told


def tokens_to_features(world):
    stage = nn.Linear(3, 3) if world.rank else nn.Embedding(4, 3)
    tokens, targets = torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 1, 3)
    return pipeline(world, stage).step(tokens, targets)


def test_tokens_in_and_features_out_need_no_declaration_of_shapes():
    values = run(tokens_to_features, 2).values
    assert values[0].loss is None
    assert values[1].loss > 0
