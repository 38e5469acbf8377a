"""The grader of zero2_gradients: what it accepts, and what cannot fool it."""

import random
from pathlib import Path

import pytest
import torch

from labkit.grade import check
from labkit.grade.graders.gradient_values import is_close
from labkit.grade.graders.zero2_inputs import given_in, random_cases
from labkit.grade.graders.zero2_theories import mistakes, right
from labkit.grade.workspace import Workspace
from labkit.zero import ShardedGradients

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "zero2_gradients"


def overlapped(buckets, loss_fn, microbatches, group):
    """One reduce-scatter is under way, and is waited for before the next bucket moves."""
    n, segments, under_way = group.size, [None] * len(buckets), []

    def finish():
        if under_way:
            i, pending = under_way.pop()
            part = pending.wait() / (n * len(microbatches))
            segments[i] = part if segments[i] is None else segments[i].add_(part)

    def hook_of(i, bucket):
        def hook(parameter):
            if all(each.grad is not None for each in bucket):
                finish()
                numel = sum(each.numel() for each in bucket)
                flat, at = parameter.new_zeros(-(-numel // n) * n).detach(), 0
                for each in bucket:
                    flat[at : at + each.numel()] = each.grad.flatten()
                    at, each.grad = at + each.numel(), None
                under_way.append((i, group.reduce_scatter(flat, wait=False)))

        return hook

    hooks = [
        each.register_post_accumulate_grad_hook(hook_of(i, bucket))
        for i, bucket in enumerate(buckets)
        for each in bucket
    ]
    for microbatch in microbatches:
        loss_fn(microbatch).backward()
        finish()
    for hook in hooks:
        hook.remove()
    return segments


def into_segments_that_are_there(buckets, loss_fn, microbatches, group):
    """Segments are made first; gradients move out of the parameters one by one."""
    n, weight = group.size, 1 / (group.size * len(microbatches))
    sizes = [-(-sum(each.numel() for each in bucket) // n) for bucket in buckets]
    segments = [bucket[0].new_zeros(k).detach() for bucket, k in zip(buckets, sizes)]
    flats, hooks = {}, []

    def on(i, begin, parameter):
        if i not in flats:
            flats[i] = [torch.zeros_like(segments[i]).repeat(n), 0]
        place = flats[i][0][begin : begin + parameter.numel()]
        place.add_(parameter.grad.flatten(), alpha=weight)
        flats[i][1] += 1
        parameter.grad = None
        if flats[i][1] == len(buckets[i]):
            segments[i].add_(group.reduce_scatter(flats.pop(i)[0]))

    for i, bucket in enumerate(buckets):
        begin = 0
        for each in bucket:
            hook = lambda p, i=i, begin=begin: on(i, begin, p)  # noqa: E731
            hooks.append(each.register_post_accumulate_grad_hook(hook))
            begin += each.numel()
    for microbatch in microbatches:
        loss_fn(microbatch).backward()
    for hook in hooks:
        hook.remove()
    return tuple(segments)


@pytest.mark.parametrize("program", [overlapped, into_segments_that_are_there])
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def flat_of(bucket, n):
    flat = torch.cat([each.grad.flatten() for each in bucket])
    return torch.cat([flat, flat.new_zeros(-len(flat) % n)])


def labkits_own(buckets, loss_fn, microbatches, group):
    parameters = [each for bucket in buckets for each in bucket]
    optimizer = ShardedGradients(parameters, torch.optim.SGD, group, lr=0.1)
    loss_fn(microbatches[0]).backward()
    return optimizer.reduce_gradients()


def without_hooks(buckets, loss_fn, microbatches, group):
    """The whole of torch.autograd.grad, then bucket by bucket."""
    segments = []
    for microbatch in microbatches:
        parameters = [each for bucket in buckets for each in bucket]
        gradients = dict(zip(parameters, torch.autograd.grad(loss_fn(microbatch), parameters)))
        for i, bucket in enumerate(buckets):
            flat = torch.cat([gradients.pop(each).flatten() for each in bucket])
            flat = torch.cat([flat, flat.new_zeros(-len(flat) % group.size)])
            part = group.reduce_scatter(flat, op="mean") / len(microbatches)
            if len(segments) < len(buckets):
                segments.append(part)
            else:
                segments[i] += part
    return segments


def keeps_the_flat_tensors(buckets, loss_fn, microbatches, group):
    """A right answer, and a list."""
    segments, kept, hooks = {}, [], []

    def hook_of(i, bucket):
        def hook(parameter):
            if all(each.grad is not None for each in bucket):
                kept.append(flat_of(bucket, group.size) / len(microbatches))
                for each in bucket:
                    each.grad = None
                segments[i] = segments.get(i, 0) + group.reduce_scatter(kept[-1], op="mean")

        return hook

    for i, bucket in enumerate(buckets):
        for each in bucket:
            hooks.append(each.register_post_accumulate_grad_hook(hook_of(i, bucket)))
    for microbatch in microbatches:
        loss_fn(microbatch).backward()
    for hook in hooks:
        hook.remove()
    return [segments[i] for i in range(len(buckets))]


def reduces_after_each_backward(buckets, loss_fn, microbatches, group):
    """What waits, waits in numpy arrays, where nobody sees its bytes."""
    waiting, segments, hooks = {}, {}, []

    def on_gradient(parameter):
        waiting[parameter] = parameter.grad.numpy().copy()
        parameter.grad = None

    for bucket in buckets:
        hooks += [each.register_post_accumulate_grad_hook(on_gradient) for each in bucket]
    for microbatch in microbatches:
        (loss_fn(microbatch) / len(microbatches)).backward()
        for i, bucket in enumerate(buckets):
            flat = torch.cat([torch.from_numpy(waiting.pop(each)).flatten() for each in bucket])
            flat = torch.cat([flat, flat.new_zeros(-len(flat) % group.size)])
            segments[i] = segments.get(i, 0) + group.reduce_scatter(flat, op="mean")
            del flat
    for hook in hooks:
        hook.remove()
    return [segments[i] for i in range(len(buckets))]


def returns_whole_buckets(buckets, loss_fn, microbatches, group):
    for microbatch in microbatches:
        (loss_fn(microbatch) / len(microbatches)).backward()
    return [
        group.all_reduce(torch.cat([each.grad.flatten() for each in bucket]), op="mean")
        for bucket in buckets
    ]


def returns_nothing(buckets, loss_fn, microbatches, group):
    returns_whole_buckets(buckets, loss_fn, microbatches, group)


def returns_sparse_tensors(buckets, loss_fn, microbatches, group):
    return [torch.zeros(3).to_sparse() for _ in buckets]


def gathers(buckets, loss_fn, microbatches, group):
    group.all_gather(torch.zeros(1))


WRONG = {
    labkits_own: "calls another operation than the two",
    without_hooks: "gets all gradients at once",
    keeps_the_flat_tensors: "keeps more than two buckets",
    returns_whole_buckets: "returns whole buckets",
    returns_nothing: "returns something else than one segment for each bucket",
    returns_sparse_tensors: "returns something else than one segment for each bucket",
    reduces_after_each_backward: "reduces only when backward is through",
    gathers: "calls another operation than the two",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_no_mistake_looks_like_a_right_answer_or_another_whatever_the_seed(world_size):
    for seed in range(3):
        given = given_in(random_cases(world_size, random.Random(seed))[0])
        assert given.num_microbatches > 1
        assert all(numel % world_size for numel in given.bucket_numels)
        results = [("right", right(given))]
        for each in mistakes(given):
            results.append((each.name, [each.segments(rank) for rank in range(world_size)]))
        for name, result in results:
            for other, its in results:
                same = all(
                    is_close(one, two) for a, b in zip(result, its) for one, two in zip(a, b)
                )
                assert name == other or not same, (name, other)
