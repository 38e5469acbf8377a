"""The grader of average_gradients: what it accepts, and what cannot fool it."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from labkit.collectives import ring_all_reduce
from labkit.grade import check
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "average_gradients"


def with_zeros(module):
    """The trained parameters, each with a gradient."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return trained


def flat_by_dtype(module, group):
    by_dtype = {}
    for parameter in with_zeros(module):
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for parameters in by_dtype.values():
        flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
        group.all_reduce(flat, op="mean", out=flat)
        for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters])):
            parameter.grad = part.view_as(parameter)


def all_in_flight(module, group):
    trained = with_zeros(module)
    pendings = [group.all_reduce(p.grad, out=p.grad, wait=False) for p in reversed(trained)]
    for pending in pendings:
        pending.wait()
    for parameter in trained:
        parameter.grad.mul_(1 / group.size)


def new_tensors(module, group):
    for parameter in with_zeros(module):
        parameter.grad = group.all_reduce(parameter.grad, wait=False).wait() / group.size


@pytest.mark.parametrize("program", [flat_by_dtype, all_in_flight, new_tensors])
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def through_torch_distributed(module, group):
    for parameter in with_zeros(module):
        dist.all_reduce(parameter.grad)


def labkits_own_ring(module, group):
    for parameter in with_zeros(module):
        parameter.grad = ring_all_reduce(parameter.grad, group) / group.size


SHARED = "labkit-test-average-"


def through_files_with_all_reduces_for_show(module, group):
    trained = with_zeros(module)
    folder = Path(tempfile.gettempdir())
    mine = f"{SHARED}{os.getppid()}-{group.size}-"
    torch.save([parameter.grad for parameter in trained], folder / f"{mine}{group.rank}")
    for parameter in trained:
        group.all_reduce(parameter.grad)
    all_of = [torch.load(folder / f"{mine}{rank}") for rank in range(group.size)]
    for i, parameter in enumerate(trained):
        parameter.grad = torch.stack([its[i] for its in all_of]).sum(0) / group.size
    group.all_reduce(torch.zeros(()))  # or a rank would write its next file too early


def all_parameters_in_float64(module, group):
    """Right, and twice the bytes of float32."""
    for parameter in with_zeros(module):
        mean = group.all_reduce(parameter.grad.double(), op="mean")
        parameter.grad = mean.to(parameter.dtype)


def frozen_ones_too(module, group):
    for parameter in module.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)


def takes_the_step_too(module, group):
    for parameter in with_zeros(module):
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)
        parameter.data -= 0.1 * parameter.grad


def begins_and_does_not_wait(module, group):
    for parameter in with_zeros(module):
        parameter.grad /= group.size
        group.all_reduce(parameter.grad, out=parameter.grad, wait=False)


def divides_while_it_is_under_way(module, group):
    for parameter in with_zeros(module):
        pending = group.all_reduce(parameter.grad, out=parameter.grad, wait=False)
        parameter.grad /= group.size
        pending.wait()


WRONG = {
    through_torch_distributed: "calls another operation than all_reduce",
    labkits_own_ring: "calls another operation than all_reduce",
    through_files_with_all_reduces_for_show: "communicates more than the gradients",
    all_parameters_in_float64: "communicates more than the gradients",
    frozen_ones_too: "gives a frozen parameter a gradient",
    takes_the_step_too: "changes the parameters",
    begins_and_does_not_wait: "never waits for an operation",
    divides_while_it_is_under_way: "sums instead of averaging",
}


@pytest.fixture(scope="module", autouse=True)
def no_file_is_left():
    yield
    for path in Path(tempfile.gettempdir()).glob(f"{SHARED}*"):
        path.unlink()


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict
