"""The grader of column_row_mlp: what it accepts, and what cannot fool it."""

import itertools
import random
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import gelu, linear

from labkit.collectives import autograd
from labkit.grade import check
from labkit.grade.graders.column_row_gradients import wrong_gradients
from labkit.grade.graders.column_row_inputs import given_in, random_cases
from labkit.grade.graders.column_row_outputs import wrong_outputs
from labkit.grade.graders.gradient_values import is_close
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "column_row_mlp"


def with_a_hook_and_a_constant(x_BTD, up_fD, up_f, down_Df, down_D, group):
    """A view's hook sums backward; what other ranks add to y is a constant to this one."""
    into = x_BTD.view_as(x_BTD)
    into.register_hook(lambda gradient: group.all_reduce(gradient.contiguous()))
    partial = gelu(into @ up_fD.t() + up_f) @ down_Df.t()
    others = group.all_reduce(partial.detach()) - partial.detach()
    return partial + others + down_D


def in_place(x_BTD, up_fD, up_f, down_Df, down_D, group):
    """Both sums use the memory of what comes in, which nobody else needs."""

    class Copied(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return group.all_reduce(gradient, out=gradient)

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, partial):
            ctx.mark_dirty(partial)
            group.all_reduce(partial, out=partial)
            return partial

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    hidden = gelu(linear(Copied.apply(x_BTD), up_fD, up_f))
    return Summed.apply(linear(hidden, down_Df)).add_(down_D)


def hands_x_itself_on(x_BTD, up_fD, up_f, down_Df, down_D, group):
    """A Function's result is another tensor than its argument, also where forward returns that."""

    class Copied(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, gradient):
            return group.all_reduce(gradient)

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, partial):
            return group.all_reduce(partial)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    hidden = gelu(linear(Copied.apply(x_BTD), up_fD, up_f))
    return Summed.apply(linear(hidden, down_Df)) + down_D


def all_by_hand(x_BTD, up_fD, up_f, down_Df, down_D, group):
    """One Function, with every product of backward written out; alone it does not communicate."""

    def total(x):
        return group.all_reduce(x) if group.size > 1 else x

    class MLP(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, up, up_bias, down, down_bias):
            before = linear(x, up, up_bias)
            ctx.save_for_backward(x, up, before, down)
            return total(linear(gelu(before), down)) + down_bias

        @staticmethod
        def backward(ctx, dy):
            x, up, before, down = ctx.saved_tensors
            normal = torch.distributions.Normal(0.0, 1.0)
            density = normal.log_prob(before).exp()
            slope = normal.cdf(before) + before * density
            d_before = (dy @ down) * slope
            d_up = torch.einsum("btf,btd->fd", d_before, x)
            d_down = torch.einsum("btd,btf->df", dy, gelu(before))
            return total(d_before @ up), d_up, d_before.sum((0, 1)), d_down, dy.sum((0, 1))

    return MLP.apply(x_BTD, up_fD, up_f, down_Df, down_D)


RIGHT = [with_a_hook_and_a_constant, in_place, hands_x_itself_on, all_by_hand]


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def labkits_own(x_BTD, up_fD, up_f, down_Df, down_D, group):
    partial = linear(gelu(linear(x_BTD, up_fD, up_f)), down_Df)
    return autograd.all_reduce(partial, group) + down_D


def torchs_own(x_BTD, up_fD, up_f, down_Df, down_D, group):
    partial = linear(gelu(linear(x_BTD, up_fD, up_f)), down_Df)
    dist.all_reduce(partial)
    return partial + down_D


def by_broadcast(x_BTD, up_fD, up_f, down_Df, down_D, group):
    return group.broadcast(x_BTD, 0)


def returns_nothing(x_BTD, up_fD, up_f, down_Df, down_D, group):
    group.all_reduce(linear(gelu(linear(x_BTD, up_fD, up_f)), down_Df))


def returns_float32(x_BTD, up_fD, up_f, down_Df, down_D, group):
    return x_BTD.float()


def returns_its_hidden_features(x_BTD, up_fD, up_f, down_Df, down_D, group):
    return gelu(linear(x_BTD, up_fD, up_f))


def one_rank_returns_a_list(x_BTD, up_fD, up_f, down_Df, down_D, group):
    """The others wait for it in backward."""
    into = x_BTD.view_as(x_BTD)
    into.register_hook(lambda gradient: group.all_reduce(gradient.contiguous()))
    partial = gelu(linear(into, up_fD, up_f)) @ down_Df.t()
    y = partial + group.all_reduce(partial.detach()) - partial.detach() + down_D
    return [y] if group.rank == 1 else y


def returns_nan(x_BTD, up_fD, up_f, down_Df, down_D, group):
    return x_BTD * float("nan")


def returns_a_constant(x_BTD, up_fD, up_f, down_Df, down_D, group):
    """The values are right, and autograd knows nothing of them."""
    partial = linear(gelu(linear(x_BTD, up_fD, up_f)), down_Df)
    return (group.all_reduce(partial) + down_D).detach()


def freezes_the_bias(x_BTD, up_fD, up_f, down_Df, down_D, group):
    down_D.requires_grad_(False)
    partial = linear(gelu(linear(x_BTD, up_fD, up_f)), down_Df)
    return partial + (group.all_reduce(partial) - partial).detach() + down_D


def loses_two_gradients(x_BTD, up_fD, up_f, down_Df, down_D, group):
    """What no theory explains: up gets none, down does."""
    into = x_BTD.view_as(x_BTD)
    into.register_hook(lambda gradient: group.all_reduce(gradient.contiguous()))
    partial = gelu(linear(into, up_fD.detach(), up_f.detach())) @ down_Df.t()
    return partial + (group.all_reduce(partial) - partial).detach() + down_D


def backward_in_float32(x_BTD, up_fD, up_f, down_Df, down_D, group):
    into = x_BTD.view_as(x_BTD)
    into.register_hook(lambda gradient: group.all_reduce(gradient.float()).double())
    partial = gelu(linear(into, up_fD, up_f)) @ down_Df.t()
    return partial + (group.all_reduce(partial) - partial).detach() + down_D


def gathers_in_backward(x_BTD, up_fD, up_f, down_Df, down_D, group):
    into = x_BTD.view_as(x_BTD)
    into.register_hook(lambda gradient: group.all_gather(gradient[None].contiguous()).sum(0))
    partial = gelu(linear(into, up_fD, up_f)) @ down_Df.t()
    return partial + (group.all_reduce(partial) - partial).detach() + down_D


def sums_padded_features(x_BTD, up_fD, up_f, down_Df, down_D, group):
    """All features on every rank, by a sum of zeros; used for nothing."""
    hidden = gelu(linear(x_BTD, up_fD, up_f)).detach()
    group.all_reduce(torch.cat([hidden] * group.size, dim=-1))
    return with_a_hook_and_a_constant(x_BTD, up_fD, up_f, down_Df, down_D, group)


def sums_more_than_y(x_BTD, up_fD, up_f, down_Df, down_D, group):
    """y and a row of zeros."""
    into = x_BTD.view_as(x_BTD)
    into.register_hook(lambda gradient: group.all_reduce(gradient.contiguous()))
    partial = gelu(linear(into, up_fD, up_f)) @ down_Df.t()
    total = group.all_reduce(torch.cat([partial, partial[:1]]).detach())[:-1]
    return partial + (total - partial).detach() + down_D


WRONG = {
    backward_in_float32: "loses digits on the way",
    gathers_in_backward: "gathers partial results instead of reducing them",
    sums_padded_features: "communicates between the layers",
    sums_more_than_y: "all-reduces more than B T D numbers",
    labkits_own: "calls the answer itself",
    torchs_own: "calls another operation than the two",
    by_broadcast: "calls another operation than the two",
    returns_nothing: "returns nothing",
    returns_float32: "returns another dtype",
    returns_its_hidden_features: "returns another shape",
    one_rank_returns_a_list: "returns something that is no tensor",
    returns_nan: "another output than the MLP's",
    returns_a_constant: "no gradient comes through the sum",
    freezes_the_bias: "switches requires_grad off",
    loses_two_gradients: "other gradients than the MLP's",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


@pytest.mark.parametrize(
    ("is_whole", "diagnosis"),
    [
        (False, "less travels than y and its gradient"),
        (True, "y and its gradient do not come from the collectives"),
    ],
)
def test_who_reads_what_others_add_from_files_is_found_by_what_travels(
    is_whole, diagnosis, tmp_path
):
    folder, calls = str(tmp_path), itertools.count()

    def summed(x, group, name):
        """What the others have is on disk; the collective is there to wait for it."""
        torch.save(x, f"{folder}/{name}{group.rank}")
        group.all_reduce(torch.zeros_like(x) if is_whole else torch.zeros(1))
        return sum(torch.load(f"{folder}/{name}{rank}") for rank in range(group.size))

    def through_files(x_BTD, up_fD, up_f, down_Df, down_D, group):
        # Other names for each call: a rank may be in the next one while another still reads.
        name = f"{next(calls)} of {group.size} "
        into = x_BTD.view_as(x_BTD)
        into.register_hook(lambda gradient: summed(gradient.detach(), group, f"{name}backward"))
        partial = linear(gelu(linear(into, up_fD, up_f)), down_Df)
        return partial + summed(partial.detach(), group, name) - partial.detach() + down_D

    verdict = check(NAME, through_files, workspace=WORKSPACE)
    assert verdict.diagnosis == diagnosis, verdict


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_no_wrong_output_looks_like_a_right_one_or_another_whatever_the_seed(world_size):
    for seed in range(10):
        given = given_in(random_cases(world_size, random.Random(seed))[0])
        results = [("right", [given.expected().y] * world_size)]
        for each in wrong_outputs(given):
            results.append((each.name, [each.y(rank) for rank in range(world_size)]))
        _all_differ(results)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_no_wrong_gradients_look_like_right_ones_or_others_whatever_the_seed(world_size):
    for seed in range(10):
        given = given_in(random_cases(world_size, random.Random(seed))[0])
        whole, ranks, results = given.expected(), range(world_size), []
        right = [given.share_of(whole.gradients, rank) for rank in ranks]
        for gradients in right:
            gradients[0] = gradients[0] + given.output_gradient
        results.append(("right", [torch.cat([x.flatten() for x in each]) for each in right]))
        for each in wrong_gradients(world_size):
            of_ranks = [each.gradients(given, whole, rank) for rank in ranks]
            results.append(
                (
                    each.name,
                    [
                        torch.cat(
                            [(x if x is not None else r).flatten() for x, r in zip(its, gradients)]
                        )
                        for its, gradients in zip(of_ranks, right)
                    ],
                )
            )
        _all_differ(results)


def _all_differ(results):
    for name, result in results:
        for other, its in results:
            same = all(is_close(one, two) for one, two in zip(result, its))
            assert name == other or not same, (name, other)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_there_are_features_that_n_divides_others_and_a_rank_without_any(world_size):
    for seed in range(20):
        cases = random_cases(world_size, random.Random(seed))
        shares = [[len(each[1]) for each in given_in(case).shares] for case in cases]
        assert all(sum(each) == given_in(case).num_features for each, case in zip(shares, cases))
        assert len(set(shares[0])) == 1 and max(shares[0]) > 1
        assert all(max(each) - min(each) <= 1 for each in shares)
        if world_size > 1:
            assert len(set(shares[1])) == len(set(shares[2])) == 2 and min(shares[-1]) == 0
            assert [each.altered[1] for each in cases[3:-1]] == [1, 2]
        assert world_size == 1 or max(cases[2].delays_s) > 0


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_what_travels_is_told_apart_by_its_size(world_size):
    for seed in range(50):
        given = given_in(random_cases(world_size, random.Random(seed))[0])
        share, tokens = len(given.shares[0][1]), given.x.shape[0] * given.x.shape[1]
        width = given.x.shape[2]
        sizes = [tokens * width, tokens * share, tokens * given.num_features, share * width]
        assert len({*sizes, share, width}) == 6
