"""The grader of zero3_unit: what it accepts, and what cannot fool it."""

import random
from pathlib import Path

import pytest
import torch

from labkit.collectives import ring_all_gather
from labkit.grade import check
from labkit.grade.graders.gradient_values import is_close
from labkit.grade.graders.zero3_inputs import given_in, random_cases
from labkit.grade.graders.zero3_values import mistakes, right
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "zero3_unit"


def padded(x, group):
    return torch.cat([x, x.new_zeros(-len(x) % group.size)])


def one_in_advance(units, x, loss_gradient, group):
    """The next unit is gathered while this one computes, as FSDP does; the last one stays."""
    order = [*range(len(units)), *reversed(range(len(units) - 1))]
    pending, inputs, found = [], [], {}

    def gather(step):
        if step < len(order):
            pending.append(group.all_gather(units[order[step]].shard, wait=False))

    def weights_of(step):
        whole = pending.pop().wait()
        gather(step + 1)
        return whole[: units[order[step]].numel]

    def backward(i, weights, gradient):
        gradient, of_weights = units[i].backward(weights, inputs.pop(), gradient)
        found[i] = group.reduce_scatter(padded(of_weights, group)) / group.size
        return gradient

    gather(0)
    for step, unit in enumerate(units):
        inputs.append(x)
        weights = weights_of(step)
        x = unit.forward(weights, x)
    gradient = backward(len(units) - 1, weights, loss_gradient(x))
    del weights
    for step in range(len(units), len(order)):
        gradient = backward(order[step], weights_of(step), gradient)
    return [found[i] for i in range(len(units))]


def released_by_resizing(units, x, loss_gradient, group):
    """Gathered tensors stay in a list, and their storages are empty, as in FSDP."""
    kept, inputs, found = [], [], []
    for unit in units:
        inputs.append(x)
        kept.append(group.all_gather(unit.shard))
        x = unit.forward(kept[-1][: unit.numel], x)
        kept[-1].untyped_storage().resize_(0)
    gradient = loss_gradient(x)
    for unit, whole, x in zip(units[::-1], kept[::-1], inputs[::-1]):
        whole.untyped_storage().resize_(whole.nbytes)
        group.all_gather(unit.shard, out=whole)
        gradient, of_weights = unit.backward(whole[: unit.numel], x, gradient)
        whole.untyped_storage().resize_(0)
        found.insert(0, group.reduce_scatter(padded(of_weights, group) / group.size))
    return tuple(found)


def the_last_two_stay(units, x, loss_gradient, group):
    """Two units' weights may be in memory, so those of the last two need no second gather."""
    inputs, kept, found = [], {}, []
    for i, unit in enumerate(units):
        inputs.append(x)
        weights = group.all_gather(unit.shard)[: unit.numel]
        x = unit.forward(weights, x)
        if i >= len(units) - 2:
            kept[i] = weights
        del weights
    gradient = loss_gradient(x)
    for i in reversed(range(len(units))):
        unit = units[i]
        weights = kept.pop(i) if i in kept else group.all_gather(unit.shard)[: unit.numel]
        gradient, of_weights = unit.backward(weights, inputs.pop(), gradient)
        del weights
        found.insert(0, group.reduce_scatter(padded(of_weights, group), op="mean"))
    return found


@pytest.mark.parametrize("program", [one_in_advance, released_by_resizing, the_last_two_stay])
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def backward_through(units, inputs, gradient, group, found):
    """The second half of a right answer."""
    for unit, x in zip(units[::-1], inputs[::-1]):
        weights = group.all_gather(unit.shard)[: unit.numel]
        gradient, of_weights = unit.backward(weights, x, gradient)
        found.insert(0, group.reduce_scatter(padded(of_weights, group), op="mean"))
    return found


def hands_copies_to_the_units(units, x, loss_gradient, group):
    """A unit's weights are released, and what they are a copy of is not."""
    kept, inputs = [], []
    for unit in units:
        inputs.append(x)
        kept.append(group.all_gather(unit.shard))
        x = unit.forward(kept[-1][: unit.numel].clone(), x)
    return backward_through(units, inputs, loss_gradient(x), group, [])


def two_in_advance(units, x, loss_gradient, group):
    inputs, pending = [], [group.all_gather(unit.shard, wait=False) for unit in units[:2]]
    for i, unit in enumerate(units):
        inputs.append(x)
        pending += [group.all_gather(each.shard, wait=False) for each in units[i + 2 : i + 3]]
        x = unit.forward(pending.pop(0).wait()[: unit.numel], x)
    return backward_through(units, inputs, loss_gradient(x), group, [])


def forward_twice(units, x, loss_gradient, group):
    inputs = []
    for unit in units:
        inputs.append(x)
        weights = group.all_gather(unit.shard)[: unit.numel]
        unit.forward(weights, x)
        x = unit.forward(weights, x)
    return backward_through(units, inputs, loss_gradient(x), group, [])


def steps_the_shards(units, x, loss_gradient, group):
    inputs = []
    for unit in units:
        inputs.append(x)
        x = unit.forward(group.all_gather(unit.shard)[: unit.numel], x)
    found = backward_through(units, inputs, loss_gradient(x), group, [])
    for unit, gradient in zip(units, found):
        unit.shard -= gradient
    return found


def labkits_own(units, x, loss_gradient, group):
    ring_all_gather(units[0].shard, units[0].numel, group)


def returns_nothing(units, x, loss_gradient, group):
    inputs = []
    for unit in units:
        inputs.append(x)
        x = unit.forward(group.all_gather(unit.shard)[: unit.numel], x)
    backward_through(units, inputs, loss_gradient(x), group, [])


def returns_sparse_tensors(units, x, loss_gradient, group):
    inputs = []
    for unit in units:
        inputs.append(x)
        x = unit.forward(group.all_gather(unit.shard)[: unit.numel], x)
    found = backward_through(units, inputs, loss_gradient(x), group, [])
    return [each.to_sparse() for each in found]


def gathers_three_times(units, x, loss_gradient, group):
    for unit in units:
        group.all_gather(unit.shard)
    found = []
    inputs = []
    for unit in units:
        inputs.append(x)
        x = unit.forward(group.all_gather(unit.shard)[: unit.numel], x)
    return backward_through(units, inputs, loss_gradient(x), group, found)


def backward_first(units, x, loss_gradient, group):
    weights = group.all_gather(units[0].shard)[: units[0].numel]
    units[0].backward(weights, x, x)


def the_input_times_two(units, x, loss_gradient, group):
    """Of the right shape."""
    inputs = []
    for unit in units:
        inputs.append(2 * x)
        x = unit.forward(group.all_gather(unit.shard)[: unit.numel], x)
    return backward_through(units, inputs, loss_gradient(x), group, [])


WRONG = {
    backward_first: "goes backward before forward",
    the_input_times_two: "gives backward another x than forward",
    hands_copies_to_the_units: "never releases what it has gathered",
    two_in_advance: "gathers too many units in advance",
    forward_twice: "uses a unit more than once",
    steps_the_shards: "changes the shards",
    labkits_own: "calls another operation than the three",
    returns_nothing: "returns something else than the gradients of the shards",
    returns_sparse_tensors: "returns something else than the gradients of the shards",
    gathers_three_times: "gathers too many units in advance",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_no_mistake_looks_like_a_right_answer_or_another_whatever_the_seed(world_size):
    for seed in range(3):
        for case in random_cases(world_size, random.Random(seed))[:2]:
            given = given_in(case)
            results = [("right", right(given))]
            for each in mistakes(given):
                results.append((each.name, [each.gradients(r) for r in range(world_size)]))
            for name, result in results:
                for other, its in results:
                    pairs = [pair for a, b in zip(result, its) for pair in zip(a, b)]
                    same = all(is_close(one, two) for one, two in pairs)
                    assert name == other or not same, (name, other)


def test_sizes_differ_so_that_another_units_weights_do_not_fit():
    for seed in range(20):
        for case in random_cases(3, random.Random(seed)):
            numels = [weights.numel() for weights in given_in(case).weights]
            assert len(set(numels)) == len(numels) or len(numels) > 4
            assert all(one != two for one, two in zip(numels, numels[1:]))
