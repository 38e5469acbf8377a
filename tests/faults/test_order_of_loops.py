"""Two ranks that go through one loop in another order: told by the names of their tensors."""

import re

import pytest
import torch
import torch.distributed as dist

from labkit import Mismatch, run
from labkit.collectives import ring_all_reduce


def swapped(world, *elements):
    """The same elements, on rank 1 in the opposite order, as a set would have them."""
    return elements[::-1] if world.rank == 1 else elements


def a_tuple(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    for t in (bias, weight) if world.rank == 1 else (weight, bias):
        world.all_reduce(t)


def a_list_made_of_a_set(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    tensors = list(swapped(world, weight, bias))
    for t in tensors:
        world.all_reduce(t, out=t)


def behind_a_function(world):
    def sync(u):
        world.all_reduce(u)

    weight, bias = torch.ones(3), torch.zeros(3)
    for t in swapped(world, weight, bias):
        sync(t)


def in_a_function_whose_caller_knows_the_names(world):
    def sync(tensors):
        for t in tensors:
            world.all_reduce(t)

    weight, bias = torch.ones(3), torch.zeros(3)
    sync(swapped(world, weight, bias))


def a_comprehension(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    return [world.all_reduce(t) for t in swapped(world, weight, bias)]


def keys_of_a_dict(world):
    tensors = {"weight": torch.ones(3), "bias": torch.zeros(3)}
    for name in sorted(tensors, reverse=world.rank == 1):
        world.all_reduce(tensors[name])


def values_of_a_dict(world):
    names = swapped(world, "weight", "bias")
    tensors = {name: torch.ones(3) for name in names}
    for t in tensors.values():
        world.all_reduce(t)


def places_in_a_list(world):
    tensors = [torch.ones(3), torch.zeros(3)]
    for t in reversed(tensors) if world.rank == 1 else tensors:
        world.all_reduce(t)


def with_gradients(model):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    return list(model.parameters())


def gradients_of_a_model(world):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(2, 3))
    for p in swapped(world, *with_gradients(model)):
        if p.dim() == 1:
            world.all_reduce(p.grad, out=p.grad)


def gradients_with_names(world):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    with_gradients(model)
    for name, p in swapped(world, *model.named_parameters()):
        if name.endswith("weight"):
            p.grad = ring_all_reduce(p.grad, world)


def layers_of_a_model(world):
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
    with_gradients(layers)
    for layer in swapped(world, *layers):
        world.all_reduce(layer.weight.grad, out=layer.weight.grad)


class Trainer:
    """Holds its tensors, as most programs do."""

    def __init__(self, world):
        self.world, self.weight, self.bias = world, torch.ones(3), torch.zeros(3)

    def sync(self):
        for t in swapped(self.world, self.weight, self.bias):
            self.world.all_reduce(t)


def attributes(world):
    Trainer(world).sync()


def three_turned(world):
    a, b, c = torch.ones(3), torch.ones(3), torch.ones(3)
    for t in (c, a, b) if world.rank == 1 else (a, b, c):
        world.all_reduce(t)


def past_the_groups(world):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(2, 3))
    for p in swapped(world, *with_gradients(model)):
        if p.dim() == 1:
            dist.all_reduce(p.grad)


SAID = {
    a_tuple: ("weight", "bias"),
    a_list_made_of_a_set: ("weight", "bias"),
    behind_a_function: ("weight", "bias"),
    in_a_function_whose_caller_knows_the_names: ("weight", "bias"),
    a_comprehension: ("weight", "bias"),
    keys_of_a_dict: (r"tensors\['bias'\]", r"tensors\['weight'\]"),
    values_of_a_dict: (r"tensors\['weight'\]", r"tensors\['bias'\]"),
    places_in_a_list: (r"tensors\[0\]", r"tensors\[1\]"),
    gradients_of_a_model: (r"model\.0\.bias", r"model\.1\.bias"),
    gradients_with_names: (r"model\.0\.weight", r"model\.1\.weight"),
    layers_of_a_model: (r"layers\.0\.weight", r"layers\.1\.weight"),
    attributes: (r"self\.weight", r"self\.bias"),
    three_turned: ("a", "c"),
    past_the_groups: (r"model\.0\.bias", r"model\.1\.bias"),
}


@pytest.mark.parametrize("program", SAID, ids=lambda program: program.__name__)
@pytest.mark.parametrize("world_size", [2, 3])
def test_elements_of_a_loop_in_another_order_are_an_error(program, world_size):
    with pytest.raises(Mismatch) as caught:
        run(program, world_size, timeout=20)
    said = str(caught.value).splitlines()[0]
    ours, theirs = SAID[program]
    assert re.search(f"rank 0 calls .* for {ours} .*rank 1 .* for {theirs} .*; as ", said), said
    assert "test_order_of_loops.py, line" in said


def test_two_calls_on_one_line_are_told_apart():
    def program(world):
        x, y = torch.ones(3), torch.zeros(3)
        f = world.all_reduce
        (f(y), f(x)) if world.rank == 1 else (f(x), f(y))

    with pytest.raises(Mismatch, match=r"rank 0 calls f\(x\) .*rank 1 f\(y\)"):
        run(program, 2, timeout=20)


def one_takes_another_buffer(world):
    a, b = torch.ones(3), torch.zeros(3)
    for _ in range(3):
        world.all_reduce(b if world.rank == 1 else a)
    for t in (b,) if world.rank == 1 else (a,):
        world.all_reduce(t)


def take_turns(world):
    mine, zeros = torch.ones(3), torch.zeros(3)
    for turn in range(2 * world.size):
        x = mine if turn % world.size == world.rank else zeros
        world.all_reduce(x)


def swap_double_buffers(world):
    buffers = [torch.ones(3), torch.zeros(3)]
    for step in range(6):
        world.all_reduce(buffers[(step + world.rank) % 2])


def swap_the_names_of_buffers(world):
    front, back = torch.ones(3), torch.zeros(3)
    for _ in range(4):
        if world.rank == 1:
            front, back = back, front
        for t in (front, back):
            world.all_reduce(t)


def shuffle_samples_of_their_own(world):
    samples = [torch.full((3,), float(n)) for n in range(4)]
    for sample in samples[::-1] if world.rank == 1 else samples:
        world.all_reduce(2 * sample)


def say_that_they_are_meant_to_meet(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    for t in swapped(world, weight, bias):
        with world.label("turn"):
            world.all_reduce(t)


@pytest.mark.parametrize(
    "program",
    [
        one_takes_another_buffer,
        take_turns,
        swap_double_buffers,
        swap_the_names_of_buffers,
        shuffle_samples_of_their_own,
        say_that_they_are_meant_to_meet,
    ],
    ids=lambda program: program.__name__,
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_what_only_goes_by_other_names_is_right(program, world_size):
    run(program, world_size, timeout=20)


def test_names_are_read_without_keeping_tensors_alive():
    def program(world):
        import weakref

        a, b = torch.ones(3), torch.zeros(3)
        for t in (a, b):
            world.all_reduce(t)
        gone = weakref.ref(a)
        del a, t
        return gone() is None

    assert run(program, 2).values == [True, True]


def test_what_a_program_has_of_its_locals_stays():
    def program(world):
        a, seen = torch.ones(3), locals()
        for t in (a,):
            world.all_reduce(t)
        return "a" in seen

    assert run(program, 2).values == [True, True]
