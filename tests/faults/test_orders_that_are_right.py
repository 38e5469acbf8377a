"""Healthy programs whose tensors go by other names, or in another order: no error; and the limit.

Twins of the programs in test_order_of_loops.py, test_order_of_taken_elements.py and
test_order_of_parameters.py.
"""

import itertools
from collections import deque

import pytest
import torch

from labkit import run

SIZES = [2, 3, 4]


def takes_turns_by_default(world):
    """Who has nothing left to give passes zeros."""
    mine, zeros = torch.ones(3), torch.zeros(3)
    turns = {world.rank: mine}
    for turn in range(world.size):
        world.all_reduce(turns.pop(turn, zeros))


def takes_turns_after_a_take(world):
    mine, zeros = torch.ones(3), torch.zeros(3)
    tensors = [mine] * world.size
    for turn in range(world.size):
        t = tensors.pop()
        if turn != world.rank:
            t = zeros
        world.all_reduce(t)


def takes_turns_by_what_it_takes(world):
    mine, zeros = torch.ones(3), torch.zeros(3)
    turns = list(range(world.size))
    while turns:
        world.all_reduce(mine if turns.pop() == world.rank else zeros)


def takes_turns_behind_a_function(world):
    mine, zeros = torch.ones(3), torch.zeros(3)

    def sync(turn):
        world.all_reduce(mine if turn == world.rank else zeros)

    turns = list(range(world.size))
    while turns:
        sync(turns.pop())
    list(map(sync, range(world.size)))


def takes_turns_in_a_for(world):
    mine, zeros = torch.ones(3), torch.zeros(3)
    for turn, t in enumerate([mine] * world.size):
        if turn != world.rank:
            t = zeros
        world.all_reduce(t)


def takes_turns_with_a_parameter(world):
    p, zeros = torch.nn.Linear(3, 3).weight, torch.zeros(3, 3)
    for turn in range(2 * world.size):
        world.all_reduce(p if turn % world.size == world.rank else zeros)


def has_a_pool_of_buffers(world):
    """Each rank gives its buffers back in an order of its own."""
    front, back = torch.ones(3), torch.zeros(3)
    free = deque([front, back])
    for step in range(6):
        buffer = free.popleft()
        world.all_reduce(buffer, out=buffer)
        if step % 2 == world.rank % 2:
            free.append(buffer)
        else:
            free.appendleft(buffer)


def has_a_pool_that_another_function_fills(world):
    def give_back(pool, buffer):
        pool.append(buffer)

    front, back = torch.zeros(4), torch.zeros(4)
    free = [front, back] if world.rank == 0 else [back, front]
    for _ in range(4):
        buffer = free.pop(0)
        world.all_reduce(buffer)
        give_back(free, buffer)


def has_a_pool_that_is_filled_without_a_method(world):
    front, back = torch.zeros(4), torch.zeros(4)
    free = [front, back] if world.rank == 0 else [back, front]
    for _ in range(4):
        buffer = free.pop()
        world.all_reduce(buffer)
        free[:0] = [buffer]
    for _ in range(4):
        buffer = free.pop(0)
        world.all_reduce(buffer)
        free += [buffer]


def has_a_pool_that_a_function_fills(world):
    front, back = torch.ones(3), torch.zeros(3)
    free = [front, back]

    def give_back(buffers, *used):
        buffers.extend(used[::-1] if world.rank == 1 else used)

    for _ in range(4):
        first = free.pop()
        world.all_reduce(first)
        second = free.pop()
        world.all_reduce(second)
        give_back(free, first, second)


def goes_around_buffers(world):
    front, back = torch.ones(3), torch.zeros(3)
    buffers = itertools.cycle([front, back])
    if world.rank == 1:
        next(buffers)
    for _ in range(4):
        world.all_reduce(next(buffers))


def changes_buffers_by_an_index(world):
    buffers = [torch.ones(3), torch.zeros(3)]
    for step in range(6):
        slot = (step + world.rank) % 2
        world.all_reduce(buffers[slot])


def changes_buffers_of_a_module(world):
    module = torch.nn.Module()
    module.register_buffer("front", torch.ones(3))
    module.register_buffer("back", torch.zeros(3))
    for step in range(6):
        world.all_reduce(module.front if (step + world.rank) % 2 else module.back)


def evaluates_samples_in_an_order_of_its_own(world):
    samples = [torch.full((3,), float(n)) for n in range(4)]
    mine = samples[::-1] if world.rank == 1 else samples
    total = torch.zeros(())

    def twice(sample):
        return world.all_reduce(2 * sample)

    assert torch.equal(sum(map(twice, mine)), torch.full((3,), 12.0 * world.size))
    while mine:
        sample = mine.pop()
        total += world.all_reduce(sample.square().sum())
    assert total == world.size * 3 * (1 + 4 + 9)


def adds_up_norms_in_an_order_of_its_own(world):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    mine = list(model.parameters())
    total = torch.zeros(())
    for p in mine[::-1] if world.rank == 1 else mine:
        total += world.all_reduce(p.grad.square().sum())
    assert total == 12 * world.size


def gathers_a_part_of_another_layer(world):
    """What each rank gives has a place of its own in the result: nothing is mixed."""
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(world.size)])
    for step in range(world.size):
        layer = (step + world.rank) % world.size
        world.all_gather(model[layer].weight)


def has_data_of_its_own(world):
    files = [f"{world.rank}-{n}.txt" for n in range(3)]
    tensors = {name: torch.ones(3) for name in files}
    for name in files[:: -1 if world.rank else 1]:
        world.all_reduce(tensors.pop(name))


def trains_for_steps(world):
    """Hooks, takes, maps and parameters, in the same order on every rank."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    def average(p):
        world.all_reduce(p.grad / world.size)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(average)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        gradients = [p.grad for p in model.parameters()]
        list(map(world.all_reduce, gradients))
        while gradients:
            world.all_reduce(gradients.pop())
        for p in model.parameters():
            p.grad = None


def names_them_by_its_role_too(world):
    weight, wide = torch.ones(3), torch.full((3,), 2.0)
    mine, other = (weight, wide) if world.rank == 0 else (wide, weight)
    for x in (weight, wide):
        world.all_reduce(x, out=x)
    return mine, other


def keeps_them_by_its_role_too(world):
    tensors = {"weight": torch.ones(3), "wide": torch.ones(3)}
    roles = ("mine", "other") if world.rank == 0 else ("other", "mine")
    keep = dict(zip(roles, tensors.values(), strict=True))
    for x in tensors.values():
        world.all_reduce(x, out=x)
    return keep


class Owner:
    """Knows its tensors by what they are, and by whose they are."""

    def __init__(self, world):
        self.w1, self.w2 = torch.ones(3), torch.ones(3)
        self.mine, self.theirs = (self.w1, self.w2) if world.rank else (self.w2, self.w1)

    def sync(self, world):
        for x in (self.w1, self.w2):
            world.all_reduce(x)


def has_attributes_by_its_role_too(world):
    Owner(world).sync(world)


def has_modules_by_their_role_too(world):
    teacher, student = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    active, idle = (teacher, student) if world.rank == 0 else (student, teacher)
    for module in (teacher, student):
        for p in module.parameters():
            world.all_reduce(p.data, out=p.data)
    return active, idle


@pytest.mark.parametrize(
    "program",
    [
        names_them_by_its_role_too,
        keeps_them_by_its_role_too,
        has_attributes_by_its_role_too,
        has_modules_by_their_role_too,
        takes_turns_by_default,
        takes_turns_after_a_take,
        takes_turns_by_what_it_takes,
        takes_turns_behind_a_function,
        takes_turns_in_a_for,
        takes_turns_with_a_parameter,
        has_a_pool_of_buffers,
        has_a_pool_that_a_function_fills,
        has_a_pool_that_another_function_fills,
        has_a_pool_that_is_filled_without_a_method,
        goes_around_buffers,
        changes_buffers_by_an_index,
        changes_buffers_of_a_module,
        evaluates_samples_in_an_order_of_its_own,
        adds_up_norms_in_an_order_of_its_own,
        gathers_a_part_of_another_layer,
        has_data_of_its_own,
        trains_for_steps,
    ],
    ids=lambda program: program.__name__,
)
@pytest.mark.parametrize("world_size", SIZES)
def test_what_only_looks_like_another_order_is_right(program, world_size):
    run(program, world_size, timeout=60)


def by_an_index_that_was_computed(world):
    """The same text as changes_buffers_by_an_index, and here it is a fault."""
    buffers = [torch.ones(3), torch.zeros(3)]
    return [world.all_reduce(buffers[(n + (world.rank == 1)) % 2]) for n in range(2)]


def by_branches(world):
    """The same as ranks that take turns, and here it is a fault."""
    weight, bias = torch.ones(3), torch.zeros(3)
    sums = []
    for n in range(2):
        if n == (world.rank == 1):
            sums.append(world.all_reduce(weight))
        else:
            sums.append(world.all_reduce(bias))
    return sums


def by_what_was_made_of_them(world):
    """The same as samples in an order of their own, and here it is a fault."""
    weight, bias = torch.ones(3), torch.zeros(3)
    mine = (bias, weight) if world.rank == 1 else (weight, bias)
    return [world.all_reduce(1 * t) for t in mine]


def by_what_never_had_a_name(world):
    """Places in the list are all that there is, and both ranks go from the first to the last."""
    mine = [torch.ones(3), torch.zeros(3)]
    if world.rank == 1:
        mine.reverse()
    return [world.all_reduce(t) for t in mine]


def by_names_of_which_one_goes_by_the_rank(world):
    """The same as a rank that has a name for its own part, and here it is a fault."""
    weight, bias = torch.ones(3), torch.zeros(3)
    first, second = (bias, weight) if world.rank == 1 else (weight, bias)
    return [world.all_reduce(x) for x in (first, second)]


@pytest.mark.parametrize(
    "program",
    [
        by_names_of_which_one_goes_by_the_rank,
        by_an_index_that_was_computed,
        by_branches,
        by_what_was_made_of_them,
        by_what_never_had_a_name,
    ],
    ids=lambda program: program.__name__,
)
def test_where_the_limit_is(program):
    """These mix two tensors, and run as they are written: healthy programs read the same.

    If one of them is refused one day, README's sentence about what remains needs to change.
    """
    first, second = run(program, 2, timeout=60).values[0]
    assert torch.equal(first, second) and torch.equal(first, torch.ones(3)), "1 + 0 in both"
