"""The grader of accumulate_without_sync: what it accepts, and what cannot fool it."""

import random
from pathlib import Path

import pytest
import torch

from labkit.grade import check
from labkit.grade.graders.accumulate_inputs import gradients_of
from labkit.grade.graders.accumulate_theories import mean, theories
from labkit.grade.graders.accumulate_without_sync import GRADER
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "accumulate_without_sync"


def flat_and_divided_at_the_end(module, loss_fn, microbatches, group):
    for microbatch in microbatches:
        loss_fn(module, microbatch).backward()
    parameters = list(module.parameters())
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    flat = group.all_reduce(flat) / (group.size * len(microbatches))
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        parameter.grad = part.view_as(parameter)


def overlapped_with_the_last_backward(module, loss_fn, microbatches, group):
    in_flight = []

    def begin(parameter):
        pending = group.all_reduce(parameter.grad, out=parameter.grad, wait=False)
        in_flight.append(pending)

    for i, microbatch in enumerate(microbatches, start=1):
        if i == len(microbatches):
            for parameter in module.parameters():
                parameter.register_post_accumulate_grad_hook(begin)
        loss = loss_fn(module, microbatch)
        loss.backward(torch.tensor(1 / (group.size * len(microbatches)), dtype=loss.dtype))
    for pending in in_flight:
        pending.wait()


def without_backward(module, loss_fn, microbatches, group):
    parameters = list(module.parameters())
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    for microbatch in microbatches:
        for total, part in zip(sums, torch.autograd.grad(loss_fn(module, microbatch), parameters)):
            total += part / len(microbatches)
    for parameter, total in zip(parameters, sums):
        parameter.grad = group.all_reduce(total, op="mean")


@pytest.mark.parametrize(
    "program",
    [flat_and_divided_at_the_end, overlapped_with_the_last_backward, without_backward],
)
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_theories_of_mistakes_differ_from_what_is_right_and_from_each_other(world_size):
    for seed in range(20):
        of = gradients_of(GRADER.cases(world_size, random.Random(seed))[0])
        predictions = {id(theory): theory.gradients(0)["first.bias"] for theory in theories(of)}
        predictions["right"] = mean(of)["first.bias"]
        values = list(predictions.values())
        for i, one in enumerate(values):
            assert not any(torch.allclose(one, other) for other in values[:i])


def all_in_one_batch(module, loss_fn, microbatches, group):
    """No memory is saved."""
    together = tuple(torch.cat(parts) for parts in zip(*microbatches))
    loss_fn(module, together).backward()
    for parameter in module.parameters():
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)


def one_ahead(module, loss_fn, microbatches, group):
    """Two microbatches in memory at a time."""
    waiting = None
    for microbatch in microbatches:
        loss = loss_fn(module, microbatch) / len(microbatches)
        if waiting is not None:
            waiting.backward()
        waiting = loss
    waiting.backward()
    for parameter in module.parameters():
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)


def reduces_gradients_in_pieces(module, loss_fn, microbatches, group):
    for microbatch in microbatches:
        (loss_fn(module, microbatch) / len(microbatches)).backward()
    for parameter in module.parameters():
        halves = parameter.grad.flatten().tensor_split(2)
        whole = torch.cat([group.all_reduce(half, op="mean") for half in halves])
        parameter.grad = whole.view_as(parameter)


def the_last_gradient_only_travels(module, loss_fn, microbatches, group):
    parameters = list(module.parameters())
    for microbatch in microbatches:
        before = [0 if p.grad is None else p.grad.clone() for p in parameters]
        (loss_fn(module, microbatch) / len(microbatches)).backward()
    for parameter, earlier in zip(parameters, before):
        last = group.all_reduce(parameter.grad - earlier, op="mean")
        parameter.grad = earlier + last


def steps_as_well(module, loss_fn, microbatches, group):
    for microbatch in microbatches:
        (loss_fn(module, microbatch) / len(microbatches)).backward()
    for parameter in module.parameters():
        group.all_reduce(parameter.grad, op="mean", out=parameter.grad)
        parameter.data -= 0.1 * parameter.grad


def with_a_barrier(module, loss_fn, microbatches, group):
    group.barrier()


WRONG = {
    all_in_one_batch: "puts microbatches together",
    one_ahead: "keeps the activations of several microbatches",
    reduces_gradients_in_pieces: "communicates more than the gradients",
    the_last_gradient_only_travels: "only the last microbatch is averaged",
    steps_as_well: "changes the parameters",
    with_a_barrier: "calls another operation than all_reduce",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict
