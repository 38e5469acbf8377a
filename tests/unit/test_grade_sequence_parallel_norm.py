"""The grader of sequence_parallel_norm: what it accepts, and what cannot fool it."""

import dataclasses
import math
import random
from pathlib import Path

import pytest
import torch
from torch.autograd import Function
from torch.nn.functional import layer_norm, pad

from labkit.collectives import autograd
from labkit.grade import check
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders import sequence_backward, sequence_budget, sequence_forward
from labkit.grade.graders.sequence_inputs import given_in, norm, random_cases
from labkit.grade.graders.sequence_long import long_bytes_of
from labkit.grade.graders.sequence_mistakes import h_gradient_of, h_of, weight_gradient_of
from labkit.grade.graders.sequence_values import wrong_values
from labkit.grade.graders.sequence_watch import Seen
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "sequence_parallel_norm"


def in_one_function(z_ND, r_nD, weight_D, group):
    """The whole region, with the norm's backward written out."""

    class Region(Function):
        @staticmethod
        def forward(ctx, z, r, w):
            ctx.rows = -(-len(z) // group.size)
            ctx.num = len(z)
            extra = (0, 0, 0, ctx.rows * group.size - len(z))
            h = r + group.reduce_scatter(pad(z, extra) if extra[3] else z)[: len(r)]
            scale = (h.var(1, keepdim=True, correction=0) + 1e-5).rsqrt()
            unit = (h - h.mean(1, keepdim=True)) * scale
            ctx.save_for_backward(unit, scale, w)
            x = group.all_gather(pad(unit * w, (0, 0, 0, ctx.rows - len(r))))
            return h, x.narrow(0, 0, len(z))

        @staticmethod
        def backward(ctx, h_gradient, x_gradient):
            unit, scale, w = ctx.saved_tensors
            extra = (0, 0, 0, ctx.rows * group.size - ctx.num)
            g = group.reduce_scatter(pad(x_gradient, extra))[: len(unit)]
            pending = group.all_reduce((g * unit).sum(0), wait=False)
            g = g * w
            g = g - g.mean(1, keepdim=True) - unit * (g * unit).mean(1, keepdim=True)
            own = h_gradient + g * scale
            z = group.all_gather(pad(own, (0, 0, 0, ctx.rows - len(own))))[: ctx.num]
            return z, own, pending.wait()

    return Region.apply(z_ND, r_nD, weight_D)


def with_preallocated_buffers(z_ND, r_nD, weight_D, group):
    """Rows lie in buffers of n blocks; a hook on a view of the weight, which goes with it."""
    n, (num_rows, num_features), own = group.size, z_ND.shape, len(r_nD)
    k = -(-num_rows // n)

    def joined(x):
        block, everything = x.new_zeros(k, num_features), x.new_empty(n * k, num_features)
        block[: len(x)] = x
        return group.all_gather(block, out=everything)[:num_rows]

    def summed(x):
        blocks = x.new_zeros(n * k, num_features)
        blocks[:num_rows] = x
        return group.reduce_scatter(blocks)[:own]

    def adjoint(forward_of, backward_of):
        class Pair(Function):
            @staticmethod
            def forward(ctx, x):
                return forward_of(x)

            @staticmethod
            def backward(ctx, gradient):
                return backward_of(gradient)

        return Pair.apply

    residual_nD = adjoint(summed, joined)(z_ND) + r_nD
    weight = weight_D * 1
    weight.register_hook(lambda gradient: group.all_reduce(gradient))
    centred = residual_nD - residual_nD.mean(-1, keepdim=True)
    x_nD = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * weight
    return [residual_nD, adjoint(joined, summed)(x_nD)]


def returns_a_copy(z_ND, r_nD, weight_D, group):
    """What was gathered is let go of."""
    residual_nD, x_ND = in_one_function(z_ND, r_nD, weight_D, group)
    return residual_nD, x_ND.clone()


@pytest.mark.parametrize("program", [in_one_function, with_preallocated_buffers, returns_a_copy])
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def returns_nothing(z_ND, r_nD, weight_D, group):
    in_one_function(z_ND, r_nD, weight_D, group)


def returns_a_sparse_tensor(z_ND, r_nD, weight_D, group):
    residual_nD, x_ND = in_one_function(z_ND, r_nD, weight_D, group)
    return residual_nD, x_ND.to_sparse()


def turns_them_around(z_ND, r_nD, weight_D, group):
    return in_one_function(z_ND, r_nD, weight_D, group)[::-1]


def in_float32(z_ND, r_nD, weight_D, group):
    residual_nD, x_ND = in_one_function(z_ND, r_nD, weight_D, group)
    return residual_nD.float(), x_ND.float()


def through_float32(z_ND, r_nD, weight_D, group):
    residual_nD, x_ND = in_one_function(z_ND.float(), r_nD.float(), weight_D.float(), group)
    return residual_nD.double(), x_ND.double()


def does_not_gather(z_ND, r_nD, weight_D, group):
    residual_nD, _ = in_one_function(z_ND, r_nD, weight_D, group)
    return residual_nD, layer_norm(residual_nD, weight_D.shape, weight_D)


def gives_all_residuals(z_ND, r_nD, weight_D, group):
    _, x_ND = in_one_function(z_ND, r_nD, weight_D, group)
    return z_ND * 1, x_ND


def writes_to_r(z_ND, r_nD, weight_D, group):
    found = in_one_function(z_ND, r_nD, weight_D, group)
    r_nD.data += 1
    return found


def nan(z_ND, r_nD, weight_D, group):
    residual_nD, x_ND = in_one_function(z_ND, r_nD, weight_D, group)
    return residual_nD, x_ND * torch.nan


def in_every_column(z_ND, r_nD, weight_D, group):
    """The norm over the rows, which are this rank's."""
    residual_nD, x_ND = in_one_function(z_ND, r_nD, weight_D, group)
    return residual_nD, x_ND - x_ND.mean(0)


def by_labkit(z_ND, r_nD, weight_D, group):
    autograd.reduce_scatter(z_ND, group)


def by_broadcast(z_ND, r_nD, weight_D, group):
    group.broadcast(z_ND, 0)


def leaves_out_empty_ranks(z_ND, r_nD, weight_D, group):
    if not len(r_nD):
        raise ValueError("no rows")
    return in_one_function(z_ND, r_nD, weight_D, group)


def forgets_a_none(z_ND, r_nD, weight_D, group):
    class Same(Function):
        @staticmethod
        def forward(ctx, z, group):
            return z.view_as(z)

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    return in_one_function(Same.apply(z_ND, group), r_nD, weight_D, group)


WRONG = {
    returns_nothing: "returns something else than the residual and x",
    returns_a_sparse_tensor: "returns something else than the residual and x",
    in_float32: "returns another dtype",
    turns_them_around: "returns x first",
    through_float32: "loses digits on the way",
    does_not_gather: "does not gather the normalised rows",
    gives_all_residuals: "returns the residual of all rows",
    writes_to_r: "changes r_nD",
    nan: "another x",
    in_every_column: "another x",
    by_labkit: "calls the answer itself",
    by_broadcast: "calls another operation than the three",
    forgets_a_none: "a backward does not fit its forward",
    leaves_out_empty_ranks: "crashes where a rank has no rows",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


@pytest.mark.parametrize(
    ("half", "diagnosis"),
    [
        (0.0, "less travels than all rows"),
        (0.5, "the rows do not come from the collectives"),
    ],
)
def test_who_reads_the_other_parts_from_files_is_found_by_what_travels(
    half, diagnosis, tmp_path, monkeypatch
):
    monkeypatch.setattr(sequence_budget, "MOST_LONG", 99)  # else found by its memory
    folder = str(tmp_path)

    class Whole(Function):
        @staticmethod
        def forward(ctx, z, r, w, group):
            ctx.group = group
            of_all = through_disk([z, r], group, "forward")
            h = sum(each[0] for each in of_all) + torch.cat([each[1] for each in of_all])
            k = -(-len(z) // group.size)
            ctx.own = slice(group.rank * k, group.rank * k + len(r))
            ctx.save_for_backward(h[ctx.own].clone(), w)
            return h[ctx.own].clone(), norm(h, w)

        @staticmethod
        def backward(ctx, residual, x):
            of_all = through_disk([residual, x, *ctx.saved_tensors], ctx.group, "backward")
            h, w = torch.cat([each[2] for each in of_all]).requires_grad_(), of_all[0][3]
            w = w.detach().requires_grad_()
            with torch.enable_grad():
                y = norm(h, w)
            through, weight = torch.autograd.grad(y, (h, w), sum(each[1] for each in of_all))
            z = torch.cat([each[0] for each in of_all]) + through
            return z, z[ctx.own], weight, None

    def through_disk(tensors, group, name):
        torch.save([each.detach() for each in tensors], f"{folder}/{name}{group.rank}")
        numel = max(1, math.ceil(half * max(each.numel() for each in tensors)))
        group.all_reduce(torch.zeros(numel, dtype=torch.float64))
        found = [torch.load(f"{folder}/{name}{rank}") for rank in range(group.size)]
        group.all_reduce(torch.zeros(numel, dtype=torch.float64))
        return found

    def through_files(z_ND, r_nD, weight_D, group):
        return Whole.apply(z_ND, r_nD, weight_D, group)

    verdict = check(NAME, through_files, workspace=WORKSPACE)
    assert verdict.diagnosis == diagnosis, verdict


def seen_right(given):
    """By rank and step, as if everything were right."""
    found = []
    for rank in range(given.steps[0].num_ranks):
        its, weight = [], 0
        for step in given.steps:
            h, h_gradient = h_of(step), h_gradient_of(given, step)
            weight = weight + weight_gradient_of(given, step)
            gradients = (h_gradient, step.own(rank, h_gradient), weight)
            x = norm(h, given.weight_D)
            nothing = (True, (True, True), 0, (0, 0), 0, (False,) * 3)
            its.append(Seen(*nothing, step.own(rank, h), x, gradients))
        found.append(its)
    return found


def with_gradient(which):
    def changed(seen, value):
        gradients = tuple(value if i == which else g for i, g in enumerate(seen.gradients))
        return dataclasses.replace(seen, gradients=gradients)

    return changed


RESULTS = [
    (
        sequence_forward.of_residual,
        lambda seen, value: dataclasses.replace(seen, residual_nD=value),
    ),
    (sequence_forward.of_x, lambda seen, value: dataclasses.replace(seen, x_ND=value)),
    (sequence_backward.of_r_gradient, with_gradient(1)),
    (sequence_backward.of_z_gradient, with_gradient(0)),
]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_mistake_is_recognised_by_what_it_gives_whatever_the_seed(world_size):
    for seed in range(5):
        for case in random_cases(world_size, random.Random(seed))[:2]:
            given = given_in(case)
            evidence = CaseEvidence(case, (None,) * world_size, ((),) * world_size)
            assert wrong_values(evidence, given, seen_right(given)) is None
            for of, changed in RESULTS:
                for mistake in of(given, given.steps[0]):
                    seen = seen_right(given)
                    for rank, its in enumerate(seen):
                        its[0] = changed(its[0], mistake.result(rank))
                    assert wrong_values(evidence, given, seen).diagnosis == mistake.name
            last = len(given.steps) - 1
            for mistake in sequence_backward.of_weight_gradient(given, last):
                seen = seen_right(given)
                for rank, its in enumerate(seen):
                    its[last] = with_gradient(2)(its[last], mistake.result(rank))
                assert wrong_values(evidence, given, seen).diagnosis == mistake.name


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_there_are_rows_that_n_does_not_divide_two_steps_and_a_rank_without_any(world_size):
    for seed in range(10):
        cases = random_cases(world_size, random.Random(seed))
        assert [each.altered[1] for each in cases[3:]] == [1, 2, 3, 4]
        even, uneven, few, altered = map(given_in, cases[:4])
        assert even.is_even and not uneven.is_even and len(uneven.steps) == 2
        assert not len(few.steps[0].r[-1]) and altered.is_even
        step = even.steps[0]
        assert long_bytes_of(step.z[0], world_size) < step.z[0].nbytes  # memory is judged
        variances = h_of(step).var(1)
        assert variances.min() < 0.01 < 0.1 < variances.max()  # eps matters
