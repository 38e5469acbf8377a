"""The grader of gradient_buckets: what it accepts, and what cannot fool it."""

import random
from pathlib import Path

import pytest
import torch

from labkit.grade import Outcome, check
from labkit.grade.graders.bucket_inputs import asked_in, draw, random_cases
from labkit.grade.graders.bucket_rules import RULES, right
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "gradient_buckets"


def gradient_buckets(numels, itemsize, bucket_bytes):
    """From the end, by recursion; tuples."""

    def cut(end):
        if end == 0:
            return ()
        begin, room = end - 1, bucket_bytes - numels[end - 1] * itemsize
        while begin and numels[begin - 1] * itemsize <= room:
            begin -= 1
            room -= numels[begin] * itemsize
        return (tuple(range(end - 1, begin - 1, -1)), *cut(begin))

    return cut(len(numels))


def all_in_flight(gradients, bucket_bytes, group):
    numels = [each.numel() for each in gradients]
    buckets = gradient_buckets(numels, gradients[0].element_size(), bucket_bytes)
    in_flight = []
    for bucket in buckets:
        flat = torch.cat([gradients[i].reshape(-1) for i in bucket]) / group.size
        in_flight.append(group.all_reduce(flat, out=flat, wait=False))
    for bucket, pending in zip(buckets, in_flight):
        flat, at = pending.wait(), 0
        for i in bucket:
            gradients[i][...] = flat[at : at + numels[i]].view(gradients[i].shape)
            at += numels[i]


all_in_flight.__name__ = "reduce_buckets"


def test_a_right_answer_of_another_kind_passes():
    verdict = check(NAME, [gradient_buckets, all_in_flight], workspace=WORKSPACE)
    assert verdict, verdict


def test_the_questions_tell_all_rules_apart_whatever_the_seed():
    for seed in range(50):
        asked = draw(random.Random(seed))
        rules = {rule.name: [rule.buckets(each) for each in asked] for rule in RULES}
        rules["right"] = [right(each) for each in asked]
        assert all(
            one == other or rules[one] != rules[other] for one in rules for other in rules
        ), seed


def test_cases_have_buckets_of_several_gradients_and_a_single_one_with_everything():
    for seed in range(50):
        cases = random_cases(3, random.Random(seed))
        buckets = [right(asked_in(case)) for case in cases]
        assert len(buckets[0]) > 2 and max(len(bucket) for bucket in buckets[0]) > 1
        assert [len(each) for each in buckets].count(1) == 1


def test_the_second_function_may_be_written_later(tmp_path):
    file = tmp_path / "half.py"
    text = WORKSPACE.solution(NAME).read_text()
    begin = text.index("    ### BEGIN SOLUTION", text.index("def reduce_buckets"))
    file.write_text(text[:begin] + "    raise NotImplementedError\n")
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.outcome is Outcome.NOT_ATTEMPTED
    assert "reduce_buckets" in verdict.finding.explanation


def in_reverse(gradients, bucket_bytes, group):
    """Reduces the last bucket first."""
    numels = [each.numel() for each in gradients]
    for bucket in gradient_buckets(numels, gradients[0].element_size(), bucket_bytes)[::-1]:
        flat = group.all_reduce(torch.cat([gradients[i].flatten() for i in bucket]), op="mean")
        for i, part in zip(bucket, flat.split([numels[i] for i in bucket])):
            gradients[i].copy_(part.view_as(gradients[i]))


def without_single_ones(gradients, bucket_bytes, group):
    """A bucket of one gradient is forgotten."""
    numels = [each.numel() for each in gradients]
    for bucket in gradient_buckets(numels, gradients[0].element_size(), bucket_bytes):
        if len(bucket) > 1:
            flat = group.all_reduce(torch.cat([gradients[i].flatten() for i in bucket]), op="mean")
            for i, part in zip(bucket, flat.split([numels[i] for i in bucket])):
                gradients[i].copy_(part.view_as(gradients[i]))


def all_at_once(gradients, bucket_bytes, group):
    """Buckets are ignored."""
    flat = group.all_reduce(torch.cat([each.flatten() for each in gradients]), op="mean")
    for each, part in zip(gradients, flat.split([g.numel() for g in gradients])):
        each.copy_(part.view_as(each))


def padded(gradients, bucket_bytes, group):
    """Every message is as long as a bucket, or longer."""
    numels = [each.numel() for each in gradients]
    for bucket in gradient_buckets(numels, gradients[0].element_size(), bucket_bytes):
        room = gradients[0].new_zeros(bucket_bytes // gradients[0].element_size())
        flat = torch.cat([*(gradients[i].flatten() for i in bucket), room])
        flat = group.all_reduce(flat, op="mean")
        for i, part in zip(bucket, flat.split([*(numels[i] for i in bucket), len(room)])):
            gradients[i].copy_(part.view_as(gradients[i]))


def in_the_wrong_places(gradients, bucket_bytes, group):
    """Parts are taken in ascending order."""
    numels = [each.numel() for each in gradients]
    for bucket in gradient_buckets(numels, gradients[0].element_size(), bucket_bytes):
        flat = group.all_reduce(torch.cat([gradients[i].flatten() for i in bucket]), op="mean")
        bucket = sorted(bucket)
        for i, part in zip(bucket, flat.split([numels[i] for i in bucket])):
            gradients[i].copy_(part.view_as(gradients[i]))


WRONG = {
    in_reverse: "reduces the buckets in another order",
    without_single_ones: "a bucket is never reduced",
    all_at_once: "everything in one message",
    padded: "sends more than the buckets",
    in_the_wrong_places: "another gradient than the mean",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__doc__)
def test_other_reductions_are_refused_by_name(program, monkeypatch):
    monkeypatch.setattr(program, "__name__", "reduce_buckets")
    verdict = check(NAME, [gradient_buckets, program], workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict
