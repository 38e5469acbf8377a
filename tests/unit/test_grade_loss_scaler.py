"""The grader of loss_scaler: what it accepts, and that its rules are those of labkit's scaler."""

import random
from pathlib import Path

import pytest
import torch

from labkit.grade import check
from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.scaler_inputs import given_in, random_cases
from labkit.grade.graders.scaler_rules import Rules, follow
from labkit.grade.graders.scaler_theories import MISTAKES
from labkit.grade.graders.scaler_traces import _first_difference
from labkit.grade.workspace import Workspace
from labkit.precision import LossScaler

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "loss_scaler"


def scaled_step(scaler, gradients, update, group):
    """By torch's sum of flags, in whole numbers; multiplies by the inverse."""
    flat = torch.cat([g.flatten() for g in gradients] + [torch.zeros(1, dtype=torch.float16)])
    num_bad = group.all_reduce((~flat.isfinite()).sum())
    inverse = 1.0 / scaler["scale"]
    if num_bad.item():
        scaler.update(scale=scaler["scale"] * 0.5, num_good_steps=0)
    else:
        update(tuple(gradient.to(torch.float32).mul_(inverse) for gradient in gradients))
        good = scaler["num_good_steps"] + 1
        is_enough = good >= scaler["growth_interval"]
        scaler["scale"] *= 2.0 if is_enough else 1.0
        scaler["num_good_steps"] = 0 if is_enough else good
    return not num_bad.item()


def given_by_case(world_size, seed):
    """What the ranks have, case by case."""
    cases = random_cases(world_size, random.Random(seed))
    return {case.label: given_in(CaseEvidence(case, (), ())) for case in cases}


def test_another_right_answer_than_the_solutions_passes():
    verdict = check(NAME, scaled_step, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_rules_are_those_of_labkits_scaler(world_size, seed):
    for given in given_by_case(world_size, seed).values():
        start = given[0].scaler
        scaler = LossScaler(start["scale"], growth_interval=start["growth_interval"])
        scaler.load_state_dict(
            {"value": start["scale"], "num_good_steps": start["num_good_steps"], "num_skipped": 0}
        )
        trace = follow(Rules(), given)
        for number in range(len(given[0].slopes)):
            mine = [[g.float() for g in each.gradients(number, scaler.value)] for each in given]
            is_made = scaler.step(_Nothing(), [g for gradients in mine for g in gradients])
            for steps, gradients in zip(trace, mine):
                step = steps[number]
                assert (step.scale, step.num_updates, bool(step.is_made)) == (
                    scaler.value,
                    is_made,
                    is_made,
                )
                assert step.num_good_steps == scaler.state_dict()["num_good_steps"]
                if is_made and gradients:
                    assert torch.equal(step.updated_with, torch.cat(gradients))


class _Nothing:
    """An optimizer that is not asked for its parameters."""

    def step(self):
        pass


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("world_size", [2, 3])
def test_each_mistake_shows_in_some_case_and_differs_from_all_others_there(world_size, seed):
    cases = list(given_by_case(world_size, seed).values())
    right = [follow(Rules(), given) for given in cases]
    traces = [[follow(each.rules, given) for given in cases] for each in MISTAKES]
    firsts = []
    for mistake, its in zip(MISTAKES, traces):
        differs = [_first_difference(*pair) is not None for pair in zip(its, right)]
        assert any(differs), mistake.name
        firsts.append(differs.index(True))
    for i, first in enumerate(firsts):
        for j in range(i):
            is_other = MISTAKES[i].name != MISTAKES[j].name
            if is_other and firsts[j] == first:
                assert _first_difference(traces[i][first], traces[j][first]), (
                    MISTAKES[i].name,
                    MISTAKES[j].name,
                )


@pytest.mark.parametrize("seed", range(6))
def test_small_gradients_are_lost_in_float16_and_kept_by_the_scale(seed):
    given = given_by_case(1, seed)
    one = next(its for label, its in given.items() if label.startswith("no overflow"))[0]
    (scale, slopes) = one.scaler["scale"], one.slopes[0]
    kept = torch.cat(one.gradients(0, scale)).float() / scale
    error = ((kept - slopes) / slopes).abs().max()
    lost = ((slopes.half().float() - slopes) / slopes).abs().max()
    assert error < 1e-3 < lost


def without_a_list(scaler, gradients, update, group):
    """Hands a single flat tensor to update."""
    return scaled_step(
        scaler, gradients, lambda its: update([torch.cat([*its, torch.zeros(0)])]), group
    )


def several_updates(scaler, gradients, update, group):
    """Calls update for each gradient."""

    def one_by_one(unscaled):
        for each in unscaled:
            update([each])

    return scaled_step(scaler, gradients, one_by_one, group)


def tensor_scale(scaler, gradients, update, group):
    """Leaves a tensor in the scaler."""
    is_made = scaled_step(scaler, gradients, update, group)
    scaler["scale"] = torch.tensor(scaler["scale"])
    return is_made


def two_all_reduces(scaler, gradients, update, group):
    """Asks twice."""
    group.all_reduce(torch.zeros(1), op="max")
    return scaled_step(scaler, gradients, update, group)


def turned_around(scaler, gradients, update, group):
    """Hands gradients over in another order."""
    return scaled_step(scaler, gradients[::-1], lambda its: update([*its][::-1]), group) and True


def shrinks_to_a_quarter(scaler, gradients, update, group):
    """Another rule for the scale."""
    is_made = scaled_step(scaler, gradients, update, group)
    scaler["scale"] *= 1.0 if is_made else 0.5
    return is_made


def halved_gradients(scaler, gradients, update, group):
    """Another number."""
    return scaled_step(scaler, gradients, lambda its: update([each / 2 for each in its]), group)


def skips_the_third(scaler, gradients, update, group):
    """Skips for no reason."""
    return scaled_step(scaler, gradients, lambda its: None, group)


OTHERS = {
    without_a_list: "hands other tensors to update",
    several_updates: "hands other tensors to update",
    tensor_scale: "leaves something else in the scaler",
    two_all_reduces: "more collectives than one per step",
    turned_around: None,
    shrinks_to_a_quarter: "another scale or count than the rules say",
    halved_gradients: "other gradients than those without a scale",
    skips_the_third: "makes other steps than it should",
}


@pytest.mark.parametrize("program", OTHERS, ids=lambda program: program.__doc__)
def test_other_programs_get_the_verdict_that_they_should(program, monkeypatch):
    monkeypatch.setattr(program, "__name__", "scaled_step")
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == OTHERS[program] if OTHERS[program] else verdict, verdict
