"""PipeDream against a serial run that keeps every version of every stage's weights."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import Group, run
from labkit.optimizer import SGD
from labkit.pipeline import one_f_one_b, plan, zero_bubble_h1
from labkit.pipeline.pipedream import PipeDream, stale_weights, weight_versions

NUM_MICROBATCHES, RATE = 9, 0.05


def layer(stage: int) -> nn.Module:
    generator = torch.Generator().manual_seed(stage)
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh()).double()
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return module


def stream() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x, y = (torch.randn(2, 14, 6, generator=generator, dtype=torch.float64)).unbind()
    return x, y


def on_ranks(world: Group):
    stages = {world.rank: layer(world.rank)}
    schedule = plan(one_f_one_b, world.size, NUM_MICROBATCHES)
    pipeline = PipeDream(schedule, stages, F.mse_loss, lambda p: SGD(p, RATE), world)
    step = pipeline.step(*stream())
    weights = [parameter.detach() for parameter in stages[world.rank].parameters()]
    return step.losses, step.loss, weights, pipeline.num_versions[world.rank]


def serial(num_stages: int) -> tuple[list[float], list[list[torch.Tensor]]]:
    """Microbatch i goes through stage s with its version max(0, i - (p - 1 - s))."""
    versions = [[[p.detach() for p in layer(stage).parameters()]] for stage in range(num_stages)]
    losses = []
    for i, (x, target) in enumerate(
        zip(*(each.tensor_split(NUM_MICROBATCHES) for each in stream()))
    ):
        used = []
        for stage in range(num_stages):
            version = max(0, i - (num_stages - 1 - stage))
            used.append([w.clone().requires_grad_() for w in versions[stage][version]])
            weight, bias = used[-1]
            x = torch.tanh(x @ weight.T + bias)
        loss = F.mse_loss(x, target)
        loss.backward()
        losses.append(loss.item())
        for stage in range(num_stages):
            latest = versions[stage][-1]
            versions[stage].append([w - RATE * u.grad for w, u in zip(latest, used[stage])])
    return losses, [versions[stage][-1] for stage in range(num_stages)]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_losses_weights_and_live_versions_are_those_of_the_stale_serial_run(num_ranks):
    values = run(on_ranks, num_ranks).values
    losses, weights = serial(num_ranks)
    for rank, (reported, mean, found, num_versions) in enumerate(values):
        is_last = rank == num_ranks - 1
        assert reported == (pytest.approx(losses, rel=1e-12) if is_last else ())
        assert mean == (pytest.approx(sum(losses) / len(losses)) if is_last else None)
        for mine, theirs in zip(found, weights[rank], strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-12, atol=1e-12)
        assert num_versions == num_ranks - rank


def versions_of_two(world: Group) -> int:
    schedule = plan(one_f_one_b, world.size, 2)
    stages = {world.rank: layer(world.rank)}
    pipeline = PipeDream(schedule, stages, F.mse_loss, lambda p: SGD(p, RATE), world)
    pipeline.step(*stream())
    return pipeline.num_versions[world.rank]


def test_microbatches_of_one_version_share_it():
    # Both forwards come before the first update, on all but the last rank, which holds but one.
    assert run(versions_of_two, 3).values == [1, 1, 1]


def test_staleness_is_the_distance_to_the_last_stage():
    assert stale_weights(plan(one_f_one_b, 4, 9)) == {0: 3, 1: 2, 2: 1, 3: 0}
    assert stale_weights(plan(one_f_one_b, 4, 2)) == {0: 1, 1: 1, 2: 1, 3: 0}


def test_versions_are_counted_from_the_schedule():
    versions = weight_versions(plan(one_f_one_b, 3, 5))
    for stage in range(3):
        assert [versions[stage, i] for i in range(5)] == [max(0, i - (2 - stage)) for i in range(5)]


def split_backwards(world: Group) -> str:
    schedule = plan(zero_bubble_h1, world.size, 2)
    try:
        PipeDream(schedule, {world.rank: layer(0)}, F.mse_loss, lambda p: SGD(p, RATE), world)
    except ValueError as why:
        return str(why)
    return ""


def test_split_backwards_are_refused():
    assert "'zero_bubble_h1' splits backwards" in run(split_backwards, 2).values[0]
