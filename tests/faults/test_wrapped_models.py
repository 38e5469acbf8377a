"""torch's DDP over models that register the same parameters in another order."""

import copy
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from labkit import Mismatch, run


class Named(nn.Module):
    def __init__(self, names, frozen=()):
        super().__init__()
        for name in (*names, *frozen):
            self.register_parameter(name, nn.Parameter(torch.ones(2), name not in frozen))


def wraps(world, **options):
    names = ["down", "gate", "up"]
    model = Named(names if world.rank != world.size - 1 else ["down", "up", "gate"])
    DistributedDataParallel(model, **options)  # <-


def wraps_over_a_group(world):
    wraps(world, process_group=dist.new_group())


def wraps_over_a_mesh(world):
    wraps(world, device_mesh=init_device_mesh("cpu", (world.size,)))


def wraps_the_second_model_in_another_order(world):
    DistributedDataParallel(Named(["a", "b"]))
    wraps(world)


@pytest.mark.parametrize(
    "program",
    [wraps, wraps_over_a_group, wraps_over_a_mesh, wraps_the_second_model_in_another_order],
    ids=lambda program: program.__name__,
)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_parameters_in_another_order_are_an_error_that_names_them_and_the_line(program, world_size):
    with pytest.raises(Mismatch) as caught:
        run(program, world_size, timeout=30)
    said = str(caught.value)
    last = world_size - 1
    assert f"up on rank {last}, and gate on rank" in said or f"and up on rank {last}" in said
    assert "DDP wraps a Named whose parameter 1 is" in said
    with open(__file__) as file:
        line = next(n for n, text in enumerate(file, start=1) if text.rstrip().endswith("# <-"))
    assert f"test_wrapped_models.py, line {line}" in said


def twins(world):
    """Each trains a model of its own, and the sum is meant."""
    DistributedDataParallel(Named(["mine", "theirs"] if world.rank == 0 else ["x", "y"]))


def frozen_in_another_order(world):
    """What is not trained has no gradient."""
    DistributedDataParallel(Named(["a", "b"], ["p", "q"] if world.rank == 0 else ["q", "p"]))


def several_in_several_groups(world):
    for number in range(3):
        group = dist.new_group(timeout=timedelta(seconds=20 + number))
        DistributedDataParallel(Named([f"a{number}", "b"]), process_group=group)
        DistributedDataParallel(Named(["c", f"d{number}"]))


def two_of_the_same_names(world):
    DistributedDataParallel(Named(["a", "b"]))
    DistributedDataParallel(Named(["b", "a"]))


def another_order_in_each_row_of_a_mesh(world):
    """Only the ranks of one row add up gradients."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "dp"))
    names = ["a", "b"] if world.rank < 2 else ["b", "a"]
    DistributedDataParallel(Named(names), device_mesh=mesh["dp"])


@pytest.mark.parametrize(
    "program",
    [
        twins,
        frozen_in_another_order,
        several_in_several_groups,
        two_of_the_same_names,
        another_order_in_each_row_of_a_mesh,
    ],
)
def test_what_is_in_order_or_has_other_names_is_right(program):
    run(program, 4, timeout=30)


def warns(world):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DistributedDataParallel(nn.Linear(1, 1), broadcast_buffers=False)
    return [each.filename for each in caught if "broadcast_buffers" in str(each.message)]


def test_ddps_warnings_name_the_readers_line():
    for files in run(warns, 2, timeout=30).values:
        assert files == [__file__]


def comes_back_from_a_pickle(world):
    """On one rank alone, which is no model of its own there."""
    model = DistributedDataParallel(nn.Linear(1, 1))
    if world.rank == 1:
        copy.deepcopy(model)
    DistributedDataParallel(Named(["a", "b"] if world.rank else ["b", "a"]))


def test_a_ddp_out_of_a_pickle_is_not_counted():
    with pytest.raises(Mismatch, match="wraps a Named whose parameter 0"):
        run(comes_back_from_a_pickle, 2, timeout=30)


def test_what_ddp_refuses_is_refused_in_its_own_words():
    with pytest.raises(Exception, match=r"__init__\(\) got an unexpected keyword"):
        run(lambda world: DistributedDataParallel(nn.Linear(1, 1), proces_group=None), 2)
    with pytest.raises(Exception, match="DistributedDataParallel is not needed when a module"):
        run(lambda world: DistributedDataParallel(nn.ReLU()), 2)
