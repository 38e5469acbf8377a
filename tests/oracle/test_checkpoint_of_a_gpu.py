"""A job on a GPU, with dropout: what is saved and loaded ends like what never stopped."""

from functools import partial

import pytest
import torch
from torch import nn

from labkit import run
from labkit.checkpoint import Checkpointer
from labkit.optimizer import AdamW
from labkit.zero import FullyShardedModule

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and --gpu")
STEPS = 3


def job(world, seed, is_sharded, width):
    """A model on the rank's device, its optimizer, and a step on the batch of a number."""
    torch.manual_seed(seed)
    layers = [nn.Linear(width, width), nn.GELU(), nn.Dropout(0.3), nn.Linear(width, width)]
    model = nn.Sequential(*layers).to(world.device)
    if is_sharded:
        model = FullyShardedModule(model, world)
    optimizer = AdamW(model.parameters(), 1e-2)

    def step(number):
        x = torch.arange(8 * width).view(8, width).add(number).sin().to(world.device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return model, optimizer, step


def numbers(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def resumes(world, folder, is_sharded, wait, width=24):
    """Return whether the loaded numbers are the saved ones, and the last ones those at the end."""
    model, optimizer, step = job(world, 0, is_sharded, width)
    for number in range(STEPS):
        step(number)
    checkpointer = Checkpointer(folder, model, optimizer, world)
    saved = numbers(model)
    checkpointer.save(STEPS, wait=wait)
    for number in range(STEPS, 2 * STEPS):  # an asynchronous save has not seen these
        step(number)
    checkpointer.wait()
    later, later_optimizer, step = job(world, 1, is_sharded, width)
    assert Checkpointer(folder, later, later_optimizer, world).load().step == STEPS
    loaded = numbers(later)
    for number in range(STEPS, 2 * STEPS):
        step(number)
    same = partial(map, torch.equal)
    return (
        world.device.type,
        all(same(loaded, saved)),
        all(same(numbers(later), numbers(model))),
        any(same(numbers(later), saved)),
    )


@pytest.mark.parametrize("wait", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("is_sharded", [False, True], ids=["plain", "zero3"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_a_loaded_job_ends_like_one_that_never_stopped(tmp_path, device, is_sharded, wait):
    arguments = (tmp_path, is_sharded, wait)
    (found,) = run(resumes, 1, arguments, device=device).values
    assert found == (device, True, True, False)
