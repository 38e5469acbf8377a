"""Parameters of a model in another order on one rank: told without a loop, and by what is made of
them."""

import re

import pytest
import torch
import torch.distributed as dist

from labkit import Mismatch, run
from labkit.collectives import ring_all_reduce
from tests.shuffled_model import model_with_gradients, order

SIZES = [2, 3, 4]


def hooks_that_fire_in_another_order(world):
    def average(p):
        world.all_reduce(p.grad, out=p.grad)  # <-

    model = model_with_gradients()
    for p in order(world, model):
        p.register_post_accumulate_grad_hook(average)
    first, second = order(world, model)
    x = torch.ones(2, 2)
    # As in a graph that depends on the data: the one that comes later is done first.
    (first.sum() + 0 * x.sum()).backward()
    second.sum().backward()


def hooks_of_one_backward(world):
    def average(p):
        world.all_reduce(p.grad, out=p.grad)  # <-

    model = model_with_gradients()
    for p in order(world, model):
        p.register_post_accumulate_grad_hook(average)
    x = torch.ones(1, 2)
    for n in (1, 0) if world.rank == 1 else (0, 1):
        x = model[n](x)
    x.sum().backward()


def branches_of_one_loop(world):
    model = model_with_gradients()
    for n in range(2):
        if (n == 0) == (world.rank == 1):
            world.all_reduce(model[1].weight.grad)  # <-
        else:
            world.all_reduce(model[0].weight.grad)  # <-


def a_conditional_expression(world):
    a, b = model_with_gradients()
    model = torch.nn.ModuleDict({"a": a, "b": b})
    for n in range(2):
        world.all_reduce(a.weight if (n == 0) == (world.rank == 1) else b.weight)  # <-
    return model


def an_index(world):
    model = model_with_gradients()
    for n in range(2):
        layer = (n + (world.rank == 1)) % 2
        world.all_reduce(model[layer].weight.grad)  # <-


def a_queue(world):
    model, ready = model_with_gradients(), []
    for p in order(world, model):
        ready.append(p)
    while ready:
        p = ready.pop(0)
        ring_all_reduce(p.grad, world)  # <-


def in_an_expression(world):
    model = model_with_gradients()
    for p in order(world, model):
        world.all_reduce(p.grad / world.size)  # <-


def in_a_temporary(world):
    model = model_with_gradients()
    for p in order(world, model):
        average = p.grad / world.size
        flat = average.view(-1)
        dist.all_reduce(flat)  # <-


def in_an_expression_for_a_function(world):
    def sync(t):
        world.all_reduce(t)  # <-

    model = model_with_gradients()
    for p in order(world, model):
        sync(2 * p.grad)


class Trainer:
    """Holds its model, as most programs do."""

    def __init__(self, world):
        self.world, self.model = world, model_with_gradients()

    def sync(self, n):
        self.world.all_reduce(self.model[n].weight.grad.clone())  # <-


def behind_a_method(world):
    trainer = Trainer(world)
    for n in range(2):
        trainer.sync((n + (world.rank == 1)) % 2)


PROGRAMS = [
    hooks_that_fire_in_another_order,
    hooks_of_one_backward,
    branches_of_one_loop,
    a_conditional_expression,
    an_index,
    a_queue,
    in_an_expression,
    in_a_temporary,
    in_an_expression_for_a_function,
    behind_a_method,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("world_size", SIZES)
def test_parameters_in_another_order_are_an_error(program, world_size):
    with pytest.raises(Mismatch) as caught:
        run(program, world_size, timeout=60)
    said = str(caught.value).splitlines()[0]
    ours, theirs = (r"model\.(0|a)\.weight", r"model\.(1|b)\.weight")
    words = r"_reduce #1.* rank 0 calls .* for (\S+) \(.*rank 1 .* for (\S+) \(.*; as "
    found = re.search(words, said)
    assert found, said
    names = sorted(name.removeprefix("self.") for name in found.groups())
    assert re.fullmatch(ours, names[0]) and re.fullmatch(theirs, names[1]), said
    with open(__file__) as file:
        marked = {n for n, line in enumerate(file, start=1) if line.rstrip().endswith("# <-")}
    named = {int(n) for n in re.findall(r"test_order_of_parameters.py, line (\d+)", said)}
    assert named and named <= marked, said
