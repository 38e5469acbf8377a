"""A schedule that a pipeline cannot perform is refused by name, before anything is sent."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import run
from labkit.model import GPTConfig
from labkit.pipeline import (
    Pipeline,
    PipelineGPT,
    Schedule,
    WeightedLoss,
    gpipe,
    one_f_one_b,
    parse,
    plan,
)


def attempt(world, make):
    """The error that every rank gets."""
    try:
        make(world)
    except (ValueError, TypeError) as why:
        return f"{type(why).__name__}: {why}"
    return "nothing"


def attempt_each(world, calls):
    return [attempt(world, make) for make in calls]


def pipeline(world, module=None, loss=F.mse_loss, schedule=None):
    schedule = schedule or plan(one_f_one_b, world.size, 2)
    return Pipeline(schedule, {world.rank: module or nn.Linear(3, 3)}, loss, world)


X = torch.ones(4, 3)
BY_CLASS = partial(F.cross_entropy, weight=torch.tensor([1.0, 2.0, 9.0]))
WRONG = {
    "other stages": (
        lambda w: Pipeline(plan(one_f_one_b, 1, 2), {3: nn.Linear(3, 3)}, F.mse_loss, w),
        r"stages=\[3\] on rank 0, which holds \[0\]",
    ),
    "other ranks": (
        lambda w: pipeline(w, schedule=plan(one_f_one_b, 3, 2)),
        "a schedule of 3 ranks for a group of 1",
    ),
    "no step": (lambda w: pipeline(w, schedule=parse("F0 B0 B0")), "B0 of stage 0 is there twice"),
    "no schedule": (
        lambda w: pipeline(w, schedule=one_f_one_b),
        "TypeError: schedule=<function one_f_one_b .*: give a Schedule",
    ),
    "a schedule of text": (
        lambda w: PipelineGPT(GPTConfig(num_layers=2), Schedule("x", ("F0 B0",), 1, 1), 0),
        r"TypeError: schedule.rows\[0\]='F0 B0': give a tuple of Op",
    ),
    "inputs with a past": (
        lambda w: pipeline(w).step(X.clone().requires_grad_() * 2, X),
        "inputs need a gradient, which a pipeline does not propagate",
    ),
    "loss without gradient": (
        lambda w: pipeline(w, loss=lambda y, t: F.mse_loss(y, t).detach()).step(X, X),
        "loss returned a number that needs no gradient",
    ),
    "few rows": (
        lambda w: pipeline(w).step(X[:1], X[:1]),
        "a batch of 1 rows cannot be cut into 2 microbatches",
    ),
    "unequal rows": (lambda w: pipeline(w).step(X, X[:3]), "4 rows of inputs and 3 of targets"),
    "no tensor out": (
        lambda w: pipeline(w, Pair()).step(X, X),
        "stage 0 returned tuple: a stage returns one tensor",
    ),
    "rows lost": (
        lambda w: pipeline(w, nn.Sequential(nn.Linear(3, 3), nn.Flatten(0))).step(X, X),
        r"stage 0 took 2 rows and returned \(6,\)",
    ),
    "no gradient": (lambda w: pipeline(w, Detached()).step(X, X), "tensor that needs no gradient"),
    "padded, by rows": (
        lambda w: pipeline(w, loss=F.cross_entropy).step(X, torch.tensor([0, -100, 1, 2])),
        r"microbatches of \[2, 2\] rows have \[1, 2\] targets that are not -100",
    ),
    "loss of many": (
        lambda w: pipeline(w, loss=lambda y, t: y - t).step(X, X),
        r"loss returned \(2, 3\)",
    ),
    "a sum": (
        lambda w: pipeline(w, loss=partial(F.mse_loss, reduction="sum")).step(X, 2 * X),
        r"for two microbatches of 2 and 2 rows, .* Give a mean: reduction='mean'",
    ),
    "weights of classes": (
        lambda w: pipeline(w, loss=BY_CLASS).step(X, torch.tensor([0, 1, 2, 2])),
        r"weight\(targets\) is the sum of their weights",
    ),
    "rows compared": (
        lambda w: pipeline(w, loss=lambda y, _: (y @ y.T).logsumexp(1).mean()).step(X, X),
        "compares rows with each other cannot be cut into microbatches",
    ),
    "too many stages": (
        lambda w: PipelineGPT(GPTConfig(num_layers=2), plan(one_f_one_b, 5, 2), 0),
        "num_stages=5: .* there are 4",
    ),
    "a layer left out": (
        lambda w: PipelineGPT(
            GPTConfig(num_layers=2), plan(one_f_one_b, 2, 2), 0, layers=[range(2), range(3, 4)]
        ),
        "layers=.* for 2 stages of layers 0 .embedding. to 3",
    ),
}


class Detached(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)

    def forward(self, x):
        return super().forward(x).detach()


class Pair(nn.Module):
    def forward(self, x):
        return x, x


def test_the_error_names_what_is_wrong():
    (reported,) = run(attempt_each, 1, ([make for make, _ in WRONG.values()],)).values
    for (case, (_, reason)), said in zip(WRONG.items(), reported, strict=True):
        assert re.search(reason, said), (case, said)


def tokens_to_features(world):
    stage = nn.Linear(3, 3) if world.rank else nn.Embedding(4, 3)
    tokens, targets = torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 1, 3)
    return pipeline(world, stage).step(tokens, targets)


def test_tokens_in_and_features_out_need_no_declaration_of_shapes():
    values = run(tokens_to_features, 2).values
    assert values[0].loss is None
    assert values[1].loss > 0


def reversed_on_rank_0(world):
    schedule = plan(gpipe, world.size, 3)
    if world.rank == 0:
        forwards, backwards = schedule.rows[0][:3], schedule.rows[0][3:]
        rows = (forwards + backwards[::-1], *schedule.rows[1:])
        schedule = replace(schedule, rows=rows)
    return attempt(world, lambda w: pipeline(w, schedule=schedule))


def test_ranks_with_different_schedules_are_reported_before_anything_is_sent():
    reported = run(reversed_on_rank_0, 3).values
    assert re.search(r"ranks \[1, 2\] have planned another schedule than rank 0", reported[0])
    assert re.search(r"ranks \[0\] have planned another schedule than rank 2", reported[2])


def tied_on(world, ranks):
    stage = nn.Linear(3, 3)
    tied = stage.weight if world.rank in ranks else None
    schedule = plan(one_f_one_b, world.size, 2)
    make = {world.rank: stage}
    return attempt(world, lambda w: Pipeline(schedule, make, F.mse_loss, w, tied=tied))


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ((0,), "a weight on rank 0 .* none on rank 2"),
        ((1, 2), "none on rank 0 .* a weight on rank 2"),
        ((0, 2), "nothing"),
        ((), "nothing"),
    ],
)
def test_a_weight_is_tied_on_both_ends_or_on_neither(ranks, found):
    assert all(re.search(found, reported) for reported in run(tied_on, 3, args=(ranks,)).values)


def frozen_first(world):
    torch.manual_seed(world.rank)
    stage = nn.Linear(3, 3).requires_grad_(world.rank > 0)
    step = pipeline(world, stage).step(X, X)
    return step.loss, [parameter.grad for parameter in stage.parameters()]


def test_a_first_stage_may_be_frozen():
    (_, none), (loss, grads) = run(frozen_first, 2).values
    assert none == [None, None]
    stages = []
    for rank in range(2):
        torch.manual_seed(rank)
        stages.append(nn.Linear(3, 3))
    expected = F.mse_loss(stages[1](stages[0](X)), X)
    expected.backward()
    assert loss == pytest.approx(expected.item())
    for mine, parameter in zip(grads, stages[1].parameters(), strict=True):
        assert torch.allclose(mine, parameter.grad)


def fails_once(world):
    def loss(y, targets):
        raise KeyError("once")

    made = pipeline(world, loss=loss)
    with pytest.raises(KeyError):
        made.step(X, X)
    with pytest.raises(RuntimeError, match="an earlier step has failed"):
        made.step(X, X)


def test_a_pipeline_refuses_steps_after_a_failed_one():
    run(fails_once, 1)


def test_losses_that_are_means_over_rows_or_random_are_accepted():
    def steps(world):
        generator = torch.Generator().manual_seed(0)
        x, classes = torch.randn(5, 3, generator=generator), torch.tensor([0, 1, 2, 2, 0])
        losses = {
            F.mse_loss: x,
            partial(F.cross_entropy, label_smoothing=0.1): classes,
            WeightedLoss(BY_CLASS, lambda part: BY_CLASS.keywords["weight"][part].sum()): classes,
            lambda y, t: F.mse_loss(F.dropout(y, 0.5), t): x,
            lambda y, t: F.mse_loss(y, t) * torch.inf: x,
        }
        for loss, targets in losses.items():
            torch.manual_seed(0)
            module = nn.Linear(3, 3)
            step = pipeline(world, module, loss).step(x, targets)
            torch.manual_seed(0)
            serial = loss(nn.Linear(3, 3)(x), targets).item()
            yield step.loss, serial

    (found,) = run(lambda world: list(steps(world)), 1).values
    for n in (0, 1, 2):
        assert found[n][0] == pytest.approx(found[n][1])
