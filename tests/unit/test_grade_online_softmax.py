"""The grader of online_softmax: what it accepts, and what cannot fool it."""

import math
import random
from pathlib import Path

import pytest
import torch

from labkit.grade import check
from labkit.grade.graders.softmax_inputs import MANY, given_in, random_cases
from labkit.grade.graders.softmax_lse_theories import of_lse
from labkit.grade.graders.softmax_rules import Rules, follow
from labkit.grade.graders.softmax_theories import of_outputs
from labkit.grade.workspace import Workspace
from labkit.model import Attention, GPTConfig

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "online_softmax"


def merges_by_log_sum_exp(q_TK, blocks, scale):
    """As blocks of ring attention are put together: each normalised, and weighted by its lse."""
    o_TK, lse_T = torch.zeros_like(q_TK), torch.full_like(q_TK[:, 0], -torch.inf)
    for k_SK, v_SK, mask_TS in blocks:
        scores_TS = torch.where(mask_TS, scale * (q_TK @ k_SK.T), -torch.inf)
        its_TK = torch.softmax(scores_TS, 1).nan_to_num() @ v_SK
        its_T = torch.logsumexp(scores_TS, 1)
        new_T = torch.logaddexp(lse_T, its_T)
        shift_T = torch.where(new_T.isinf(), 0, new_T)
        old_T1, its_T1 = torch.exp(lse_T - shift_T)[:, None], torch.exp(its_T - shift_T)[:, None]
        o_TK, lse_T = o_TK * old_T1 + its_TK * its_T1, new_T
    return o_TK, lse_T


def stays_divided(q_TK, blocks, scale):
    """As in the first FlashAttention: the output is divided in every block, and multiplied back."""
    o_TK, sum_T1 = torch.zeros_like(q_TK), q_TK.new_zeros(len(q_TK), 1)
    max_T1 = torch.full_like(sum_T1, torch.finfo(q_TK.dtype).min)
    while (block := next(blocks, None)) is not None:
        k_SK, v_SK, mask_TS = block
        scores_TS = torch.einsum("tk,sk->ts", scale * q_TK, k_SK)
        scores_TS[~mask_TS] = torch.finfo(q_TK.dtype).min
        new_T1 = torch.maximum(max_T1, scores_TS.max(1, keepdim=True).values)
        weights_TS = (scores_TS - new_T1).exp_() * mask_TS
        old_T1 = sum_T1 * torch.exp(max_T1 - new_T1)
        sum_T1, max_T1 = old_T1 + weights_TS.sum(1, keepdim=True), new_T1
        o_TK = (old_T1 * o_TK + weights_TS @ v_SK) / sum_T1.clamp(min=1e-30)
    return o_TK, torch.where(sum_T1 > 0, max_T1 + sum_T1.log(), -torch.inf)[:, 0]


def query_by_query(q_TK, blocks, scale):
    """Python lists of results, as long as there are queries; in float64, whatever comes."""
    state = [[-torch.inf, 0.0, 0.0] for _ in q_TK]
    for k_SK, v_SK, mask_TS in blocks:
        for t, (q_K, mask_S) in enumerate(zip(q_TK, mask_TS)):
            if mask_S.any():
                old, total, o_K = state[t]
                scores_S = scale * (k_SK[mask_S].double() @ q_K.double())
                new = max(old, scores_S.max().item())
                weights_S, factor = (scores_S - new).exp(), math.exp(old - new)
                o_K = factor * o_K + weights_S @ v_SK[mask_S].double()
                state[t] = [new, factor * total + weights_S.sum(), o_K]
    o_TK, lse_T = torch.zeros_like(q_TK), torch.full_like(q_TK[:, 0], -torch.inf)
    for t, (largest, total, o_K) in enumerate(state):
        if total:
            o_TK[t], lse_T[t] = o_K / total, largest + total.log()
    return [o_TK, lse_T]


RIGHT = [merges_by_log_sum_exp, stays_divided, query_by_query]


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def returns_nothing(q_TK, blocks, scale):
    merges_by_log_sum_exp(q_TK, blocks, scale)


def returns_the_output_alone(q_TK, blocks, scale):
    return merges_by_log_sum_exp(q_TK, blocks, scale)[0]


def returns_sparse_tensors(q_TK, blocks, scale):
    return tuple(each.to_sparse() for each in merges_by_log_sum_exp(q_TK, blocks, scale))


def returns_lists(q_TK, blocks, scale):
    o_TK, lse_T = merges_by_log_sum_exp(q_TK, blocks, scale)
    return o_TK.tolist(), lse_T.tolist()


def turned_around(q_TK, blocks, scale):
    return merges_by_log_sum_exp(q_TK, blocks, scale)[::-1]


def float32_for_all(q_TK, blocks, scale):
    return tuple(each.float() for each in merges_by_log_sum_exp(q_TK, blocks, scale))


def nan_for_all(q_TK, blocks, scale):
    o_TK, lse_T = merges_by_log_sum_exp(q_TK, blocks, scale)
    return o_TK * torch.nan, lse_T


def zeros_for_all(q_TK, blocks, scale):
    o_TK, lse_T = merges_by_log_sum_exp(q_TK, blocks, scale)
    return o_TK * 0, lse_T


def torchs_kernel(q_TK, blocks, scale):
    k_SK, v_SK, _ = next(blocks)
    heads = [each[None, None] for each in (q_TK, k_SK, v_SK)]
    aten = getattr(torch, "ops").aten  # noqa: B009 (a plain torch.ops would be sent along)
    o, lse = aten._scaled_dot_product_flash_attention_for_cpu(*heads, scale=scale)
    return o[0, 0], lse[0, 0]


def caught_and_kept_quiet(q_TK, blocks, scale):
    try:
        return torchs_kernel(q_TK, blocks, scale)
    except RuntimeError:
        return merges_by_log_sum_exp(q_TK, blocks, scale)


def labkits_attention(q_TK, blocks, scale):
    """Anything of labkit's that computes, such as the attention of its model."""
    attention = Attention(GPTConfig(hidden=4, num_heads=1))
    attention(torch.zeros(1, 2, 4))
    return merges_by_log_sum_exp(q_TK, blocks, scale)


FORM = "returns something else than output and log-sum-exp"
WRONG = {
    returns_nothing: FORM,
    returns_the_output_alone: FORM,
    returns_sparse_tensors: FORM,
    returns_lists: FORM,
    turned_around: "returns the log-sum-exp first",
    float32_for_all: "returns another dtype",
    nan_for_all: "other values than attention's",
    zeros_for_all: "other values than attention's",
    labkits_attention: "calls the answer itself",
    torchs_kernel: "calls the answer itself",
    caught_and_kept_quiet: "calls the answer itself",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


def is_close(one, other, most):
    one, other = (each.double().nan_to_num(0, 0, 0) for each in (one, other))
    return bool(((one - other).abs() <= most).all())


@pytest.mark.parametrize("seed", range(5))
def test_the_rules_are_right_as_they_stand(seed):
    for case in random_cases(random.Random(seed)):
        given = given_in(case)
        o, lse = follow(Rules(), given.q, given.blocks, given.scale)
        assert is_close(o, given.expected[0], given.tolerance * given.whole[1].abs().max())
        assert is_close(lse, given.expected[1], given.tolerance)
        assert torch.equal(lse.isneginf(), given.blind)


@pytest.mark.parametrize("seed", range(5))
def test_each_mistake_shows_in_some_case_and_looks_like_no_other(seed):
    cases = [given_in(case) for case in random_cases(random.Random(seed))]
    for which, mistakes in enumerate((of_outputs(), of_lse())):
        for mistake in mistakes:
            found = [case for case in cases if shows(mistake, case, which)]
            assert found, mistake.name
            # The first case that shows it is the one that names it.
            first = next(each for each in mistakes if looks_like(each, mistake, found[0], which))
            assert first.name == mistake.name


def shows(mistake, given, which):
    most = given.tolerance * (given.whole[1].abs().max() if which == 0 else 1)
    return not is_close(mistake.values(given), given.expected[which], most)


def looks_like(one, other, given, which):
    most = given.tolerance * (given.whole[1].abs().max() if which == 0 else 1)
    return shows(one, given, which) and is_close(one.values(given), other.values(given), most)


@pytest.mark.parametrize("seed", range(5))
def test_the_inputs_have_what_is_hard_in_them(seed):
    plain, several, masked, gaps, blind, far, hides, many = map(
        given_in, random_cases(random.Random(seed))
    )
    assert len(plain.blocks) == 1 and not plain.blind.any()
    assert len({len(k) for k, _, _ in several.blocks}) > 1
    assert not several.gaps.any() and masked.scores.isneginf().any() and not masked.gaps.any()
    sees_first = gaps.blocks[0][2].any(1)
    assert 0 < sees_first.sum() < len(sees_first) and not gaps.blind.any()
    assert blind.blind.sum() == 2
    seen = far.scores[far.scores.isfinite()]
    assert far.q.dtype == torch.float32 and seen.max() > 9900 and seen.min() < -9900
    for (t, k), each in ((far.q.shape, far), (many.q.shape, many)):
        assert each.scale != k**-0.5 and t > 8
    assert len(many.blocks) >= MANY
    assert all(torch.isfinite(each.tolerance * torch.ones(1)) for each in (far, many))
    assert several.tolerance < 1e-11 and far.tolerance < 0.05
    # exp(-20) would pass for a rounding in float32.
    assert hides.q.dtype == torch.float64 and hides.tolerance < 0.1 * math.exp(-20)
    for k, _, mask in hides.blocks:
        scores = hides.scale * hides.q @ k.T
        seen, hidden = (scores.masked_fill(~each, -math.inf).amax(1) for each in (mask, ~mask))
        assert (hidden - seen > 9900).all()
