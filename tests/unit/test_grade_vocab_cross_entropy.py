"""The grader of vocab_cross_entropy: what it accepts, and what cannot fool it."""

import random
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from labkit.grade import Outcome, check
from labkit.grade.graders import vocab_cross_entropy
from labkit.grade.graders.vocab_inputs import HIGH, Seen, given_in, random_cases
from labkit.grade.graders.vocab_theories import mistakes
from labkit.grade.graders.vocab_values import _explained, are_right
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "vocab_cross_entropy"


def in_one_all_gather(logits_Nv, first, targets_N, group):
    """Each rank's own maximum, sum of exp and target; they are combined where they arrive."""
    N, v = logits_Nv.shape
    x = torch.cat([logits_Nv.float(), torch.full((N, 1), -1e30)], 1)
    own = x.amax(1)
    column = (targets_N - first).where((targets_N >= first) & (targets_N < first + v), v)
    target = x.gather(1, column[:, None])[:, 0]
    sums = (x - own[:, None]).exp().sum(1)
    highs, sums, targets = (
        group.all_gather(torch.stack([own, sums, target])).view(-1, 3, N).unbind(1)
    )
    high = highs.amax(0)
    total = (sums * (highs - high).exp()).sum(0)
    loss = (total.log() + high - targets.amax(0)).mean()
    p = ((x - high[:, None]).exp() / total[:, None])[:, :v]
    hit = torch.arange(v) == (targets_N - first)[:, None]
    return loss, ((p - hit.float()) / N).to(logits_Nv.dtype)


def in_three_with_masks(logits_Nv, first, targets_N, group):
    """Masks in place of indices; logits stay as they are, and the maximum is added back."""
    N, v = logits_Nv.shape
    x = logits_Nv.to(torch.float32, copy=True)
    high = torch.cat([x, torch.full((N, 1), -torch.inf)], 1).max(1).values
    group.all_reduce(high, op="max", out=high)
    column = targets_N - first
    is_elsewhere = (column < 0) | (column >= v)
    column[is_elsewhere] = 0
    target = torch.zeros(N)
    if v:
        target = x.gather(1, column[:, None]).squeeze(1).masked_fill(is_elsewhere, 0.0)
    pending = group.all_reduce(target, wait=False)
    e = x.sub_(high[:, None]).exp_()
    total = group.all_reduce(e.sum(1))
    gradient = e.div_(total[:, None])
    if v:
        gradient.scatter_add_(1, column[:, None], -(~is_elsewhere).float()[:, None])
    return ((total.log() + high) - pending.wait()).mean(), gradient.div_(N).to(logits_Nv.dtype)


def by_autograd(logits_Nv, first, targets_N, group):
    """The other shares' part of the denominator is a constant; autograd does the rest."""
    N, v = logits_Nv.shape
    leaf = logits_Nv.detach().clone().requires_grad_()
    x = torch.cat([leaf.float(), torch.full((N, 1), -1e30)], 1)
    high = group.all_reduce(x.detach().amax(1), op="max")
    own = (x - high[:, None]).exp().sum(1)
    total = group.all_reduce(own.detach()) + own - own.detach()
    rows = ((targets_N >= first) & (targets_N < first + v)).nonzero()[:, 0]
    own_targets = (x - high[:, None])[rows, targets_N[rows] - first].sum()
    target = group.all_reduce(own_targets.detach()[None])[0] + own_targets - own_targets.detach()
    loss = (total.log().sum() - target) / N
    loss.backward()
    return [loss, leaf.grad]


def gathers_the_maxima(logits_Nv, first, targets_N, group):
    """One program for maxima and sums, and of the targets' logits that of whoever has it."""
    N, v = logits_Nv.shape
    x = torch.cat([logits_Nv.float(), torch.full((N, 1), -1e30)], 1)
    high = group.all_gather(x.amax(1)[None]).amax(0)
    e = (x - high[:, None]).exp()
    total = group.all_reduce(e.sum(1))
    hit = torch.arange(v) == (targets_N - first)[:, None]
    column = torch.where(hit.any(1), targets_N - first, v)
    own = (x - high[:, None]).gather(1, column[:, None])[None, :, 0]
    loss = (total.log() - group.all_gather(own).amax(0)).mean()
    return loss, ((e[:, :v] / total[:, None] - hit.float()) / N).to(logits_Nv.dtype)


@pytest.mark.parametrize(
    "program", [in_one_all_gather, in_three_with_masks, by_autograd, gathers_the_maxima]
)
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def right_by(group, logits_Nv, first, targets_N, dtype=torch.float32):
    """The loss and the gradient, with `dtype` on the way."""
    N, v = logits_Nv.shape
    x = torch.cat([logits_Nv.to(dtype), torch.full((N, 1), -1e30, dtype=dtype)], 1)
    high = group.all_reduce(x.amax(1), op="max")
    e = (x - high[:, None]).exp()
    hit = torch.arange(v) == (targets_N - first)[:, None]
    target = ((x - high[:, None])[:, :v] * hit).sum(1)
    total, target = group.all_reduce(torch.stack([e.sum(1), target]))
    loss = (total.log() - target).mean().float()
    return loss, ((e[:, :v] / total[:, None] - hit.to(dtype)) / N).to(logits_Nv.dtype)


def returns_nothing(logits_Nv, first, targets_N, group):
    right_by(group, logits_Nv, first, targets_N)


def returns_a_float(logits_Nv, first, targets_N, group):
    loss, gradient = right_by(group, logits_Nv, first, targets_N)
    return float(loss), gradient


def returns_a_sparse_gradient(logits_Nv, first, targets_N, group):
    loss, gradient = right_by(group, logits_Nv, first, targets_N)
    return loss, gradient.to_sparse()


def returns_three(logits_Nv, first, targets_N, group):
    return *right_by(group, logits_Nv, first, targets_N), logits_Nv


def turns_them_around(logits_Nv, first, targets_N, group):
    return right_by(group, logits_Nv, first, targets_N)[::-1]


def a_loss_of_one_row(logits_Nv, first, targets_N, group):
    loss, gradient = right_by(group, logits_Nv, first, targets_N)
    return loss[None], gradient


def a_loss_for_each(logits_Nv, first, targets_N, group):
    loss, gradient = right_by(group, logits_Nv, first, targets_N)
    return loss.repeat(len(targets_N)), gradient


def a_loss_in_float64(logits_Nv, first, targets_N, group):
    loss, gradient = right_by(group, logits_Nv, first, targets_N)
    return loss.double(), gradient


def nan(logits_Nv, first, targets_N, group):
    loss, gradient = right_by(group, logits_Nv, first, targets_N)
    return loss * torch.nan, gradient


def subtracts_in_targets(logits_Nv, first, targets_N, group):
    result = right_by(group, logits_Nv, first, targets_N)
    targets_N -= first
    return result


def zero(logits_Nv, first, targets_N, group):
    return torch.zeros(()), torch.zeros_like(logits_Nv)


def travels_in_float64(logits_Nv, first, targets_N, group):
    return right_by(group, logits_Nv, first, targets_N, torch.float64)


def reduces_all_of_exp(logits_Nv, first, targets_N, group):
    """Every rank adds its columns to a table of all."""
    N, v = logits_Nv.shape
    V = int(group.all_reduce(torch.tensor([first + v]), op="max"))
    x_NV = torch.zeros(N, V)
    x_NV[:, first : first + v] = logits_Nv
    x_NV = group.all_reduce(x_NV)
    p_NV = x_NV.softmax(1)
    loss = torch.nn.functional.cross_entropy(x_NV, targets_N)
    p_NV[range(N), targets_N] -= 1
    return loss, (p_NV[:, first : first + v] / N).to(logits_Nv.dtype)


def by_broadcast(logits_Nv, first, targets_N, group):
    group.broadcast(logits_Nv, 0)


def past_the_group(logits_Nv, first, targets_N, group):
    dist.all_reduce(logits_Nv)


WRONG = {
    returns_nothing: "returns something else than a loss and a gradient",
    returns_a_float: "returns something else than a loss and a gradient",
    returns_a_sparse_gradient: "returns something else than a loss and a gradient",
    returns_three: "returns something else than a loss and a gradient",
    a_loss_of_one_row: "returns something else than a loss and a gradient",
    turns_them_around: "returns the gradient first",
    a_loss_for_each: "returns a loss for each position",
    a_loss_in_float64: "the loss is not in float32",
    subtracts_in_targets: "changes the targets",
    zero: "another loss than one process",
    travels_in_float64: "passes more than three numbers for each position",
    reduces_all_of_exp: "reduces what is as long as the vocabulary",
    by_broadcast: "calls another operation than the two",
    past_the_group: "calls another operation than the two",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


def test_nan_is_wrong():
    assert check(NAME, nan, workspace=WORKSPACE).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("is_long", "op", "diagnosis"),
    [
        (False, "sum", "less travels than a sum for each position"),
        (True, "max", "less travels than a sum for each position"),
        (True, "sum", "the loss does not come from the collectives"),
    ],
)
def test_who_reads_the_other_shares_from_files_is_found_by_what_travels(
    is_long, op, diagnosis, tmp_path, monkeypatch
):
    no_check = lambda *_: None  # noqa: E731
    monkeypatch.setattr(vocab_cross_entropy, "larger_tensors", no_check)  # else found by that
    folder = str(tmp_path)

    def through_files(logits_Nv, first, targets_N, group):
        """What the others have is on disk; the collective is there to wait for it."""
        torch.save(logits_Nv, f"{folder}/{group.rank}")
        numel = len(targets_N) if is_long else 1
        group.all_reduce(torch.zeros(numel), op="max")
        group.all_reduce(torch.zeros(numel), op="max")
        x_NV = torch.cat([torch.load(f"{folder}/{r}") for r in range(group.size)], 1).float()
        loss = torch.nn.functional.cross_entropy(x_NV, targets_N)
        group.all_reduce(torch.zeros(numel), op=op)
        p_NV = x_NV.softmax(1)
        p_NV[range(len(p_NV)), targets_N] -= 1
        own = p_NV[:, first : first + logits_Nv.shape[1]] / len(p_NV)
        return loss, own.to(logits_Nv.dtype)

    verdict = check(NAME, through_files, workspace=WORKSPACE)
    assert verdict.diagnosis == diagnosis, verdict


def seen_of(losses, gradients):
    return [Seen(True, 0, loss, gradient.float()) for loss, gradient in zip(losses, gradients)]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_mistake_is_recognised_by_what_it_gives_whatever_the_seed(world_size):
    for seed in range(20):
        given = given_in(random_cases(world_size, random.Random(seed))[0])
        loss, gradients = given.right()
        rights = [loss] * world_size
        assert are_right(given, seen_of(rights, gradients))
        for each in mistakes(given):
            seen = seen_of(each.losses or rights, each.gradients or gradients)
            assert not are_right(given, seen), each.name
            assert _explained(given, seen) == (each.name, each.explanation)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_cases_have_the_ends_of_all_shares_large_logits_and_three_dtypes(world_size):
    for seed in range(10):
        of = [given_in(case) for case in random_cases(world_size, random.Random(seed))]
        for given in of:
            for first, share in zip(given.firsts, given.shares):
                last = first + share.shape[1] - 1
                assert not share.numel() or {first, last} <= set(given.targets_N.tolist())
        dtypes = {torch.float32, torch.float16, torch.bfloat16}
        assert {given.shares[0].dtype for given in of} == dtypes
        heights = [float(given.logits_NV.mean()) for given in of]
        assert max(heights) > HIGH - 100 and min(heights) < 100 - HIGH
        of_positions = [given.logits_NV.mean(1) for given in of]
        assert any(each.max() - each.min() > HIGH for each in of_positions)
        is_empty = [any(not share.numel() for share in given.shares) for given in of]
        sizes = [{share.shape[1] for share in given.shares} for given in of]
        assert world_size == 1 or any(is_empty) and len(sizes[0]) == 2
