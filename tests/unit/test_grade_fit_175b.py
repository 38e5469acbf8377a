"""The grader of fit_175b: sound layouts pass, lazy ones are named, and the traps are there."""

import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from labkit import calc
from labkit.grade import Outcome, check
from labkit.grade.graders.fit_175b import GRADER
from labkit.grade.graders.layout_answers import Given, Wrong, read, wrong_form
from labkit.grade.graders.layout_counts import COUNTS, THEORIES
from labkit.grade.graders.layout_memory import over_bytes, why_too_large
from labkit.grade.graders.layout_parts import Asked, of_parts, right
from labkit.grade.graders.layout_speed import BUDGET, is_slow, why_slow
from labkit.grade.graders.layout_tasks import draw
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "fit_175b"
NAMES = ("tp", "pp", "virtual", "zero", "microbatch", "recompute")


def as_dict(layout):
    return {name: getattr(layout, name) for name in NAMES}


@cache
def questions(seed=0):
    """Of both functions."""
    return tuple(GRADER.questions(random.Random(seed)))


def judged(layout, why_not=right, seed=0):
    """What comes of a layout for each task, and an answer for each layout."""
    answers = {"layout": layout, "why_not": why_not}
    asked = questions(seed)
    return GRADER.judge(asked, [answers[each.function](each.known) for each in asked])


def tasks(seed=0):
    """Drawn once: the planner's fastest of each is worked out once."""
    return tuple(each.known for each in questions(seed) if each.function == "layout")


def first(**layout):
    """Of the interviewer's task."""
    return Given(tasks()[0], calc.Layout(world_size=512, **layout))


def by_the_planner(task):
    """What labkit.calc.plan ranks first; it knows context parallelism as well."""
    plan = calc.plan(task.job, top=20)
    return next(each for each in plan.ranked if each.layout.cp == 1)


@pytest.mark.parametrize("seed", (1, 2))
def test_the_fastest_is_the_planners(seed):
    for task in tasks(seed)[:3]:
        assert task.best_seconds == pytest.approx(float(by_the_planner(task).step), rel=1e-12)


def test_the_planners_own_layouts_pass():
    assert judged(lambda task: as_dict(task.best)) is None


def test_layouts_in_another_style_pass(tmp_path):
    """No interleaving where it is not needed, and fewest bytes among those fast enough: sound."""
    solution = WORKSPACE.solution(NAME).read_text()
    old = "    return min(fitting, key=lambda each: _seconds(task, each))\n"
    assert old in solution
    new = (
        "    fast = 1.08 * min(_seconds(task, each) for each in fitting)\n"
        "    near = [each for each in fitting if _seconds(task, each) <= fast]\n"
        "    return min(near, key=lambda each: (each['virtual'], _bytes(task, each)))\n"
    )
    file = tmp_path / "mine.py"
    file.write_text(solution.replace(old, new))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", (0, 1, 2))
def test_the_solution_has_room_in_the_budget(seed):
    space: dict[str, object] = {}
    exec(WORKSPACE.solution(NAME).read_text(), space)
    for task in tasks(seed):
        found = read(task, space["layout"](task.as_dict))
        assert isinstance(found, Given), found
        assert over_bytes(found) == 0
        assert task.seconds(found.layout) < 1.1 * task.best_seconds < BUDGET * task.best_seconds


def test_what_the_colleague_hears():
    """DP 64 x TP 4 x PP 2: 87.6 GB of 16-bit weights and gradients alone."""
    asked = Asked(tasks()[0], calc.Layout(world_size=512, tp=4, pp=2, zero=0))
    name, nbytes = right(asked)
    assert name == "optimizer" and nbytes == pytest.approx(87.6e9, rel=1e-3)
    said = why_too_large([Given(asked.task, asked.layout)], [Given(asked.task, asked.layout)])
    assert "87.6 GB for weights and gradients alone" in said.explanation
    assert "The smallest change with which it fits: zero 0 -> 2" in said.explanation


@pytest.mark.parametrize("seed", range(6))
def test_each_wrong_count_is_known_by_its_answers(seed):
    for theory in THEORIES:
        finding = judged(lambda task: as_dict(calc.Layout(world_size=1)), theory.answer, seed)
        assert finding is not None and finding.diagnosis == theory.name, (theory.name, finding)


@pytest.mark.parametrize("seed", range(6))
def test_each_wrong_count_names_another_part_at_least_once(seed):
    asked = [each.known for each in questions(seed) if each.function == "why_not"]
    for name, _, parts in COUNTS:
        assert any(of_parts(parts(each)) != right(each) for each in asked), name


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ({"tp": 3}, "does not use all GPUs"),
        ({"tp": 32, "pp": 32}, "does not use all GPUs"),
        ({"tp": 16, "pp": 4}, "tensor parallelism across nodes"),
        ({"tp": 4, "virtual": 2}, "virtual stages without a pipeline"),
        ({"tp": 8, "pp": 8, "virtual": 5}, "layers do not divide into virtual stages"),
        ({"tp": 4, "pp": 128}, "more stages than layers"),
        ({"microbatch": 5}, "ranks do not divide the batch"),
        (
            {"pp": 32, "virtual": 3, "microbatch": 8},
            "interleaving needs microbatches in rounds of pp",
        ),
    ],
)
def test_each_rule_has_a_name(layout, name):
    given = as_dict(calc.Layout(world_size=512)) | layout
    assert wrong_form(given) is None
    found = read(tasks()[0], given)
    assert isinstance(found, Wrong) and found.name == name, found


@pytest.mark.parametrize(
    "answer",
    [
        None,
        8,
        "tp 8",
        {},
        [("tp", 8)],
        as_dict(calc.Layout(world_size=1)) | {"dp": 512},
        as_dict(calc.Layout(world_size=1)) | {"tp": "8"},
        as_dict(calc.Layout(world_size=1)) | {"tp": 8.0},
        as_dict(calc.Layout(world_size=1)) | {"tp": True},
        as_dict(calc.Layout(world_size=1)) | {"pp": 0},
        as_dict(calc.Layout(world_size=1)) | {"zero": 4},
        as_dict(calc.Layout(world_size=1)) | {"zero": -1},
        as_dict(calc.Layout(world_size=1)) | {"recompute": "selective"},
        as_dict(calc.Layout(world_size=1)) | {"recompute": None},
    ],
)
def test_the_form_of_a_layout(answer):
    finding = judged(lambda task: answer)
    assert finding.diagnosis == "returns something else" and "contract" in finding.explanation


@pytest.mark.parametrize(
    ("answer", "is_form"),
    [
        (("optimizer", 1), True),
        (["activations", 1.5], True),
        (None, False),
        ("optimizer", False),
        (("moments", 1.0), False),
        (("optimizer", "1"), False),
        (("optimizer", True), False),
        ((["optimizer"], 1.0), False),
    ],
)
def test_the_form_of_a_reason(answer, is_form):
    finding = judged(lambda task: as_dict(task.best), lambda asked: answer)
    assert (finding.diagnosis != "returns something else") is is_form


def test_the_same_for_all_is_no_layout():
    finding = judged(lambda task: as_dict(tasks()[0].best))
    assert finding.diagnosis == "the same layout for every task"


def test_counts_of_other_levels_are_the_planners():
    """One level more, or less, is what the planner has for that level."""
    parts = {name: count for name, _, count in COUNTS}
    for each in (asked.known for asked in questions() if asked.function == "why_not"):
        zero = each.layout.zero
        for name, level in (
            ("shards one level too much", zero + 1 if zero in (1, 2) else zero),
            ("shards one level too little", max(zero - 1, 0)),
            ("ignores ZeRO", 0),
        ):
            other = Asked(each.task, replace(each.layout, zero=level)).parts
            assert parts[name](each) == pytest.approx(other, rel=1e-6), (name, each)


def test_counts_that_explain_as_well_are_told():
    over = first(tp=4, pp=4, virtual=3, zero=2, microbatch=2)
    assert 0 < over_bytes(over) < 1e9
    assert "would end there as well" in why_too_large([over], [over]).explanation


def test_what_no_count_explains_is_named_by_its_largest_part():
    given = first(tp=1, pp=2, zero=0, microbatch=6)
    assert (
        over_bytes(given) > 0 and why_too_large([given], [given]).name == "does not fit: optimizer"
    )
    given = first(tp=1, zero=3, microbatch=3)
    small = first(tp=4, pp=2, zero=0)
    assert why_too_large([given, small], [given, small]).name == "does not fit: activations"


def test_slow_layouts_are_named_by_what_most_of_them_do():
    recomputed = first(tp=4, pp=8, virtual=12, microbatch=2, recompute="full")
    assert is_slow(recomputed)
    fast = first(tp=4, pp=8, virtual=12, microbatch=2)
    assert not is_slow(fast)
    assert why_slow([recomputed], [recomputed]).name == "always recomputes"
    assert why_slow([recomputed, fast], [recomputed]).name == "recomputes where it need not"
    bubble = first(tp=8, pp=4, microbatch=8, recompute="none")
    assert is_slow(bubble) and why_slow([bubble, fast], [bubble]).name == "never interleaves"
    gathered = first(tp=2, pp=4, zero=3, microbatch=1)
    assert why_slow([gathered, fast], [gathered]).name == "slow: exchanges over dp"


@pytest.mark.parametrize("seed", range(6))
def test_the_traps_are_there(seed):
    found = tasks(seed)
    jobs = [each.job for each in found]
    assert jobs[0].num_gpus == 512 and jobs[0].global_batch == 1536
    assert found[0].as_dict["num_params"] == int(calc.num_parameters("gpt3-175b"))
    assert {each.machines.gpus_per_node for each in jobs} == {4, 8}
    assert min(each.num_gpus for each in jobs) == 32
    assert {each.kept.name for each in jobs} == {"zero_paper", "megatron_bf16"}
    assert any(each.config.gated for each in jobs) and not all(each.config.gated for each in jobs)
    assert any(each.num_gpus % 3 == 0 and each.global_batch % 3 for each in jobs)
    # Whoever is always right with one layout would need these to be alike.
    assert len({task.best for task in found}) > len(found) // 2
    assert [str(each) for each in draw(random.Random(seed + 100))] != list(map(str, found))


def test_all_that_is_told_is_plain_data():
    kinds = {type(value) for task in tasks() for value in task.as_dict.values()}
    assert kinds <= {int, float, bool}


def test_looking_it_up_is_refused_even_where_the_refusal_is_caught(tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    line = '    room = 0.95 * task["memory_bytes"]\n'
    assert line in solution
    attempt = "    try: labkit.calc.plan(1)\n    except Exception: pass\n"
    file = tmp_path / "mine.py"
    file.write_text("import labkit.calc\n" + solution.replace(line, attempt + line, 1))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.outcome is Outcome.WRONG and verdict.diagnosis == "calls the answer itself"
