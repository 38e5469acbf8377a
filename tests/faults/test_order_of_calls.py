"""Two calls in another order are an error; programs that only look like it are not.

What the last test runs mixes two tensors on one line: see docs/what_the_lab_cannot_see.md.
"""

import re
from collections import deque

import pytest
import torch

from labkit import Mismatch, run


def by_branches(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    for n in range(2):
        if n == (world.rank == 1):
            world.all_reduce(weight)
        else:
            world.all_reduce(bias)


def helper(world, tensor):
    world.all_reduce(tensor)


def behind_a_function(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    if world.rank == 1:
        helper(world, bias)
        helper(world, weight)
    else:
        helper(world, weight)
        helper(world, bias)


def in_flight(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    pair = [weight, bias]
    if world.rank == 1:
        pending = [world.all_reduce(bias, wait=False), world.all_reduce(weight, wait=False)]
    else:
        pending = [world.all_reduce(weight, wait=False), world.all_reduce(bias, wait=False)]
    return [each.wait() for each in pending], pair


def after_thousands_of_others(world):
    for _ in range(1500):
        world.all_reduce(torch.ones(1))
    behind_a_function(world)


@pytest.mark.parametrize(
    ("program", "world_size"),
    [(by_branches, 3), (behind_a_function, 3), (in_flight, 2), (after_thousands_of_others, 2)],
)
def test_two_calls_in_another_order_are_an_error_with_both_lines(program, world_size):
    with pytest.raises(Mismatch) as caught:
        run(program, world_size, timeout=600)
    said = str(caught.value).splitlines()[0]
    assert "ranks 0 and 1 make the same calls in another order" in said
    assert said.count("test_order_of_calls.py, line") == 4
    assert len(set(re.findall(r"line (\d+)\)", said))) >= 2


def meets_under_a_label(world):
    """Each turn another rank contributes."""
    for turn in range(2 * world.size):
        with world.label("turn"):
            if turn % world.size == world.rank:
                world.all_reduce(torch.ones(3))
            else:
                world.all_reduce(torch.zeros(3))


def has_a_branch_for_the_root(world):
    for _ in range(3):
        if world.rank == 0:
            world.broadcast(torch.ones(3))
        else:
            world.broadcast(torch.empty(3))


def has_another_root_in_each_step(world):
    for root in range(2 * world.size):
        if world.rank == root % world.size:
            world.broadcast(torch.ones(3), root % world.size)
        else:
            world.broadcast(torch.empty(3), root % world.size)


def has_barriers_on_other_lines(world):
    meet = world.barrier
    if world.rank == 0:
        world.barrier()
        meet()
    else:
        meet()
        world.barrier()


def has_a_pool_of_buffers(world):
    """Each rank gives its buffers back in an order of its own."""
    free = deque([torch.ones(3), torch.zeros(3)])
    for step in range(6):
        buffer = free.popleft()
        world.all_reduce(buffer, out=buffer)
        if step % 2 == world.rank % 2:
            free.append(buffer)
        else:
            free.appendleft(buffer)


def trains_for_steps(world):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    def average(p):
        world.all_reduce(p.grad / world.size)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(average)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        for p in model.parameters():
            world.all_reduce(p.grad, out=p.grad)
            p.grad = None


def goes_through_samples_in_an_order_of_its_own(world):
    samples = [torch.full((3,), float(n)) for n in range(4)]
    for sample in samples[:: -1 if world.rank == 1 else 1]:
        world.all_reduce(sample.square().sum())


RIGHT = [
    meets_under_a_label,
    has_a_branch_for_the_root,
    has_another_root_in_each_step,
    has_barriers_on_other_lines,
    has_a_pool_of_buffers,
    trains_for_steps,
    goes_through_samples_in_an_order_of_its_own,
]


def all_of_them(world):
    for program in RIGHT:
        program(world)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_what_only_looks_like_another_order_is_right(world_size, capsys):
    run(all_of_them, world_size, timeout=600)
    reported = capsys.readouterr().out
    assert reported.count("[labkit]") == 1 + world_size, "the roots' branches, one line for each"


def on_one_line(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    mine = (bias, weight) if world.rank == 1 else (weight, bias)
    return [world.all_reduce(t) for t in mine]


def test_what_meets_on_one_line_is_not_seen():
    first, second = run(on_one_line, 2, timeout=600).values[0]
    assert torch.equal(first, second) and torch.equal(first, torch.ones(3)), "1 + 0 in both"
