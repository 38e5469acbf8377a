"""The grader of split_attention_heads: its shares are attention's, mistakes are told apart."""

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from labkit.grade import check
from labkit.grade.graders.heads_layouts import (
    Given,
    Holder,
    Layout,
    draw_holders,
    given_in,
    random_cases,
)
from labkit.grade.graders.heads_mistakes import mistakes
from labkit.grade.graders.heads_shares import copies, right
from labkit.grade.graders.heads_verdicts import wrong_refusals, wrong_shares
from labkit.grade.graders.heads_watch import Answer
from labkit.grade.graders.split_attention_heads import GRADER
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "split_attention_heads"
SEEDS = range(12)


def attention(x, query, key, value, out, head_dim):
    """With as many query heads for each key-value head as there are."""
    q, k, v = (
        (x @ weight.t()).unflatten(-1, (-1, head_dim)).transpose(0, 1)
        for weight in (query, key, value)
    )
    k, v = (each.repeat_interleave(len(q) // len(k), dim=0) for each in (k, v))
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(0, 1).flatten(1) @ out.t()


LAYOUTS = [(2, 4, 4), (2, 8, 4), (4, 8, 2), (3, 6, 1), (4, 4, 2), (1, 6, 3), (8, 16, 4)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_partial_results_and_gradients_of_copies_add_up_to_those_of_the_whole_layer(layout):
    num_ranks, num_heads, num_kv_heads = layout
    head_dim, width = 3, 5
    torch.manual_seed(sum(layout))
    shapes = [(num_heads * head_dim, width), *[(num_kv_heads * head_dim, width)] * 2]
    weights = [torch.randn(s, dtype=torch.float64) for s in (*shapes, shapes[0][::-1])]
    x, dy = torch.randn(2, 7, width, dtype=torch.float64)
    whole = [each.clone().requires_grad_() for each in weights]
    y = attention(x, *whole, head_dim)
    y.backward(dy)
    total, gradients = 0, []
    for shares in right(Given(Layout(*layout), weights)):
        leaves = [each.clone().requires_grad_() for each in shares]
        part = attention(x, *leaves, head_dim)
        part.backward(dy)
        total = total + part.detach()
        gradients.append(leaves[1].grad)
    torch.testing.assert_close(total, y.detach())
    summed = [
        sum(gradients[other] for other in copies(Holder(num_ranks, rank, num_kv_heads)))
        for rank in range(num_ranks)
        if copies(Holder(num_ranks, rank, num_kv_heads))[0] == rank
    ]
    torch.testing.assert_close(torch.cat(summed), whole[1].grad)


def split_attention_heads(query, key, value, out, num_ranks, rank, num_heads, num_kv_heads):
    """Head by head, by asking which key-value head each query head reads."""

    def blocks(weight, dim, heads, num_all):
        return torch.cat([weight.chunk(num_all, dim)[head] for head in heads], dim)

    def reads(n):
        if num_heads % n:
            return None
        each = num_heads // n
        of_ranks = [
            [h * num_kv_heads // num_heads for h in range(r * each, (r + 1) * each)]
            for r in range(n)
        ]
        fair = {tuple(its.count(kv) for kv in sorted(set(its))) for its in of_ranks}
        copies = {sum(kv in its for its in of_ranks) for kv in range(num_kv_heads)}
        is_whole = len(fair) == 1 and (copies == {1} or all(len(set(i)) == 1 for i in of_ranks))
        return of_ranks if is_whole else None

    if not reads(num_ranks):
        fits = [str(n) for n in range(1, num_heads + 1) if reads(n)]
        numbers = " or ".join(filter(None, (", ".join(fits[:-1]), fits[-1])))
        raise ValueError(f"{num_ranks} is not possible. Possible numbers of ranks are {numbers}.")
    count = num_heads // num_ranks
    own = range(rank * count, (rank + 1) * count)
    kv = sorted(set(reads(num_ranks)[rank]))
    q, o = blocks(query, 0, own, num_heads), blocks(out, 1, own, num_heads)
    return [q, blocks(key, 0, kv, num_kv_heads), blocks(value, 0, kv, num_kv_heads), o]


def kv_copies(num_ranks, rank, num_kv_heads):
    """A tuple, from the heads that ranks read."""
    if num_ranks <= num_kv_heads:
        return (rank,)
    held = [other * num_kv_heads // num_ranks for other in range(num_ranks)]
    return tuple(other for other in range(num_ranks) if held[other] == held[rank])


def test_right_answers_of_another_kind_pass():
    verdict = check(NAME, [split_attention_heads, kv_copies], workspace=WORKSPACE)
    assert verdict, verdict


def test_a_pass_reads_the_same_whatever_the_seed():
    assert len({GRADER.tried(draw_holders(random.Random(seed))) for seed in SEEDS}) == 1
    assert {len(random_cases(random.Random(seed))) for seed in SEEDS} == {10}


def even_cases(seed):
    return [
        each for each in map(given_in, random_cases(random.Random(seed))) if each.layout.is_even
    ]


def judged(of_ranks, given):
    return wrong_shares(given, [Answer(list(shares), None, "") for shares in of_ranks])


def by_variant(given):
    """Mistakes by name and number: some have several forms."""
    found, names = {}, []
    for each in mistakes(given):
        found[each.name, names.count(each.name)] = each
        names.append(each.name)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_is_known_by_the_first_layout_that_shows_it(seed):
    cases = even_cases(seed)
    of_cases = [by_variant(given) for given in cases]
    for variant in of_cases[0]:
        findings = [
            judged([its[variant].shares(rank) for rank in range(given.layout.num_ranks)], given)
            for given, its in zip(cases, of_cases)
            if variant in its
        ]
        shown = [each.diagnosis for each in findings if each is not None]
        assert shown and shown[0] == variant[0], variant


@pytest.mark.parametrize("seed", SEEDS)
def test_the_right_shares_are_right_and_others_are_named(seed):
    for given in even_cases(seed):
        assert judged(right(given), given) is None
        of_ranks = right(given)
        of_ranks[-1][2] = of_ranks[-1][2] + 1
        finding = judged(of_ranks, given)
        assert finding.diagnosis == "other shares than a rank's"
        assert "value: row 0 is none of the weight" in finding.first_seen
        of_ranks[-1][2] = of_ranks[-1][2].double()
        assert "float64" in judged(of_ranks, given).first_seen


@pytest.mark.parametrize("seed", SEEDS)
def test_layouts_have_copies_and_refusals_of_both_kinds(seed):
    layouts = [given_in(case).layout for case in random_cases(random.Random(seed))]
    even = [each for each in layouts if each.is_even]
    assert any(each.num_kv_heads == each.num_heads and each.num_ranks > 1 for each in even)
    assert any(1 < each.num_ranks < each.num_kv_heads < each.num_heads for each in even)
    assert any(1 < each.num_kv_heads < each.num_ranks for each in even)
    assert any(1 == each.num_kv_heads < each.num_ranks for each in even)
    uneven = [each for each in layouts if not each.is_even]
    assert {each.divides_heads for each in uneven} == {True, False}
    assert any(each.num_ranks > each.num_heads for each in uneven)


@pytest.mark.parametrize(
    ("message", "diagnosis"),
    [
        ("6 ranks cannot share 12 heads and 4 key-value heads; try 1, 2, 4 or 12", None),
        ("[1, 2, 4, 12]", None),
        ("try 1, 2, 3, 4, 6 or 12", "names choices that key-value heads do not allow"),
        ("try 1, 2 or 4", "names no choices with copies"),
        ("try 12, 4, 2 or 1", "the error does not end with the choices"),
        ("try 1, 2, 4 or 12, and not 6", "the error does not end with the choices"),
        ("", "the error does not end with the choices"),
    ],
)
def test_the_choices_in_a_message_are_read_from_its_end(message, diagnosis):
    finding = wrong_refusals(Layout(6, 12, 4), [Answer([], message, "")] * 6)
    assert (finding and finding.diagnosis) == diagnosis


def asked(answer, seed=0):
    questions = draw_holders(random.Random(seed))
    return GRADER.judge(questions, [answer(each.known) for each in questions])


@pytest.mark.parametrize("seed", SEEDS)
def test_each_mistake_about_copies_is_known_by_its_answers(seed):
    assert asked(copies, seed) is None
    for theory in GRADER.theories["kv_copies"]:
        assert asked(theory.answer, seed).diagnosis == theory.name
    other = asked(lambda holder: copies(holder)[:1], seed)
    assert other.diagnosis == "other ranks than those with copies"


@pytest.mark.parametrize("answer", [None, 1, {0: 1}, [0.0], ["0"], [True]])
def test_the_form_of_an_answer(answer):
    assert GRADER.wrong_form("kv_copies", answer)


FORMS = {
    "return None": "returns something else",
    "return query, key, value": "returns something else",
    "return query, key, value, None": "returns something else",
    "return query, key, value, out.to_sparse()": "returns something else",
    "return query.tolist(), key, value, out": "returns something else",
    "return query, key, value, out": "returns the whole weights",
    "return query[0]": "returns something else",
    "raise ValueError('1')": "refuses ranks that can share the heads",
    "return query[rank]/0, key, value, out": "other shares than a rank's",
    "return query @ key": "raises RuntimeError",
    "return 1 / 0": "raises ZeroDivisionError",
}


@pytest.mark.parametrize("line", FORMS)
def test_whatever_comes_back_is_named(line, tmp_path):
    verdict = check(NAME, _program(tmp_path, line), workspace=WORKSPACE)
    assert verdict.diagnosis == FORMS[line], verdict
    assert "1 rank" not in verdict.finding.first_seen


def _program(folder, line, of_copies="return [rank]"):
    file = folder / "mine.py"
    signature = "query, key, value, out, num_ranks, rank, num_heads, num_kv_heads"
    file.write_text(
        f"def split_attention_heads({signature}):\n    {line}\n\n\n"
        f"def kv_copies(num_ranks, rank, num_kv_heads):\n    {of_copies}\n"
    )
    return file


LOOKING_UP = "labkit.grade.graders.heads_shares as its"
ASKS = {
    "split": ("    head_dim = query", "its.right(None)", "calls the answer itself"),
    "copies": ("    num_copies = max", "its.copies(None)", "calls the answer itself"),
    "watch": ("    head_dim = query", "sys.setprofile(None)", "switches off the watch"),
}


@pytest.mark.parametrize("way", ASKS)
def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(way, tmp_path):
    first, call, diagnosis = ASKS[way]
    solution = WORKSPACE.solution(NAME).read_text()
    assert solution.count(first) == 1
    attempt = f"    try: {call}\n    except BaseException: pass\n"
    file = tmp_path / "mine.py"
    file.write_text(f"import sys\nimport {LOOKING_UP}\n" + solution.replace(first, attempt + first))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == diagnosis, verdict


def test_one_of_two_functions_is_graded_and_the_other_is_still_to_be_written(tmp_path):
    solution, stub = WORKSPACE.solution(NAME).read_text(), "raise NotImplementedError"
    done = _program(tmp_path, stub, "n = max(1, num_ranks // num_kv_heads)\n    return [rank]")
    assert check(NAME, done, workspace=WORKSPACE).diagnosis == "finds no copies"
    head, _, _ = solution.partition("def kv_copies")
    done.write_text(f"{head}def kv_copies(num_ranks, rank, num_kv_heads):\n    {stub}\n")
    verdict = check(NAME, done, workspace=WORKSPACE)
    assert verdict.diagnosis == "a part is still to be written", verdict


def test_a_layout_says_what_can_share_its_heads():
    assert Layout(6, 12, 4).choices == [1, 2, 4, 12]
    assert dataclasses.replace(Layout(6, 12, 4), num_kv_heads=12).choices == [1, 2, 3, 4, 6, 12]
    assert Layout(16, 32, 8).choices == [1, 2, 4, 8, 16, 32]
