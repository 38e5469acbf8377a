"""The grader of load_balancing_loss: what it accepts, what cannot fool it, and its inputs."""

import random
from pathlib import Path

import pytest
import torch

from labkit.grade import check
from labkit.grade.graders import load_theories
from labkit.grade.graders.load_inputs import given_in, is_telling, random_cases
from labkit.grade.graders.load_theories import BALANCE, balance
from labkit.grade.graders.load_z_theories import Z, z_loss
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "load_balancing_loss"


def token_by_token(logits_TE, expert_TK, kept_TK):
    """Loops; the maximum is subtracted by hand."""
    num_tokens, num_experts = logits_TE.shape
    f = [0] * num_experts
    for chosen in expert_TK.tolist():
        for expert in chosen:
            f[expert] += 1 / expert_TK.numel()
    loss, z = 0.0, 0.0
    for logits_E in logits_TE:
        largest = logits_E.max().detach()
        exps_E = (logits_E - largest).exp()
        z = z + (largest + exps_E.sum().log()) ** 2 / num_tokens
        for expert in range(num_experts):
            loss = loss + num_experts * f[expert] * exps_E[expert] / exps_E.sum() / num_tokens
    return [loss, z]


def by_one_hot(logits_TE, expert_TK, kept_TK):
    """As GShard writes it, from a mask."""
    num_experts = logits_TE.shape[-1]
    mask_TKE = torch.nn.functional.one_hot(expert_TK, num_experts).to(logits_TE.dtype)
    lse_T1 = logits_TE.logsumexp(-1, keepdim=True)
    p_TE = (logits_TE - lse_T1).exp()
    return (mask_TKE.mean((0, 1)) @ p_TE.mean(0)) * num_experts, (lse_T1**2).mean()


@pytest.mark.parametrize("program", [token_by_token, by_one_hot])
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def returns_nothing(logits_TE, expert_TK, kept_TK):
    by_one_hot(logits_TE, expert_TK, kept_TK)


def returns_the_sum(logits_TE, expert_TK, kept_TK):
    return sum(by_one_hot(logits_TE, expert_TK, kept_TK))


def returns_numbers(logits_TE, expert_TK, kept_TK):
    return tuple(each.item() for each in by_one_hot(logits_TE, expert_TK, kept_TK))


def returns_shape_one(logits_TE, expert_TK, kept_TK):
    return tuple(each[None] for each in by_one_hot(logits_TE, expert_TK, kept_TK))


def returns_float32(logits_TE, expert_TK, kept_TK):
    return tuple(each.float() for each in by_one_hot(logits_TE, expert_TK, kept_TK))


def returns_nan(logits_TE, expert_TK, kept_TK):
    loss, z = by_one_hot(logits_TE, expert_TK, kept_TK)
    return loss * torch.nan, z


def writes_to_the_experts(logits_TE, expert_TK, kept_TK):
    loss, z = by_one_hot(logits_TE, expert_TK, kept_TK)
    with torch.no_grad():
        expert_TK[0] = 0
    return loss, z


def a_constant_and_a_gradient(logits_TE, expert_TK, kept_TK):
    loss, z = by_one_hot(logits_TE, expert_TK, kept_TK)
    return loss + (logits_TE.sum() - logits_TE.sum().detach()), z


def asks_the_grader(logits_TE, expert_TK, kept_TK):
    given = load_theories.Given(logits_TE, expert_TK, kept_TK)
    return load_theories.balance(given, logits_TE), logits_TE.logsumexp(1).square().mean()


FORM = "returns something else than two losses"
WRONG = {
    returns_nothing: FORM,
    returns_the_sum: FORM,
    returns_numbers: FORM,
    returns_shape_one: "returns another shape",
    returns_float32: "returns another dtype",
    returns_nan: "numbers that are none",
    writes_to_the_experts: "changes its input",
    a_constant_and_a_gradient: "another gradient of balance",
    asks_the_grader: "calls the answer itself",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_what_is_wrong_is_named(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


@pytest.mark.parametrize("seed", range(12))
def test_inputs_cover_what_goes_wrong_with_losses(seed):
    given = [given_in(case) for case in random_cases(random.Random(seed))]
    assert is_telling(given[0]) and not given[0].kept.all()
    assert {1, 2, 3} <= {each.experts.shape[1] for each in given}
    assert any(each.experts.shape[1] == each.num_experts for each in given)
    values = [float(balance(each, each.logits)) for each in given]
    assert any(value == pytest.approx(1, abs=1e-12) for value in values), "perfect balance"
    assert max(values) > 2, "collapse"
    assert any(each.logits.abs().max() > 900 for each in given)
    assert any(each.logits.dtype == torch.float32 for each in given)
    assert any(len(each.logits) == 1 for each in given)


def test_the_values_that_the_formula_is_known_for():
    equal = torch.zeros(8, 4, dtype=torch.float64)
    for k in (1, 2, 4):
        experts = torch.arange(8)[:, None].add(torch.arange(k)) % 4
        given = load_theories.Given(equal, experts, experts >= 0)
        assert float(balance(given, equal)) == pytest.approx(1)
    one = torch.zeros(8, 1, dtype=torch.int64)
    sure = 100.0 * torch.eye(4, dtype=torch.float64)[:1].expand(8, 4)
    assert float(balance(load_theories.Given(sure, one, one >= 0), sure)) == pytest.approx(4)
    assert float(z_loss(given, equal)) == pytest.approx(torch.tensor(4.0).log().square().item())


def test_no_mistake_gives_what_is_right_in_the_first_case():
    given = given_in(random_cases(random.Random(5))[0])
    for right, mistakes in ((balance, BALANCE), (z_loss, Z)):
        value = float(right(given, given.logits))
        for each in mistakes:
            assert float(each.loss(given, given.logits)) != pytest.approx(value, rel=1e-5), each


@pytest.mark.parametrize("mutant", ["kept_choices_alone", "z_detached"])
def test_the_hint_to_read_next_is_the_one_that_has_the_line(mutant):
    file = WORKSPACE.root / "tests" / "mutants" / NAME / f"{mutant}.py"
    assert check(NAME, file, workspace=WORKSPACE).finding.hint == 3
