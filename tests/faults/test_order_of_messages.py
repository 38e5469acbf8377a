"""A model's parameters that are sent in one order and received in another."""

import re

import pytest
import torch
import torch.distributed as dist

from labkit import Mismatch, run
from tests.shuffled_model import model_with_gradients, order

SIZES = [2, 3, 4]


def the_first_ranks_weights(world):
    model = model_with_gradients()
    for p in order(world, model):
        if world.rank == 0:
            for dst in range(1, world.size):
                world.send(p.data, dst)  # <-
        else:
            world.recv(p.data, 0)  # <-


def all_begun_at_once(world):
    model = model_with_gradients()
    under_way = []
    for p in order(world, model):
        if world.rank == 0:
            under_way += [world.isend(p.detach(), dst) for dst in range(1, world.size)]  # <-
        else:
            under_way.append(world.irecv(p.detach(), 0))  # <-
    for each in under_way:
        each.wait()


def gradients_to_a_server(world):
    model = model_with_gradients()
    if world.rank > 0:
        for p in order(world, model):
            world.send(p.grad / world.size, 0)  # <-
        return
    for src in range(1, world.size):
        for p in order(world, model):
            world.recv(p.grad, src)  # <-


def by_torchs_own_functions(world):
    model = model_with_gradients()
    for p in order(world, model):
        if world.rank == 0:
            for dst in range(1, world.size):
                dist.send(p.data, dst)  # <-
        else:
            dist.recv(p.data, 0)  # <-


PROGRAMS = [
    the_first_ranks_weights,
    all_begun_at_once,
    gradients_to_a_server,
    by_torchs_own_functions,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("world_size", SIZES)
def test_parameters_received_in_another_order_are_an_error(program, world_size):
    with pytest.raises(Mismatch) as caught:
        run(program, world_size, timeout=60)
    said = str(caught.value).splitlines()[0]
    source, target = (1, 0) if program is gradients_to_a_server else (0, 1)
    assert f"rank {source} sends in another order than rank {target} receives: message #1" in said
    met = re.findall(r"is model\.(\d)\.weight where it is sent .*? and model\.(\d)\.weight", said)
    assert sorted(met) == [("0", "1"), ("1", "0")], said
    with open(__file__) as file:
        marked = {n for n, line in enumerate(file, start=1) if line.rstrip().endswith("# <-")}
    named = {int(n) for n in re.findall(r"test_order_of_messages.py, line (\d+)", said)}
    assert len(named) == 2 and named <= marked, said


def halos_of_a_ring(world):
    """What is sent from the right arrives on the left: names that change places rightly."""
    edges = {"left": torch.zeros(2), "right": torch.ones(2)}
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    arriving = [world.irecv(edges["left"].clone(), left), world.irecv(torch.zeros(2), right)]
    for side, neighbour in (("right", right), ("left", left)):
        world.send(edges[side], neighbour)
    return [each.wait()[0].item() for each in arriving]


def weights_that_go_round(world):
    """Each rank's first weight becomes the next rank's second one; the same every time."""
    model = model_with_gradients()
    for _ in range(3):
        leaving = world.isend(model[0].weight.data, (world.rank + 1) % world.size)
        world.recv(model[1].weight.data, (world.rank - 1) % world.size)
        leaving.wait()


def weights_that_change_places(world):
    """Crosswise on purpose, which labels say."""
    model = model_with_gradients()
    ours, theirs = order(world, model)
    for name, p in (("first", ours), ("second", theirs)):
        with world.label(name):
            if world.rank == 0:
                for dst in range(1, world.size):
                    world.send(p.data, dst)
            else:
                world.recv(p.data, 0)


@pytest.mark.parametrize(
    "program",
    [halos_of_a_ring, weights_that_go_round, weights_that_change_places],
    ids=lambda program: program.__name__,
)
@pytest.mark.parametrize("world_size", SIZES)
def test_messages_that_go_to_other_names_are_right(program, world_size):
    run(program, world_size, timeout=60)
