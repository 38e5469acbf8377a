"""Every schedule on real ranks: losses and gradients of a step are the serial ones.

In float64, where sums in another order differ by some 1e-16 of what is added; 1e-12 leaves room.
Stages are of unequal widths, microbatches of unequal sizes, and a weight may be shared.
"""

from functools import cache, partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import Group, run
from labkit.pipeline import (
    Pipeline,
    Schedule,
    WeightedLoss,
    gpipe,
    in_flight,
    interleaved,
    naive,
    one_f_one_b,
    plan,
    token_loss,
    zero_bubble_h1,
    zero_bubble_v,
)
from labkit.pipeline.deferred import WeightGradStore
from labkit.pipeline.plain import pipeline_step

TOLERANCE = 1e-12
NUM_ROWS = 11  # no number of microbatches divides it
ROWS = [naive, gpipe, one_f_one_b, partial(interleaved, virtual=2), zero_bubble_h1, zero_bubble_v]


def schedules(num_ranks: int) -> list[Schedule]:
    """All of them; on 3 ranks with fewer and with more microbatches than ranks."""
    interleaved_2 = plan(ROWS[3], num_ranks, 2 * num_ranks)
    others = [row for row in ROWS if not isinstance(row, partial)]
    counts = (1, 7) if num_ranks == 3 else (5,)
    return [interleaved_2, *(plan(row, num_ranks, m) for row in others for m in counts)]


def layer(stage: int, num_stages: int) -> nn.Module:
    """The stage's module, the same wherever it is built: linear layers, a norm, a frozen weight."""
    generator = torch.Generator().manual_seed(stage)
    width, next_width = 5 + stage % 3, 5 + (stage + 1) % 3
    module = nn.Sequential(
        nn.Linear(width, 7),
        nn.GELU(),
        nn.LayerNorm(7),
        nn.Linear(7, next_width, bias=stage % 2 == 0),
    ).double()
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    if stage == num_stages - 1:
        module[3].weight.requires_grad_(False)
    return module


def batch(num_stages: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100)
    x = torch.randn(NUM_ROWS, 3, 5, generator=generator, dtype=torch.float64)
    width = 5 + num_stages % 3
    return x, torch.randn(NUM_ROWS, 3, width, generator=generator, dtype=torch.float64)


def serial(num_stages: int) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss and the gradients of a step that knows no stages and no microbatches."""
    modules = [layer(stage, num_stages) for stage in range(num_stages)]
    x, targets = batch(num_stages)
    loss = F.mse_loss(nn.Sequential(*modules)(x), targets)
    loss.backward()
    return loss.item(), gradients(dict(enumerate(modules)))


def gradients(stages: dict[int, nn.Module]) -> dict[str, torch.Tensor]:
    return {
        f"{stage}.{name}": parameter.grad
        for stage, module in stages.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }


def steps(world: Group):
    """For each schedule two steps of one Pipeline: the second knows all shapes already."""
    found = []
    for schedule in schedules(world.size):
        n = schedule.num_stages
        stages = {stage: layer(stage, n) for stage in schedule.stages_of(world.rank)}
        pipeline = Pipeline(schedule, stages, F.mse_loss, world)
        for _ in range(2):
            for module in stages.values():
                module.zero_grad()
            step = pipeline.step(*batch(n))
            found.append((schedule, step, gradients(stages)))
    return found, plain_steps(world)


def plain_stage(stage: int) -> nn.Module:
    """The plain rung's stages take and give the batch's width."""
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 5)).double()


def plain_steps(world: Group):
    """By the number of microbatches, the gradients of this rank's stage after one plain step."""
    x, found = batch(0)[0], {}
    for num_microbatches in (1, 2, 5, 7):
        stage = plain_stage(world.rank)
        pipeline_step(stage, F.mse_loss, x, x.sin(), num_microbatches, world)
        found[num_microbatches] = [p.grad for p in stage.parameters()]
    return found


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_the_plain_rungs_gradients_are_the_serial_ones(num_ranks):
    stages, x = [plain_stage(stage) for stage in range(num_ranks)], batch(0)[0]
    F.mse_loss(nn.Sequential(*stages)(x), x.sin()).backward()
    for stage, (_, found) in zip(stages, ranks(num_ranks), strict=True):
        expected = [p.grad for p in stage.parameters()]
        for num_microbatches, of_plain in found.items():
            for one, two in zip(of_plain, expected, strict=True):
                assert torch.allclose(one, two, rtol=TOLERANCE, atol=TOLERANCE), num_microbatches


@cache
def ranks(num_ranks: int):
    return run(steps, num_ranks, timeout=600).values


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_losses_gradients_order_and_microbatches_in_flight_are_the_serial_and_planned_ones(
    num_ranks,
):
    num_checked = 0
    for of_ranks in zip(*(found for found, _ in ranks(num_ranks)), strict=True):
        schedule = of_ranks[0][0]
        loss, expected = serial(schedule.num_stages)
        found = {name: grad for _, _, grads in of_ranks for name, grad in grads.items()}
        assert found.keys() == expected.keys()
        for name, grad in expected.items():
            assert torch.allclose(found[name], grad, rtol=TOLERANCE, atol=TOLERANCE), (
                schedule,
                name,
            )
        reported = [step.loss for _, step, _ in of_ranks if step.loss is not None]
        assert reported == [pytest.approx(loss, rel=TOLERANCE)]
        assert [step.in_flight for _, step, _ in of_ranks] == in_flight(schedule)
        for rank, (_, step, _) in enumerate(of_ranks):
            assert tuple(span.op for span in step.spans) == schedule.rows[rank]
        num_checked += 1
    assert num_checked == 2 * len(schedules(num_ranks))


def padded(world: Group):
    """Microbatches of 1, 2, 6 and 6 targets that count; then of 2 rows each, which count alike."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, 3, generator=generator)
    targets = torch.randint(0, 5, (4, 6), generator=generator)
    targets[0, 1:] = targets[1, 2:] = -100

    def stages():
        torch.manual_seed(0)
        return [nn.Linear(3, 3), nn.Linear(3, 5)]

    def mean(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    first, second = stages()
    expected = mean(second(first(x)), targets)
    expected.backward()
    found = []
    for loss in (token_loss, WeightedLoss(mean, lambda part: (part != -100).sum())):
        stage = stages()[world.rank]
        step = Pipeline(plan(gpipe, 2, 4), {world.rank: stage}, loss, world).step(x, targets)
        found.append((step.loss, stage.weight.grad))
    return expected.item(), (first, second)[world.rank].weight.grad, found


def test_a_microbatch_is_weighted_by_the_targets_that_its_loss_averages():
    for rank, (loss, gradient, found) in enumerate(run(padded, 2).values):
        for value, grad in found:
            assert value == (pytest.approx(loss) if rank else None)
            torch.testing.assert_close(grad, gradient)


def changing_shapes(world: Group):
    """Other sizes in every step: longer sequences, more rows; the messages must follow."""
    schedule = plan(one_f_one_b, world.size, 3)
    stages = {world.rank: nn.Linear(4, 4).double()}
    nn.init.constant_(stages[world.rank].weight, 0.1)
    pipeline = Pipeline(schedule, stages, F.mse_loss, world)
    losses = []
    for rows, length in ((3, 2), (7, 2), (7, 5), (4, 1)):
        x = torch.ones(rows, length, 4, dtype=torch.float64)
        losses.append(pipeline.step(x, torch.zeros_like(x)).loss)
    return losses, stages[world.rank].bias.detach()


def test_a_pipeline_takes_batches_of_other_sizes():
    result = run(changing_shapes, 3)
    bias = [each for _, each in result.values]
    y = torch.ones(4, dtype=torch.float64)
    for each in bias:
        y = torch.full((4, 4), 0.1, dtype=torch.float64) @ y + each
    losses = result.values[-1][0]
    assert losses == pytest.approx([y.square().mean().item()] * 4)


def accumulate(world: Group):
    """Gradients after two steps, and how many weights' gradients each W had to compute."""
    schedule = plan(zero_bubble_h1, world.size, 2)
    stages = {world.rank: layer(world.rank, world.size)}
    pipeline = Pipeline(schedule, stages, F.mse_loss, world)
    counts, of_weights = [], WeightGradStore.accumulate

    def counted(deferred):
        counts.append(len(deferred.products))
        of_weights(deferred)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeightGradStore, "accumulate", counted)
        for _ in range(2):
            pipeline.step(*batch(world.size))
    return gradients(stages), counts


def test_weight_gradients_arrive_with_w_and_those_of_two_steps_add_up():
    _, expected = serial(2)
    found = run(accumulate, 2).values
    for grads, _ in found:
        for name, grad in grads.items():
            assert torch.allclose(grad, 2 * expected[name], rtol=TOLERANCE, atol=TOLERANCE)
    # Two microbatches in each of two steps; one of the last stage's two weights is frozen.
    assert [counts for _, counts in found] == [[2] * 4, [1] * 4]
