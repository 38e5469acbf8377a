"""The grader of estimate_mfu: mistakes have names, and what is too small to matter passes."""

import random
from pathlib import Path

import pytest

from labkit import calc
from labkit.grade import check
from labkit.grade.graders.estimate_mfu import GRADER
from labkit.grade.graders.mfu_questions import (
    RECOMPUTE,
    Asked,
    draw,
    right_flops,
    right_hfu,
    right_mfu,
)
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "estimate_mfu"


def flops_per_token(model, sequence):
    """6 N + 12 L H K s, with norms in N."""
    queries = model["heads"] * model["head_dim"]
    keys = model["kv_heads"] * model["head_dim"]
    width = model["hidden"]
    layer = width * (2 * queries + 2 * keys) + width * model["ffn"] * (2 + model["gated"])
    num = model["layers"] * (layer + 2 * width) + width + width * model["vocab"]
    return 6 * num + 12 * model["layers"] * queries * sequence


def mfu(model, run):
    """By what one device achieves."""
    tokens_per_s = run["tokens_per_s"]
    if run["logged_by"] == "job":
        tokens_per_s /= run["num_devices"]
    dense = run["peak"] / 2 if run["sparsity"] else run["peak"]
    return flops_per_token(model, run["sequence"]) * tokens_per_s / dense


def hfu(model, run):
    """As multiples of MFU."""
    if run["recompute"] == "full":
        return mfu(model, run) * 4 / 3
    if run["recompute"] == "none":
        return mfu(model, run)
    of_scores = 12 * model["layers"] * model["heads"] * model["head_dim"] * run["sequence"]
    share = of_scores / flops_per_token(model, run["sequence"])
    return mfu(model, run) * (1 + share / 3)


def judged(function, answer, seed=0):
    """What comes of answering one function by `answer` of what is known, the others rightly."""
    rights = dict(GRADER.rights)
    rights[function] = answer
    questions = draw(random.Random(seed))
    return GRADER.judge(questions, [rights[each.function](each.known) for each in questions])


def test_other_right_answers_pass():
    verdict = check(NAME, [flops_per_token, mfu, hfu], workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", range(8))
def test_each_mistake_is_known_by_its_answers(seed):
    for function, theories in GRADER.theories.items():
        assert judged(function, GRADER.rights[function], seed) is None
        for theory in theories:
            finding = judged(function, theory.answer, seed)
            assert finding is not None and finding.diagnosis == theory.name, (theory.name, finding)


def llama(**run):
    """Llama 3 8B on 8 H100."""
    config = calc.MODELS["llama3-8b"]
    return Asked(config, 8192, 8 * 6400, 8, 989.5e12, **run)


def test_what_an_interviewer_hears():
    assert right_flops(llama()) == pytest.approx(57.9e9, rel=1e-3)
    assert right_mfu(llama(recompute="full")) == pytest.approx(0.375, abs=1e-3)
    assert right_hfu(llama(recompute="full")) == pytest.approx(0.499, abs=1e-3)
    seen = llama(logged_by="device", sparsity=True).run
    assert seen["tokens_per_s"] == 6400 and seen["peak"] == 1979e12


@pytest.mark.parametrize("seed", range(12))
def test_the_truth_is_what_other_formulas_say(seed):
    for question in draw(random.Random(seed)):
        asked = question.known
        assert flops_per_token(asked.model, asked.sequence) == pytest.approx(
            right_flops(asked), rel=1e-9
        )
        assert mfu(asked.model, asked.run) == pytest.approx(right_mfu(asked), rel=1e-9)
        assert hfu(asked.model, asked.run) == pytest.approx(right_hfu(asked), rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_the_traps_are_there(seed):
    asked = [each.known for each in draw(random.Random(seed))]
    configs = [each.config for each in asked]
    for gated in (True, False):
        for tied in (True, False):
            assert any(each.gated is gated and each.tied is tied for each in configs)
    assert any(each.num_kv_heads < each.heads for each in configs)
    assert any(each.heads * each.features_per_head != each.hidden for each in configs)
    assert all(each.sequence != each.config.context for each in asked)
    assert {each.recompute for each in asked} == set(RECOMPUTE)
    assert {(each.logged_by, each.sparsity) for each in asked} == {
        (by, sparse) for by in ("job", "device") for sparse in (True, False)
    }
    for each in configs:
        num = calc.num_parameters(each)
        assert float(num.parts["norms"]) / float(num) < GRADER.rtol / 4
    assert all(0.1 < right_mfu(each) <= right_hfu(each) < 0.8 for each in asked)
    assert [each.known for each in draw(random.Random(seed + 100))] != asked


@pytest.mark.parametrize(
    ("answer", "is_form"),
    [(0.4, True), (1, True), (None, False), ("40%", False), (True, False), ([0.4], False)],
)
def test_the_form_of_an_answer(answer, is_form):
    for function in GRADER.functions:
        assert bool(GRADER.wrong_form(function, answer)) is not is_form


def test_what_no_theory_explains_says_for_what():
    finding = judged("mfu", lambda a: right_mfu(a) * (1.3 if a.recompute == "full" else 1))
    assert finding.diagnosis == "another MFU" and "full recomputation" in finding.explanation
    finding = judged("flops_per_token", lambda a: right_flops(a) * (1.7 if a.config.gated else 1))
    assert "a gated MLP" in finding.explanation


def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    first = "    again = 0.0\n"
    assert first in solution
    attempt = "    try: labkit.calc.mfu(1, 1.0, 1, 1e9)\n    except Exception: pass\n"
    file = tmp_path / "mine.py"
    file.write_text("import labkit.calc\n" + solution.replace(first, attempt + first, 1))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "calls the answer itself", verdict
