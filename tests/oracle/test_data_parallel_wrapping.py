"""One module, wrapped: again, copied, saved, unfrozen, and used twice before its backward pass."""

import copy
import gc
import io
import re
import weakref

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit import RankError, run
from labkit.data_parallel import DDP, BucketedDDP, NaiveDDP
from labkit.data_parallel.local_sgd import LocalSGD

LADDER = {"naive": NaiveDDP, "bucketed": BucketedDDP, "overlapped": DDP}


def one_number() -> nn.Linear:
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    return module


@pytest.mark.parametrize(("wrap", "expected"), [(NaiveDDP, [1.5, 1.5]), (LocalSGD, [1.0, 2.0])])
def test_only_the_newest_wrapper_averages_whatever_its_strategy(wrap, expected):
    def wraps_again(world):
        module = one_number()
        DDP(module, world)
        model = wrap(module, world)
        model(torch.full((1, 1), 1.0 + world.rank)).sum().backward()
        model.reduce_gradients()
        return module.weight.grad.item()

    result = run(wraps_again, 2)
    assert result.values == expected
    reduced = result.traffic[0].by_operation.get("all_reduce")
    assert (reduced.count if reduced else 0) == (wrap is NaiveDDP)


@pytest.mark.parametrize("is_nested", [True, False])
def test_a_parameter_is_not_averaged_by_the_wrappers_of_two_modules(is_nested):
    # Each would divide by the number of ranks: half of the gradient on two.
    def shares(world):
        shared = one_number()
        first = DDP(shared if is_nested else nn.Sequential(shared, one_number()), world)
        second = nn.Sequential(first if is_nested else shared, one_number())
        try:
            DDP(second, world)
        except TypeError as error:
            DDP(shared if is_nested else first.module, world)  # again: it replaces its wrapper
            return str(error)

    name = "0.module.weight" if is_nested else "0.weight"
    for reported in run(shares, 2).values:
        assert re.match(rf"{name}: averaged in backward by the wrapper of another", reported)


@pytest.mark.parametrize("wrap", [*LADDER.values(), LocalSGD])
def test_a_wrapped_module_can_be_copied_and_saved(wrap):
    # As for an average of parameters over the steps, or a checkpoint of the whole module.
    def copies(world):
        model = wrap(one_number(), world)
        copied, file = copy.deepcopy(model.module), io.BytesIO()
        torch.save(model.module, file)
        copied(torch.full((1, 1), 1.0 + world.rank)).sum().backward()
        return copied.weight.grad.item()

    assert run(copies, 2).values == [1.0, 2.0], "a copy is nobody's replica"


@pytest.mark.parametrize("wrap", [*LADDER.values(), LocalSGD])
def test_a_wrapper_is_not_copied_since_nothing_would_average_the_copys_gradients(wrap):
    with pytest.raises(RankError, match="copy or save its `module`, and wrap the copy"):
        run(lambda world: copy.deepcopy(wrap(one_number(), world)), 1)


@pytest.mark.parametrize("wrap", LADDER.values())
def test_a_module_and_its_buckets_are_freed_with_their_last_reference(wrap):
    def is_freed(world):
        module = one_number()
        model = wrap(module, world)
        model(torch.ones(1, 1)).sum().backward()
        model.reduce_gradients()
        weak = weakref.ref(module)
        del module, model
        gc.collect()
        return weak() is None

    assert run(is_freed, 2).values == [True, True]


def test_a_module_is_averaged_even_if_no_variable_refers_to_its_wrapper():
    def forgets_the_wrapper(world):
        module = one_number()
        value = DDP(module, world)(torch.full((1, 1), 1.0 + world.rank)).sum()
        gc.collect()
        value.backward()
        return module.weight.grad.item()

    assert run(forgets_the_wrapper, 2).values == [1.5, 1.5]


@pytest.mark.parametrize("rung", ["bucketed", "overlapped"])
def test_a_parameter_that_is_unfrozen_after_wrapping_is_named(rung):
    def unfreezes(world):
        module = nn.Sequential(one_number().requires_grad_(False), one_number())
        model = LADDER[rung](module, world)
        module[0].requires_grad_()
        model(torch.ones(1, 1)).sum().backward()
        model.reduce_gradients()

    with pytest.raises(RankError, match="0.weight was frozen when .* and wrap the module again"):
        run(unfreezes, 2)


# Before 2.13 torch's DDP broadcasts buffers into those that backward needs.
IS_OLD = torch.__version__ < "2.13"


@pytest.mark.parametrize("wrap", [*LADDER.values(), *([] if IS_OLD else [DistributedDataParallel])])
def test_two_forward_passes_before_backward_may_share_a_batch_norm(wrap):
    # As with pairs of images: between the passes rank 0's running means are broadcast.
    def passes_twice(world):
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        model = wrap(module)
        both = model(torch.randn(5, 3)) - model(torch.randn(5, 3))
        (both**2).sum().backward()
        return bool(module[0].weight.grad.any())

    assert run(passes_twice, 2).values == [True, True]
