"""The grader of overlap_backward: what it accepts, and what cannot fool it."""

from pathlib import Path

import pytest
import torch

from labkit.data_parallel import DDP
from labkit.grade import check
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "overlap_backward"


def two_buckets_and_a_callback_of_the_engine(module, loss, group):
    """The head, and the rest; the engine calls back when backward is through."""
    trained = [each for each in module.parameters() if each.requires_grad]
    head = list(module.head.parameters())
    buckets = [head, [each for each in trained if not any(each is other for other in head)]]
    ready, in_flight = [], []

    def on_gradient(parameter):
        if not ready:
            torch.autograd.Variable._execution_engine.queue_callback(finish)
        ready.append(id(parameter))
        while len(in_flight) < 2 and all(id(p) in ready for p in buckets[len(in_flight)]):
            flat = torch.cat([each.grad.flatten() for each in buckets[len(in_flight)]])
            flat /= group.size
            in_flight.append(group.all_reduce(flat, out=flat, wait=False))

    def finish():
        for bucket, pending in zip(buckets, in_flight):
            parts = pending.wait().split([each.numel() for each in bucket])
            for each, part in zip(bucket, parts):
                each.grad = part.view_as(each)

    hooks = [each.register_post_accumulate_grad_hook(on_gradient) for each in trained]
    loss.backward()
    for hook in hooks:
        hook.remove()


def new_tensors_in_an_order_of_its_own(module, loss, group):
    """By name: head, left, right. What is summed is not in the gradient's memory."""
    order = [p for _, p in sorted(module.named_parameters()) if p.requires_grad]
    ready, pendings = set(), []

    def on_gradient(parameter):
        ready.add(id(parameter))
        for each in order[len(pendings) :]:
            if id(each) not in ready:
                return
            pendings.append(group.all_reduce(each.grad, wait=False))

    hooks = [each.register_post_accumulate_grad_hook(on_gradient) for each in order]
    loss.backward()
    for each, hook, pending in zip(order, hooks, pendings):
        each.grad = pending.wait() / group.size
        hook.remove()


@pytest.mark.parametrize(
    "program", [two_buckets_and_a_callback_of_the_engine, new_tensors_in_an_order_of_its_own]
)
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def reduced(parameters, group):
    """The rest of a right answer, when backward is through."""
    for each in parameters:
        group.all_reduce(each.grad, op="mean", out=each.grad)


def trained(module):
    return [each for each in reversed(list(module.parameters())) if each.requires_grad]


def labkits_own(module, loss, group):
    DDP(module, group)
    loss.backward()


def something_early_for_show(module, loss, group):
    """An all-reduce that begins in time, and that nobody needs."""
    pendings = []

    def begin(parameter):
        if not pendings:
            pendings.append(group.all_reduce(torch.zeros(1), wait=False))

    hooks = [each.register_post_accumulate_grad_hook(begin) for each in trained(module)]
    loss.backward()
    for each in (*hooks, *pendings):
        each.remove() if hasattr(each, "remove") else each.wait()
    reduced(trained(module), group)


def without_backward(module, loss, group):
    parameters = trained(module)
    for each, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        each.grad = gradient
    reduced(parameters, group)


def backward_twice(module, loss, group):
    loss.backward(retain_graph=True)
    for each in trained(module):
        each.grad = None
    loss.backward()
    reduced(trained(module), group)


def waits_for_the_one_before(module, loss, group):
    """One in flight at a time, and none when the last gradient is there."""
    pendings = []

    def begin(parameter):
        for pending in pendings:
            pending.wait()
        if len(pendings) < 1:
            pendings.append(group.all_reduce(parameter.grad, out=parameter.grad, wait=False))

    first, *others = trained(module)
    hooks = [each.register_post_accumulate_grad_hook(begin) for each in (first, *others)]
    loss.backward()
    for each in hooks:
        each.remove()
    first.grad /= group.size
    reduced(others, group)


def uses_the_sum_too_early(module, loss, group):
    """Copies the gradient before the sum is there."""
    pendings, parameters = [], trained(module)

    def begin(parameter):
        pending = group.all_reduce(parameter.grad, op="mean", out=parameter.grad, wait=False)
        pendings.append(pending)
        parameter.grad = parameter.grad.clone()

    hooks = [each.register_post_accumulate_grad_hook(begin) for each in parameters]
    loss.backward()
    for each in (*hooks, *pendings):
        each.remove() if hasattr(each, "remove") else each.wait()


WRONG = {
    labkits_own: "calls another operation than all_reduce",
    something_early_for_show: "communicates more than the gradients",
    without_backward: "does not run backward once",
    backward_twice: "does not run backward once",
    waits_for_the_one_before: "waits inside backward",
    uses_the_sum_too_early: "another gradient than the mean",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


def test_a_verdict_on_order_shows_the_events_of_a_rank():
    mutant = WORKSPACE.root / "tests" / "mutants" / NAME / "after_backward.py"
    details = check(NAME, mutant, workspace=WORKSPACE).finding.details.splitlines()
    assert details[0].startswith("gradient of head.")
    through = details.index("backward is through")
    assert all(line.startswith("gradient of ") for line in details[:through])
    assert not any(line.startswith("gradient of ") for line in details[through:])
