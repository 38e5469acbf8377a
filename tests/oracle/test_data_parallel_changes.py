"""Modules that change, or are used in another order, after they were wrapped: errors by name."""

import pytest
import torch
from torch import nn

from labkit import Mismatch, RankError, run
from labkit.data_parallel import DDP, BucketedDDP, NaiveDDP, OverlappedDDP

X = torch.ones(2, 3)
BUCKETS = {"bucketed": BucketedDDP, "overlapped": DDP}


def passed(model):
    model(X).sum().backward()
    model.reduce_gradients()


@pytest.mark.parametrize("rung", [NaiveDDP, BucketedDDP, DDP], ids=lambda rung: rung.__name__)
def test_gradients_of_two_equal_modules_are_never_added_if_one_rank_uses_them_in_another_order(
    rung,
):
    def program(world):
        models = [rung(nn.Linear(3, 1), world) for _ in range(2)]
        for model in models if world.rank else models[::-1]:
            passed(model)

    with pytest.raises(Mismatch, match="gives label 'module 2, "):
        run(program, 2, timeout=600)


@pytest.mark.parametrize("rung", [NaiveDDP, *BUCKETS.values()], ids=lambda rung: rung.__name__)
def test_a_parameter_that_was_added_differs_by_rank_and_is_named(rung):
    def program(world):
        model = rung(nn.Linear(3, 3), world)
        model.module.late = nn.Parameter(torch.ones(3))
        passed(model)

    with pytest.raises(RankError, match="late was added after the module was wrapped"):
        run(program, 2, timeout=600)


@pytest.mark.parametrize("rung", [BucketedDDP, OverlappedDDP, DDP], ids=lambda rung: rung.__name__)
def test_a_parameter_that_is_frozen_after_wrapping_is_named(rung):
    def program(world):
        model = rung(nn.Linear(3, 3), world)
        passed(model)
        model.module.bias.requires_grad_(False)
        passed(model)

    with pytest.raises(RankError, match="bias was frozen after the module was wrapped.* again"):
        run(program, 2, timeout=600)


def test_a_parameter_that_is_frozen_after_wrapping_counts_as_unused_with_find_unused_parameters():
    def program(world):
        model = DDP(nn.Linear(3, 3), world, find_unused_parameters=True)
        model.module.bias.requires_grad_(False)
        passed(model)
        return model.module.bias.grad, model.module.weight.grad.tolist()

    values = run(program, 2).values
    assert values[0] == values[1] == (None, [[2.0] * 3] * 3)


def test_a_hook_that_removes_gradients_before_they_are_averaged_is_an_error():
    def program(world):
        module = nn.Linear(3, 3)
        module.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        passed(DDP(module, world))

    with pytest.raises(RankError, match="has removed the gradient of weight"):
        run(program, 2, timeout=600)


@pytest.mark.parametrize("rung", BUCKETS.values(), ids=BUCKETS)
def test_a_model_that_was_converted_has_buckets_of_another_dtype_and_is_named(rung):
    def program(world):
        model = rung(nn.Linear(3, 3), world).double()
        model(torch.ones(1, 3).double()).sum().backward()
        model.reduce_gradients()

    with pytest.raises(RankError, match="weight, bias were converted or moved after .* wrap the"):
        run(program, 2, timeout=600)
