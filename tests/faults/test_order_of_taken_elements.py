"""Elements in another order on one rank, with no `for` around them: taken out, or handed over."""

import functools
import re
from collections import deque
from itertools import chain, starmap

import pytest
import torch
import torch.distributed as dist

from labkit import Mismatch, run
from labkit.collectives import ring_all_reduce

SIZES = [2, 3, 4]


def swapped(world, *elements):
    """The same elements, on rank 1 in the opposite order, as a set would have them."""
    return list(elements[::-1] if world.rank == 1 else elements)


def popped(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    tensors = swapped(world, weight, bias)
    while tensors:
        world.all_reduce(tensors.pop(0), out=None)  # <-


def popped_into_a_variable(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    tensors = deque(swapped(world, weight, bias))
    for _ in range(2):
        t = tensors.popleft()
        world.all_reduce(t, out=t)  # <-


def popped_past_the_groups(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    tensors = swapped(world, weight, bias)
    while tensors:
        dist.all_reduce(tensors.pop())  # <-


def popped_behind_a_function(world):
    def sync(u):
        ring_all_reduce(u, world)  # <-

    weight, bias = torch.ones(3), torch.zeros(3)
    tensors = swapped(world, weight, bias)
    while tensors:
        sync(tensors.pop())  # <-


def popped_by_places(world):
    tensors = [torch.ones(3), torch.zeros(3)]
    waiting = swapped(world, *tensors)
    while waiting:
        world.all_reduce(waiting.pop(0))  # <-


def popped_by_key(world):
    tensors = {"weight": torch.ones(3), "bias": torch.zeros(3)}
    for name in swapped(world, *tensors):
        world.all_reduce(tensors.pop(name))  # <-


def popped_with_its_key(world):
    tensors = {name: torch.ones(3) for name in swapped(world, "weight", "bias")}
    while tensors:
        name, t = tensors.popitem()
        world.all_reduce(t)  # <-


def popped_keys(world):
    tensors = {"weight": torch.ones(3), "bias": torch.zeros(3)}
    names = swapped(world, *tensors)
    while names:
        name = names.pop()
        world.all_reduce(tensors[name])  # <-


def next_of_an_iterator(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    elements = iter(swapped(world, weight, bias))
    for _ in range(2):
        world.all_reduce(next(elements))  # <-


def mapped(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    return list(map(world.all_reduce, swapped(world, weight, bias)))  # <-


def mapped_in_a_for(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    for _ in map(world.all_reduce, swapped(world, weight, bias)):  # <-
        pass


def mapped_behind_a_function(world):
    def sync(_, t):
        world.all_reduce(t, out=t)  # <-

    weight, bias = torch.ones(3), torch.zeros(3)
    sums = []
    sums.extend(starmap(sync, enumerate(chain(swapped(world, weight, bias)))))  # <-


def mapped_and_unpacked(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    summed = functools.partial(world.all_reduce, op="sum")
    a, b = map(summed, swapped(world, weight, bias))  # <-
    return a + b


def named_by_a_string(world):
    pairs = [("weight", torch.ones(3)), ("bias", torch.zeros(3))]
    for name, t in swapped(world, *pairs):
        world.all_reduce(t, out=None if name else t)  # <-


WEIGHT_AND_BIAS = ("weight", "bias")
TAKEN = {
    popped: WEIGHT_AND_BIAS,
    popped_into_a_variable: WEIGHT_AND_BIAS,
    popped_past_the_groups: ("bias", "weight"),
    popped_behind_a_function: ("bias", "weight"),
    popped_by_places: (r"tensors\[0\]", r"tensors\[1\]"),
    popped_by_key: ("name='weight'", "name='bias'"),
    popped_with_its_key: ("name='bias'", "name='weight'"),
    popped_keys: (r"tensors\['bias'\]", r"tensors\['weight'\]"),
    next_of_an_iterator: WEIGHT_AND_BIAS,
    mapped: WEIGHT_AND_BIAS,
    mapped_in_a_for: WEIGHT_AND_BIAS,
    mapped_behind_a_function: WEIGHT_AND_BIAS,
    mapped_and_unpacked: WEIGHT_AND_BIAS,
    named_by_a_string: ("name='weight'", "name='bias'"),
}


def require_refused(program, world_size, ours, theirs):
    """The verdict names both ranks, the operation, what they call, and a line marked `# <-`."""
    with pytest.raises(Mismatch) as caught:
        run(program, world_size, timeout=20)
    said = str(caught.value).splitlines()[0]
    first = re.search(
        rf"_reduce #1.* rank 0 calls .* for {ours} \(.*rank 1 .* for {theirs} \(", said
    )
    assert first, said
    named = {int(n) for n in re.findall(rf"{__name__}.py, line (\d+)", said)}
    begin = program.__code__.co_firstlineno
    with open(__file__) as file:
        marked = {n for n, line in enumerate(file, start=1) if line.rstrip().endswith("# <-")}
    assert named and named <= marked and min(named) > begin, said


@pytest.mark.parametrize("program", TAKEN, ids=lambda program: program.__name__)
@pytest.mark.parametrize("world_size", SIZES)
def test_elements_that_come_one_by_one_in_another_order_are_an_error(program, world_size):
    require_refused(program, world_size, *TAKEN[program])
