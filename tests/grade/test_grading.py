"""The engine's own findings, in programs for one made-up exercise: sums of all ranks."""

import dataclasses
import math
import threading
from pathlib import Path

import pytest
import torch

from labkit.grade import engine, findings
from labkit.grade.catalog import get_exercise
from labkit.grade.differences import common_factor, difference, form_of
from labkit.grade.engine import check, observe
from labkit.grade.grader import Budget, Case, Mistake, OnRanks, Questions, close, patch
from labkit.grade.observed import Event, Observed, RankObservation
from labkit.grade.stubs import stub_of
from labkit.grade.submission import Submission
from labkit.grade.verdict import Outcome, Verdict
from labkit.grade.workspace import Workspace
from labkit.launch import run

WORKSPACE = Workspace(Path(__file__).parents[2])
SUMS = OnRanks(
    functions=("ring_all_reduce",),
    cases=lambda n, draw: [Case("5 elements", draw(5)), Case("no elements", draw(0))],
    right=lambda xs: torch.stack(tuple(xs)).sum(0),
    budget=lambda s: Budget(collectives=1, sends=0, peak_bytes=24),
    mistakes=[
        Mistake("adds twice", "why", wrong=lambda s: s.is_answer([2 * each for each in s.right])),
        Mistake("all calls fail", "why", wrong=lambda s: 1 / 0),
    ],
    allowed=("all_reduce", "isend", "irecv", "send", "recv"),
    closed=("labkit.collectives",),
    watch_memory=True,
    shown="sums",
)
HEAD = "import torch\n\n\ndef ring_all_reduce(x, group):\n"


@pytest.fixture(autouse=True, scope="module")
def ranks_start_at_once():
    """The first run starts the fork server, which takes seconds of its time."""
    run(lambda world: None, 1)


def grade(program, tmp_path, grader=SUMS, n=2):
    """The finding of one launch. Only what loops takes the time that it is given."""
    timeout_s = 3.0 if "while" in program else 60.0
    file = tmp_path / "answer.py"
    file.write_text(program if "def " in program else HEAD + program)
    code = Submission.read(file, "ring_all_reduce", grader.functions, WORKSPACE)
    return findings.first(grader, observe(grader, code, n, 1, timeout_s))


WRONG = [
    ("    return 2 * group.all_reduce(x)", Outcome.WRONG, "adds twice"),
    ("    return group.all_reduce(x) + 1", Outcome.WRONG, "wrong values"),
    ("    return 3 * group.all_reduce(x)", Outcome.WRONG, "every number is too large"),
    ("    return group.all_reduce(x) / 2", Outcome.WRONG, "every number is too small"),
    ("    return 1.001 * group.all_reduce(x)", Outcome.WRONG, "loses digits"),
    ("    group.all_reduce(x)", Outcome.WRONG, "returns nothing"),
    ("    return group.all_reduce(x).tolist()", Outcome.WRONG, "returns another type"),
    ("    return group.all_reduce(x)[None]", Outcome.WRONG, "returns another shape"),
    ("    return group.all_reduce(x).double()", Outcome.WRONG, "returns another dtype"),
    ("    group.all_reduce(x, out=x)\n    return x.clone()", Outcome.WRONG, "changes its input"),
    ("    group.all_reduce(x, out=x)\n    return x", Outcome.WRONG, "changes its input"),
    ("    return group.broadcast(x, 0)", Outcome.WRONG, "calls an operation that is not allowed"),
    (
        "    torch.distributed.all_reduce(x)\n    return x",
        Outcome.WRONG,
        "calls an operation that is not allowed",
    ),
    (
        "    from labkit.collectives import ring_all_reduce\n    return ring_all_reduce(x, group)",
        Outcome.WRONG,
        "calls the answer itself",
    ),
    (
        "    group.all_reduce(x, wait=False)\n    return x",
        Outcome.WRONG,
        "never waits for an operation",
    ),
    (
        "    y = x.clone()\n    p = group.all_reduce(y, wait=False)\n"
        "    y += 1\n    return p.wait()",
        Outcome.WRONG,
        "the tensor changed before the operation completed",
    ),
    (
        "    y = x.clone()\n    p = group.all_reduce(y, out=y, wait=False)\n    y.zero_()\n"
        "    p.wait()\n    return y",
        Outcome.WRONG,
        "the buffer changed before its operation completed",
    ),
    (
        "    y = torch.empty_like(x)\n    p = group.all_reduce(x, out=y, wait=False)\n"
        "    z = y.clone()\n    p.wait()\n    return z",
        Outcome.WRONG,
        "reads a buffer before its operation completed",
    ),
    (
        "    group.all_reduce(x)\n    return group.all_reduce(x)",
        Outcome.OVER_BUDGET,
        "too many collectives",
    ),
    (
        "    z = x.repeat(3)\n    return group.all_reduce(x)",
        Outcome.OVER_BUDGET,
        "too many bytes of tensors alive together",
    ),
    ("    return 1 / 0", Outcome.CRASHED, "raises ZeroDivisionError"),
    ("    return group.all_reduce(x).to('meta')", Outcome.CRASHED, "raises NotImplementedError"),
    (
        "    try:\n        return group.broadcast(x, 0)\n    except Exception:\n        return x",
        Outcome.WRONG,
        "calls an operation that is not allowed",
    ),
    ("    import os\n    os._exit(3)", Outcome.CRASHED, "its process ended"),
    ("    exit()", Outcome.CRASHED, "raises RuntimeError"),
    ("def ring_all_reduce(x):\n    return x", Outcome.CRASHED, "raises TypeError"),
    ("def another(x, group):\n    return x", Outcome.CRASHED, "raises AttributeError"),
    (
        "    raise NotImplementedError('later')",
        Outcome.NOT_ATTEMPTED,
        "a part is still to be written",
    ),
    (
        "    group.send(x, 1 - group.rank)\n    return x",
        Outcome.HUNG,
        "every rank is in send: nobody receives",
    ),
    (
        "    if group.rank:\n        group.all_reduce(x)\n    return x.clone()",
        Outcome.HUNG,
        "a collective that not every rank calls",
    ),
    (
        "    if group.rank:\n        group.recv(x, 0)\n    return x.clone()",
        Outcome.HUNG,
        "waits for a message that nobody sends",
    ),
    (
        "    return group.all_reduce(x, op='sum' if group.rank else 'max')",
        Outcome.WRONG,
        "ranks mean different operations",
    ),
    ("    while True:\n        pass", Outcome.HUNG, "loops without communicating"),
]


@pytest.mark.parametrize(("program", "outcome", "name"), WRONG, ids=[each[2] for each in WRONG])
def test_what_any_exercise_can_get_wrong_has_a_name(program, outcome, name, tmp_path):
    finding = grade(program, tmp_path)
    assert (finding.outcome, finding.diagnosis) == (outcome, name), finding


def test_a_right_answer_has_no_finding(tmp_path):
    assert grade("    return group.all_reduce(x)", tmp_path) is None


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("    breakpoint()\n    return x", "stops in the debugger"),
        ("    return torch.zeros(n)", "raises NameError"),
        ("    import no_such_module", "raises ModuleNotFoundError"),
    ],
)
def test_a_slip_that_is_not_about_the_subject_leads_to_no_hint(program, name, tmp_path):
    finding = grade(program, tmp_path)
    assert (finding.diagnosis, finding.hint) == (name, 0), finding


@pytest.mark.parametrize("which", ["True", "group.rank == 1"])
def test_the_operation_with_which_ranks_meet_is_not_mentioned(which, tmp_path):
    finding = grade(f"    while {which}:\n        pass\n    return x.clone()", tmp_path)
    assert finding.outcome is Outcome.HUNG
    assert "all_reduce" not in finding.explanation + finding.details, finding
    assert finding.where.line in (5, 6)


def test_the_message_of_a_group_names_nothing_that_an_exercise_asks_for(tmp_path):
    grader = OnRanks(**{**vars(SUMS), "allowed": ("reduce_scatter",)})
    finding = grade("    return group.reduce_scatter(x)", tmp_path, grader)
    assert finding.diagnosis == "raises ValueError"
    assert "labkit.collectives" not in finding.explanation + finding.details


@pytest.mark.parametrize(
    ("program", "outcome", "name"),
    [
        ("", Outcome.NOT_ATTEMPTED, "the file is empty"),
        ("# import torch\n", Outcome.NOT_ATTEMPTED, "the file is empty"),
        ("def another(x, group):\n    return x", Outcome.CRASHED, "defines no ring_all_reduce"),
        ("def ring_all_reduce(x)", Outcome.CRASHED, "is not valid Python"),
    ],
)
def test_what_a_file_lacks_is_said_before_a_launch(program, outcome, name, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "launch", None)
    file = tmp_path / "answer.py"
    file.write_text(program)
    verdict = check("ring_all_reduce", file, workspace=WORKSPACE)
    assert (verdict.outcome, verdict.diagnosis) == (outcome, name)
    assert ("Read next" in dict(verdict.paragraphs)) is False


@pytest.mark.parametrize(
    "program",
    [
        "ring_all_reduce = lambda x, group: x",
        "from elsewhere import another as ring_all_reduce",
        "from elsewhere import *",
        "if True:\n    def ring_all_reduce(x, group):\n        return x",
    ],
)
def test_a_function_may_be_defined_in_any_way(program, tmp_path):
    file = tmp_path / "answer.py"
    file.write_text(program)
    code = Submission.read(file, "ring_all_reduce", ("ring_all_reduce",), WORKSPACE)
    assert code.finding_before_running() is None


def test_an_error_in_one_of_several_calls_says_in_which(tmp_path):
    file = tmp_path / "paged_cache.py"
    solution = WORKSPACE.solution("paged_cache").read_text()
    file.write_text(
        patch("self.lengths.pop(sequence, None)", "del self.lengths[sequence]").applied_to(solution)
    )
    verdict = check("paged_cache", file, workspace=WORKSPACE)
    assert verdict.diagnosis == "raises KeyError"
    assert "in the call free(0)" in verdict.finding.explanation


@pytest.mark.parametrize(
    ("got", "right", "reported"),
    [
        ({"5": 1}, {5: 1}, "lacks the key 5 and has '5', which"),
        ({10: 1, 9: 1}, {}, "has 9, 10, which"),
        ({}, {"b": 1, "a": 1}, "lacks the keys 'a', 'b'"),
        ({"a": {"b": [1]}}, {"a": {"b": []}}, "the result at ['a']['b'] has 1 entry;"),
    ],
)
def test_another_form_says_where_and_of_what(got, right, reported):
    assert reported in form_of(got, right)[1]


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("    y = x.clone()\n    return y / y['a']", 6),
        ("    return group.barrier()", 5),
        ("    if group.rank:\n        group.recv(x, 0)\n    return x.clone()", 6),
    ],
)
def test_a_finding_has_the_learners_line(program, line, tmp_path):
    assert grade(program, tmp_path).where.line == line


def test_an_object_of_the_learners_own_class_is_another_type(tmp_path):
    program = (
        "class Own:\n    pass\n\n\ndef ring_all_reduce(x, group):\n    group.all_reduce(x)\n"
        "    return Own()"
    )
    assert grade(program, tmp_path).diagnosis == "returns another type"


def test_the_message_of_an_error_is_whole(tmp_path):
    finding = grade("    raise ValueError('no ValueError: none')", tmp_path)
    assert finding.explanation.endswith("line 5: no ValueError: none")


def test_what_was_printed_in_the_case_is_shown(tmp_path):
    finding = grade("    print('mine', group.rank)\n    return x", tmp_path)
    assert finding.printed.splitlines() == ["[rank 0] mine 0", "[rank 1] mine 1"]


def test_a_result_in_the_memory_of_an_earlier_one_is_found(tmp_path):
    cases = lambda n, draw: [Case("a", draw(4)), Case("b", draw(4))]  # noqa: E731
    program = (
        "import torch\n\nkept = torch.empty(4)\n\n\ndef ring_all_reduce(x, group):\n"
        "    return kept.copy_(group.all_reduce(x))"
    )
    grader = OnRanks(**{**vars(SUMS), "cases": cases})
    assert grade(program, tmp_path, grader).diagnosis == "returns the same memory again"


HALVES = Questions(
    functions=("half",),
    cases=lambda draw: [Case("two", 2), Case("three", 3)],
    right=lambda x: x / 2,
    mistakes=[
        Mistake("rounds down", "why", [patch("x / 2", "x // 0"), patch("x / 2", "x // 2")]),
        # As wrong as the next one where that is wrong, and not right where that is right.
        Mistake("adds a half", "why", patch("x / 2", "(x + 1) / 2")),
        Mistake("rounds up", "why", patch("x / 2", "-(-x // 2)")),
    ],
    shown="halves",
)


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("x / 2", None),
        ("x // 2", "rounds down"),
        ("(x + 1) // 2", "rounds up"),
        ("x + 5", "wrong values"),
        ("10**400", "wrong values"),
        ("[10**5000]", "returns another type"),
        ("x", "every number is too large"),
        ("f'{x / 2}'", "returns another type"),
        ("__import__('fractions').Fraction(x, 2)", "returns another type"),
    ],
)
def test_a_mistake_is_named_where_its_program_returns_the_same(answer, name, tmp_path):
    file = tmp_path / "half.py"
    file.write_text(f"def half(x):\n    return {answer}")
    code = dataclasses.replace(
        Submission.read(file, "half", ("half",), WORKSPACE),
        solution="def half(x):\n    return x / 2",
    )
    finding = findings.first(HALVES, observe(HALVES, code, 1, 1, 3.0))
    assert (None if finding is None else finding.diagnosis) == name


def test_patches_that_no_longer_fit_a_solution_end_no_check(tmp_path):
    file = tmp_path / "half.py"
    file.write_text("def half(x):\n    return x // 2")
    code = Submission.read(file, "half", ("half",), WORKSPACE)
    edited = dataclasses.replace(code, solution="def half(x):\n    return 0.5 * x")
    assert findings.first(HALVES, observe(HALVES, edited, 1, 1, 3.0)).diagnosis == "wrong values"


def test_steps_are_the_longest_chain_of_messages():
    def message(what, peer):
        return Event(what, peer=peer, dtype=torch.float32)

    chain = [
        RankObservation(events=[message("isend", 1), Event("wait", began=0)]),
        RankObservation(events=[message("recv", 0), Event("wait", began=0), message("isend", 2)]),
        RankObservation(events=[message("recv", 1), Event("wait", began=0)]),
    ]
    star = [
        RankObservation(events=[message("isend", 1), message("isend", 2)]),
        RankObservation(events=[message("recv", 0), Event("wait", began=0)]),
        RankObservation(events=[message("recv", 0), Event("wait", began=0)]),
    ]
    steps = [Observed(Case("", 0), ranks, None, None).num_steps for ranks in (chain, star)]
    assert steps == [2, 1]


@pytest.mark.parametrize(
    ("got", "right", "is_close"),
    [
        (torch.ones(3), torch.ones(3) + 1e-7, True),
        (torch.ones(3), torch.ones(3) + 1e-5, False),
        (torch.ones(3), torch.ones(3, dtype=torch.float64), False),
        (torch.tensor([2**53 + 1]), torch.tensor([2**53]), False),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), True),
        (2, 2.0, True),
        (True, 1, False),
        ([1, 2], (1, 2), True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ("a", "a", True),
        (None, 0, False),
    ],
)
def test_close_compares_types_shapes_and_values_but_for_rounding(got, right, is_close):
    assert close(got, right) is is_close


def test_whole_numbers_that_lost_digits_are_within_a_share_of_the_right_ones():
    right = torch.tensor([2**60 + 1, 3])
    assert close(right.float().long(), right, share=0.01)
    assert not close(right.float().long(), right)
    assert not close(right + 2**55, right, share=0.01)


def test_a_function_from_a_cell_is_graded_and_closed_rooms_stay_closed():
    def half(x, group):
        from labkit import collectives

        return collectives.ring_all_reduce(x, group)

    verdict = check("ring_all_reduce", half, workspace=WORKSPACE)
    assert verdict.diagnosis == "calls the answer itself"


def test_a_function_that_cannot_travel_says_why():
    lock = threading.Lock()

    def with_lock(x, group):
        with lock:
            return x

    with pytest.raises(TypeError, match="with_lock cannot be sent to the ranks"):
        check("ring_all_reduce", with_lock, workspace=WORKSPACE)


def test_the_seed_in_the_verdict_repeats_the_inputs(tmp_path):
    file = tmp_path / "ring_all_reduce.py"
    file.write_text(HEAD + "    return x * 0.5")
    one = check("ring_all_reduce", file, workspace=WORKSPACE)
    assert check("ring_all_reduce", file, seed=one.seed, workspace=WORKSPACE).finding == one.finding
    assert f"seed={one.seed}" in one.call


@pytest.mark.parametrize("timeout_s", ["10", 0])
def test_another_timeout_is_refused(timeout_s):
    solution = WORKSPACE.solution("ring_all_reduce")
    with pytest.raises((TypeError, ValueError), match="timeout="):
        check("ring_all_reduce", solution, timeout_s=timeout_s, workspace=WORKSPACE)


def test_a_second_function_is_checked_before_the_first_is_written(tmp_path):
    file = tmp_path / "gradient_buckets.py"
    first, second = stub_of("gradient_buckets", WORKSPACE).split("def reduce_buckets(")
    second = second.replace("raise NotImplementedError", "raise ValueError")
    file.write_text(f"{first}def reduce_buckets({second}")
    verdict = check("gradient_buckets", file, workspace=WORKSPACE)
    assert (verdict.outcome, verdict.finding.where.function) == (Outcome.CRASHED, "reduce_buckets")


@pytest.mark.parametrize(
    ("pairs", "factor"),
    [
        ([(6, 3), (8.0, 4.0)], 2),
        ([({"a": torch.tensor([2.0, 4.0, 0.0])}, {"a": torch.tensor([4.0, 8.0, 0.0])})], 0.5),
        ([([2, 4], (4, 8))], 0.5),
        ([(6, 3)], None),  # chance
        ([(6, 3), (9, 4)], None),
        ([(6, 3), (0, 4)], None),
        ([(6, 3), (8, 4), (1, 0)], None),
        ([(6, 3), (8, 4), (None, torch.ones(2))], None),
        ([(6, 3), (8, 4), (torch.ones(3), torch.ones(2))], None),
        ([(6, 3), (8, 4), ("a", "b")], None),
        ([(6, 3), (8, 4), (torch.tensor([math.nan, 1.0]), torch.ones(2))], None),
    ],
)
def test_a_common_factor_is_one_of_all_numbers(pairs, factor):
    assert common_factor(pairs) == factor


@pytest.mark.parametrize(
    ("got", "right", "place"),
    [
        (torch.tensor([1.0, 2.0001, 5.0]), torch.tensor([1.0, 2.0, 3.0]), "[2]"),
        (torch.tensor([math.nan, 1.0]), torch.tensor([math.nan, 2.0]), "[1]"),
        (torch.tensor([[1.0], [math.nan]]), torch.tensor([[2.0], [3.0]]), "[1, 0]"),
        ([torch.tensor([1.00001]), 3], [torch.tensor([1.0]), 2], "at [1]"),
        ({"a": torch.tensor([1.00001]), "b": True}, {"a": torch.ones(1), "b": False}, "at ['b']"),
        ({"a": torch.tensor([1.00001]), "b": 1}, {"a": torch.ones(1), "b": 1}, "at ['a']"),
        ({"a": [1, 5], "b": 4}, {"a": [1, 2], "b": 3}, "at ['a'][1]"),
    ],
)
def test_the_place_of_a_difference_is_no_rounding_where_more_differs(got, right, place):
    assert f" {place}" in difference(got, right)


def test_in_the_last_case_one_rank_is_late(tmp_path):
    program = (
        "import time\n\n\ndef ring_all_reduce(x, group):\n"
        "    slept, real = [], time.sleep\n"
        "    time.sleep = slept.append\n"
        "    y = group.all_reduce(x)\n"
        "    time.sleep = real\n"
        "    return y + len(slept)\n"
    )
    several = dataclasses.replace(
        SUMS, cases=lambda n, draw: [Case(name, draw(5)) for name in ("first", "second", "last")]
    )
    finding = grade(program, tmp_path, several)
    assert finding.diagnosis == "wrong values"
    assert finding.first_seen.startswith("2 ranks, last: rank 0:")


def test_a_predicate_over_budget_says_the_numbers(tmp_path):
    mistake = Mistake("any", "why (because.)", over_budget=lambda s: "9 of 5")
    grader = dataclasses.replace(SUMS, mistakes=[mistake])
    finding = grade("    return group.all_reduce(x)", tmp_path, grader)
    assert finding.first_seen == "2 ranks, 5 elements: 9 of 5"
    verdict = Verdict(get_exercise("ring_all_reduce"), finding, "", 1, "")
    assert dict(verdict.paragraphs)["Why"] == "why (because.)"


def test_a_predicate_is_not_asked_of_a_right_result_with_a_side_effect(tmp_path):
    grader = dataclasses.replace(SUMS, mistakes=[Mistake("any", "why", wrong=lambda s: True)])
    finding = grade("    group.all_reduce(x, out=x)\n    return x.clone()", tmp_path, grader)
    assert finding.diagnosis == "changes its input"


def test_an_answers_unseeded_numbers_differ_by_rank_and_case(tmp_path):
    file = tmp_path / "answer.py"
    file.write_text(HEAD + "    return torch.rand(1).item()\n")
    code = Submission.read(file, "ring_all_reduce", SUMS.functions, WORKSPACE)
    cases = observe(SUMS, code, 2, 1, 3.0).cases
    assert len({rank.output for case in cases for rank in case.ranks}) == 4
