"""The grader of checkpoint_block: what it accepts, and what cannot fool it."""

import random
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint

from labkit.grade import check
from labkit.grade.graders.checkpoint_inputs import given_in, random_cases
from labkit.grade.workspace import Workspace
from labkit.recompute import recompute

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "checkpoint_block"


def hooks_on_saved_tensors(block, x):
    """What autograd would save is dropped, and is there again when it asks for the first of it."""
    state, saved = torch.get_rng_state(), []
    number = iter(range(10**6))

    def drop(tensor):
        return next(number)

    def bring_back(which):
        if not saved:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(state)
                hooks = torch.autograd.graph.saved_tensors_hooks(
                    lambda tensor: saved.append(tensor.detach()), lambda _: None
                )
                with hooks:
                    block(x.detach().requires_grad_(x.requires_grad))
        tensor, saved[which] = saved[which], None
        if all(each is None for each in saved):
            saved.clear()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(drop, bring_back):
        return block(x)


def parameters_by_backward(block, x):
    """The second pass's backward() fills .grad; an input that needs a gradient keeps the graph."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, anchor):
            ctx.state = torch.get_rng_state()
            ctx.save_for_backward(x)
            return block(x)

        @staticmethod
        def backward(ctx, output_gradient):
            (x,) = ctx.saved_tensors
            x = x.detach().requires_grad_()
            now = torch.get_rng_state()
            torch.set_rng_state(ctx.state)
            with torch.enable_grad():
                y = block(x)
            torch.set_rng_state(now)
            y.backward(output_gradient)
            return x.grad, None

    return Again.apply(x, torch.empty(0, requires_grad=True))


@pytest.mark.parametrize("program", [hooks_on_saved_tensors, parameters_by_backward])
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def torchs_own(block, x):
    return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)


def labkits_own(block, x):
    return recompute(block, x)


def without_dropout(block, x):
    """Two passes that agree, of another block."""
    with torch.random.fork_rng(devices=[]):
        return parameters_by_backward(block, x)


def nothing(block, x):
    """Forgets the return."""
    parameters_by_backward(block, x)


def gradients_in_forward(block, x):
    """Everything is computed at once, and scaled in backward by what comes in."""

    class Early(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, anchor):
            x = x.detach().requires_grad_()
            state = torch.get_rng_state()
            with torch.enable_grad():
                y = block(x).sum()
            torch.set_rng_state(state)
            ctx.gradients = torch.autograd.grad(y, (x, *block.parameters()), allow_unused=True)
            return block(x.detach()).detach()

        @staticmethod
        def backward(ctx, output_gradient):
            for parameter, gradient in zip(block.parameters(), ctx.gradients[1:]):
                parameter.grad = gradient * output_gradient.mean()
            return ctx.gradients[0] * output_gradient, None

    return Early.apply(x, torch.empty(0, requires_grad=True))


def its_sum(block, x):
    return parameters_by_backward(block, x).sum()


def sparse(block, x):
    return parameters_by_backward(block, x).to_sparse()


WRONG = {
    its_sum: "returns another output than the block",
    sparse: "returns something that is no tensor",
    torchs_own: "calls the answer itself",
    labkits_own: "calls the answer itself",
    nothing: "returns nothing",
    gradients_in_forward: "other gradients than the block",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


def test_a_generator_that_the_first_pass_does_not_advance_is_no_checkpoint_of_the_block():
    """Three blocks in a row would all drop the same."""
    verdict = check(NAME, without_dropout, workspace=WORKSPACE)
    assert verdict.diagnosis == "returns another output than the block", verdict


def test_a_graph_that_is_kept_elsewhere_is_found_by_its_bytes(tmp_path):
    file = tmp_path / "elsewhere.py"
    text = WORKSPACE.solution(NAME).read_text()
    kept = "        with torch.enable_grad(), torch.random.fork_rng(devices=[]):\n"
    kept += "            KEPT.append(block(x.detach().requires_grad_()))\n"
    begin = "        return block(x)\n"
    assert begin in text
    text = text.replace(begin, f"{kept}        return KEPT[-1].detach()\n")
    text = text.replace("\nclass ", "\nKEPT = []\n\n\nclass ", 1)
    file.write_text(text)
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "keeps the graph of the first pass", verdict


def test_x_is_larger_than_the_state_of_a_generator_whatever_the_seed():
    for seed in range(30):
        cases = [given_in(case) for case in random_cases(random.Random(seed))]
        assert all(given.x.nbytes > 1.5 * torch.get_rng_state().nbytes for given in cases)
        assert {given.x_needs_gradient for given in cases} == {True, False}
        assert any(given.frozen for given in cases)
