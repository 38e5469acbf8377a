"""The grader of top_k_capacity: what it accepts, what cannot fool it, and its inputs."""

import math
import random
from pathlib import Path

import pytest
import torch

from labkit.grade import check
from labkit.grade.graders import capacity_rules
from labkit.grade.graders.capacity_inputs import given_in, is_telling, random_cases
from labkit.grade.graders.capacity_theories import EXPERTS, SLOTS
from labkit.grade.graders.capacity_weights import right_gradient
from labkit.grade.graders.logit_range import are_apart
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "top_k_capacity"


def queue_by_queue(logits_TE, bias_E, k, capacity_factor, renormalise):
    """Lists and loops, and a log-softmax."""
    num_tokens, num_experts = logits_TE.shape
    capacity = -int(-capacity_factor * k * num_tokens // num_experts)
    p_TE = torch.log_softmax(logits_TE, 1).exp()
    scores = (p_TE + bias_E).tolist()
    chosen = [sorted(range(num_experts), key=lambda e: -row[e])[:k] for row in scores]
    queues, slot_TK = [[] for _ in range(num_experts)], torch.full((num_tokens, k), -1)
    for choice in range(k):
        for token in range(num_tokens):
            queue = queues[chosen[token][choice]]
            if len(queue) < capacity:
                slot_TK[token, choice] = len(queue)
                queue.append(token)
    rows = []
    for token in range(num_tokens):
        p_K = torch.stack([p_TE[token, expert] for expert in chosen[token]])
        p_K = p_K / p_K.sum() if renormalise else p_K
        rows.append(torch.where(slot_TK[token] >= 0, p_K, 0))
    token_EC = torch.tensor([queue + [-1] * (capacity - len(queue)) for queue in queues])
    return [torch.tensor(chosen), slot_TK, torch.stack(rows), token_EC]


def by_sorting(logits_TE, bias_E, k, capacity_factor, renormalise):
    """A stable sort by expert, as kernels do it: a slot is the distance to the expert's first."""
    num_tokens, num_experts = logits_TE.shape
    capacity = math.ceil(k * num_tokens * capacity_factor / num_experts)
    p_TE = logits_TE.softmax(-1)
    expert_TK = (p_TE + bias_E).argsort(1, descending=True)[:, :k]
    experts = expert_TK.t().reshape(-1)
    order = experts.argsort(stable=True)
    counts = experts.bincount(minlength=num_experts)
    starts = counts.cumsum(0) - counts
    slots = torch.empty_like(experts)
    slots[order] = torch.arange(len(experts)) - starts[experts[order]]
    slots[slots >= capacity] = -1
    tokens = torch.full((num_experts * (capacity + 1),), -1)
    place = experts * (capacity + 1) + slots.where(slots >= 0, capacity)
    tokens[place] = torch.arange(num_tokens).repeat(k)
    slot_TK = slots.view(k, -1).t().contiguous()
    weight_TK = p_TE.take_along_dim(expert_TK, 1)
    total = weight_TK.sum(1, keepdim=True) if renormalise else 1
    weight_TK = (weight_TK / total).masked_fill(slot_TK < 0, 0)
    return expert_TK, slot_TK, weight_TK, tokens.view(num_experts, -1)[:, :-1]


@pytest.mark.parametrize("program", [queue_by_queue, by_sorting])
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def returns_nothing(logits_TE, bias_E, k, capacity_factor, renormalise):
    by_sorting(logits_TE, bias_E, k, capacity_factor, renormalise)


def returns_three(*arguments):
    return by_sorting(*arguments)[:3]


def returns_a_list_of_lists(*arguments):
    return [each.tolist() for each in by_sorting(*arguments)]


def returns_a_sparse_tensor(*arguments):
    experts, slots, weights, tokens = by_sorting(*arguments)
    return experts, slots, weights.to_sparse(), tokens


def transposed(*arguments):
    return tuple(each.t() for each in by_sorting(*arguments))


def int32_for_indices(*arguments):
    experts, slots, weights, tokens = by_sorting(*arguments)
    return experts, slots.int(), weights, tokens


def nan_for_weights(*arguments):
    experts, slots, weights, tokens = by_sorting(*arguments)
    return experts, slots, weights * torch.nan, tokens


def straight_through(*arguments):
    experts, slots, weights, tokens = by_sorting(*arguments)
    return experts, slots, weights + (arguments[0].sum() - arguments[0].sum().detach()), tokens


def other_slots_than_it_says(*arguments):
    experts, slots, weights, tokens = by_sorting(*arguments)
    return experts, slots, weights, tokens.flip(1)


def asks_the_grader(*arguments):
    given = capacity_rules.Given(*arguments, torch.empty(0))
    weights = capacity_rules.weights(given, given.logits)
    slots = capacity_rules.seat(given, capacity_rules.by_choice(given))
    return given.experts, slots, weights, capacity_rules.tokens_in(given, slots)


FORM = "returns something else than four tensors"
WRONG = {
    returns_nothing: FORM,
    returns_three: FORM,
    returns_a_list_of_lists: FORM,
    returns_a_sparse_tensor: FORM,
    transposed: "returns another shape",
    int32_for_indices: "returns another dtype",
    nan_for_weights: "numbers that are none",
    straight_through: "another gradient of logits_TE",
    other_slots_than_it_says: "tokens in other slots than slot_TK says",
    asks_the_grader: "calls the answer itself",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_what_is_wrong_is_named(program):
    # An argument list of its own, since a submission is called with five.
    def top_k_capacity(logits_TE, bias_E, k, capacity_factor, renormalise):
        return program(logits_TE, bias_E, k, capacity_factor, renormalise)

    verdict = check(NAME, top_k_capacity, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


@pytest.mark.parametrize("seed", range(12))
def test_inputs_cover_what_goes_wrong_with_capacities(seed):
    cases = random_cases(random.Random(seed))
    given = [given_in(case) for case in cases]
    first, second = given[:2]
    assert is_telling(first) and is_telling(second)
    assert (first.renormalise, second.renormalise) == (False, True)
    for each in (first, second):
        fraction = each.share % 1
        assert 0.5 < fraction < 1, "rounding to the nearest must not pass for rounding down"
        assert ((each.slots >= 0).sum(1) == 1).any(), "a token has lost one of its choices"
    assert {1, 2, 3, 4} <= {each.k for each in given}
    assert any(each.k == each.num_experts > 1 for each in given)
    assert any((each.slots >= 0).all() and each.capacity > each.num_tokens for each in given)
    assert any(each.share == each.capacity and each.num_experts > 1 for each in given)
    assert any((each.slots < 0).all(1).any() for each in given), "a token has lost everything"
    assert any(each.logits.abs().max() > 900 for each in given)
    assert any((each.logits[:, 0] < 0).any() and are_apart(each.logits) for each in given)
    assert any(each.logits.dtype == torch.float32 for each in given)
    for each in given:
        scores = (each.p + each.bias).double().sort(1).values
        gaps = scores.diff(dim=1)
        assert not gaps.numel() or gaps.min() > 1e-5, "no ties, whatever a topk makes of them"


@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_keeps_its_own_invariants(seed):
    for case in random_cases(random.Random(seed)):
        given = given_in(case)
        tokens, slots = capacity_rules.tokens_in(given, given.slots), given.slots
        kept = slots >= 0
        token = torch.arange(given.num_tokens)[:, None].expand_as(slots)
        assert torch.equal(tokens[given.experts[kept], slots[kept]], token[kept])
        assert (tokens >= 0).sum() == kept.sum()
        counts = given.experts.flatten().bincount(minlength=given.num_experts)
        assert kept.sum() == counts.clamp(max=given.capacity).sum(), "no slot stays empty in vain"
        weights = capacity_rules.weights(given, given.logits)
        if given.renormalise:
            assert torch.allclose(weights.sum(1)[kept.all(1)], torch.ones(()).to(weights))
        assert torch.isfinite(right_gradient(given)).all()


def test_mistakes_of_a_part_differ_from_each_other():
    given = given_in(random_cases(random.Random(3))[0])
    for right, mistakes in ((given.experts, EXPERTS), (given.slots, SLOTS)):
        made = [each.values(given) for each in mistakes]
        for i, one in enumerate(made):
            assert not torch.equal(one, right), mistakes[i].name
            assert not any(torch.equal(one, other) for other in made[:i]), mistakes[i].name


@pytest.mark.parametrize(
    "mutant",
    [
        "capacity_rounded_down",
        "capacity_without_k",
        "token_by_token",
        "bias_on_the_logits",
        "weights_from_numbers",
    ],
)
def test_the_hint_to_read_next_is_the_one_that_has_the_line(mutant):
    file = WORKSPACE.root / "tests" / "mutants" / NAME / f"{mutant}.py"
    assert check(NAME, file, workspace=WORKSPACE).finding.hint == 3
