"""Rooms that open without torch, and what a browser's Python lacks besides: imported, and used."""

import inspect
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Importing one of these raises ModuleNotFoundError.
WITHOUT = """
import sys
for name in "torch numpy matplotlib PIL IPython ipywidgets multiprocessing fcntl resource".split():
    sys.modules[name] = None
"""


def a_layout_is_planned_and_its_step_simulated():
    from labkit import calc

    job = calc.plan.Job("llama3-8b", "megatron_bf16", calc.cluster("h100", 8), 64)
    best = calc.plan.plan(job, 1).best
    pieces = calc.plan.pieces(job, best.layout)
    healthy = calc.simulate.step(pieces, best.layout)
    slow = calc.simulate.step(pieces, best.layout, [calc.simulate.Straggler(5, 1.5)])
    assert abs(healthy.seconds / best.step.value - 1) < 0.01
    assert slow.seconds > healthy.seconds


def ranks_of_a_mesh_have_coordinates():
    from labkit.mesh import coordinates_at

    assert coordinates_at(5, {"dp": 2, "pp": 2, "tp": 2}) == {"dp": 1, "pp": 0, "tp": 1}


def schedules_are_made_validated_simulated_and_drawn():
    from labkit import pipeline

    rows = "naive gpipe one_f_one_b interleaved zero_bubble_h1 zero_bubble_h2 zero_bubble_v"
    bubbles = {}
    for name in rows.split():
        schedule = pipeline.plan(getattr(pipeline, name), num_ranks=4, num_microbatches=8)
        pipeline.validate(schedule)
        timing = pipeline.simulate(schedule)
        bubbles[name] = timing.bubble()
        assert len(pipeline.in_time(timing).splitlines()) == 4
        assert pipeline.parse(pipeline.text(schedule), name).rows == schedule.rows
    assert bubbles["one_f_one_b"] == bubbles["gpipe"] == 3 / 11
    assert bubbles["naive"] > 3 / 11 > bubbles["interleaved"] > bubbles["zero_bubble_h1"]


def a_schedule_that_deadlocks_is_refused_with_the_cell():
    from labkit.pipeline import ScheduleError, parse, validate

    try:
        validate(parse("F0 B0\nB0 F0"))
    except ScheduleError as error:
        assert (error.rank, error.index) == (1, 0)
    else:
        raise AssertionError("a backward before its forward is no step")


def a_puzzle_is_solved_and_remembered():
    from labkit.grade.puzzles import solve, standing

    assert not solve("two ranks", "F0 B0 F1 B1\nF0 B0 F1 B1")
    assert solve("two ranks", "F0 F1 B0 B1\nF0 B0 F1 B1")
    assert standing("two ranks") == "passed"


def a_scheduler_plans_passes_over_pages():
    from labkit.serving import Pages, Request, ScheduledTokens, preempting
    from labkit.serving.requests import Generation
    from labkit.serving.scheduler import State

    pages = Pages(num_pages=3, page_size=4)
    first, second = (Generation(i, Request([7] * 5)) for i in range(2))
    plan = preempting(State([first, second], [], pages))
    assert [(each.generation, each.num_tokens) for each in plan.chunks] == [(first, 5)]
    assert pages.reserve(first.id, 5, first.longest)
    pages.commit([ScheduledTokens(first.id, first.tokens, 0)])
    assert pages.num_found(second.tokens) == 4, "the first page holds the same tokens"
    assert pages.share_prefix(second.id, second.tokens) == 4
    plan = preempting(State([second], [first], pages))
    assert [each.num_tokens for each in plan.chunks] == [0, 1]


def a_users_waits_are_measured():
    from labkit.serving import Timing, goodput, percentile

    timings = [Timing(0.0, [0.5, 0.6, 0.7]), Timing(1.0, [3.0, 3.1])]
    assert goodput(timings, ttft_s=1.0, tpot_s=0.2) == 1 / 3.1
    assert percentile([each.ttft_s for each in timings], 99) == 2.0


def traces_of_a_job_are_read_and_explained():
    from labkit import profile

    found = profile.report(profile.h200_trace("slow_loader"))
    assert found.words() and profile.page(found).startswith("<!DOCTYPE html>")


def drills_of_a_subject_are_imported_first():
    from labkit.course.memory import drills
    from labkit.interview.drills import DRILLS

    assert set(map(id, vars(drills).values())) & set(map(id, DRILLS.values()))


def every_drill_is_asked_and_judged():
    from labkit.interview.drills import DRILLS, Outcome, judge

    for drill in DRILLS.values():
        question = drill.question(seed=1)
        assert judge(question, question.answer_text).outcome is Outcome.RIGHT, drill.name
        assert judge(question, "no number").outcome is Outcome.UNREADABLE, drill.name
    assert len(DRILLS) > 70


def every_card_is_read_and_numbers_are_proved_by_formulas():
    from labkit.interview.cards import load_bank, read_bank
    from labkit.interview.evidence import prove, uses

    assert read_bank()[1] == []
    by_formula = [
        item
        for card in load_bank().values()
        for item in card.all_evidence
        if item.proof and not uses(item.proof, "runs")
    ]
    some = by_formula[::20]  # test_bank.py proves them all
    assert len(some) > 10
    assert [item.says for item in some if not prove(item.says, item.proof).holds] == []


def a_card_is_answered_and_comes_back():
    from labkit.interview.cards import load_bank, sitting

    card = load_bank()["co-8"]
    assert sitting.grade(card, range(1, len(card.rubric) + 1)) == "easy"
    assert sitting.next_due_s([card]) is not None


def claims_are_judged_by_formulas():
    from labkit.interview.court import VERDICTS, findings, load_claims
    from labkit.interview.evidence import prove, uses

    judged = 0
    for claim in load_claims().values():
        proofs = [each.proof for each in (*claim.evidence, *claim.exhibits) if each.proof]
        if any(uses(proof, "runs") for proof in proofs):
            continue
        stands = {each.stands for each in findings(claim, measure=False)}
        assert stands == VERDICTS[claim.verdict].stands, claim.key
        for each in claim.evidence:
            assert not each.proof or prove(each.says, each.proof).holds, claim.key
        judged += 1
    assert judged > 10


def an_interview_is_held_to_its_report():
    from labkit import progress
    from labkit.interview.cards import load_bank
    from labkit.interview.mock import Interview, plan_interview
    from labkit.interview.mock.interview import asked_drill, scored_drill, scored_questions

    interview = Interview(plan_interview(15, "senior", seed=3), clock=iter(range(10**6)).__next__)
    while (item := interview.next_item) is not None:
        if item.kind == "question":
            interview.take(item, *scored_questions([(load_bank()[item.name], [1])]))
        else:
            asked = asked_drill(item, seed=3)
            asked.answer(asked.question.answer_text)
            asked.finish()
            interview.take(item, *scored_drill(asked))
    kinds = {each.item.kind for each in interview.taken}
    assert kinds == {"question", "drill"} and interview.report().markdown
    assert [each.kind for each in progress.events("senior")] == ["mock"]


def progress_is_written_and_read():
    from labkit.progress import events, practice, record

    record("hint", "scan", number=1)
    assert [(each.kind, each.subject) for each in events()] == [("hint", "scan")]
    assert practice.answer("card/co-8", "good") is not None
    assert practice.state("card/co-8") is not None


def a_pipeline_is_chosen_or_written_and_drawn():
    from labkit.notebook import pipeline_calculator

    widget = pipeline_calculator("ZB-V", ranks=4, microbatches=8)
    assert "<svg" in widget._picture.value and "data:image/svg" in repr(widget._repr_mimebundle_())
    widget._rows.value = "F0 F1 B0 B1\nF0 B0 F1 B1"
    widget.draw()
    assert widget.answer.timing.makespan == 9


def a_puzzle_has_a_field_and_a_picture():
    from labkit.notebook import schedule_puzzle

    page = schedule_puzzle("two ranks")
    page._rows.value = "F0 F1 B0 B1\nF0 B0 F1 B1"
    assert page.check() and "<svg" in page._ruling.value


def calculators_of_memory_caches_and_traffic_turn():
    from labkit.notebook import cache_calculator, calculator, memory_calculator

    memory, cache, traffic = memory_calculator(), cache_calculator(), calculator()
    bars, said, chart = memory._bars.value, cache._said.value, traffic._chart.value
    memory._knobs["tp"].value = cache._knobs["tp"].value = 2
    traffic._collective.value = "broadcast by tree"
    assert bars != memory._bars.value and said != cache._said.value
    assert chart != traffic._chart.value and chart.startswith("<svg")


def a_layout_of_ones_own_is_planned():
    from labkit.notebook import layout_planner

    planner = layout_planner("llama3-8b", gpus=8, batch=64, top=2)
    planner._layout.value = "tp=8"
    planner.plan_again()
    assert "place " in planner._said.value


def a_mesh_is_explored():
    from labkit.notebook import mesh_explorer

    assert "node 1" in mesh_explorer(dp=2, pp=2, tp=4)._repr_mimebundle_()["text/html"]


def a_card_is_answered_in_its_box():
    from labkit import progress
    from labkit.notebook import card

    shown = card("co-8")
    shown.question.reveal()
    assert shown.question.grade("good")
    assert [each.kind for each in progress.events("card/co-8")] == ["answer"]
    shown.follow_up()
    assert shown.question.card.id != "co-8"


def a_drill_is_answered_in_its_box():
    from labkit import progress
    from labkit.notebook import drill

    shown = drill("bubble_of_total", seed=3)
    shown.question.submit("0.001%")
    ruling = shown.question.submit(shown.question.asked.question.answer_text)
    assert ruling and "stored" in shown.question._end.value
    assert progress.events("drill/bubble_of_total", "answer")


def a_quiz_is_taken():
    from labkit import progress
    from labkit.notebook import quiz

    asked = quiz("co", 2, seed=1)
    asked.next()
    asked.choose((asked.question.right + 1) % len(asked.question.choices))
    asked.next()
    asked.choose(asked.question.right)
    asked.next()
    assert asked.results == [False, True] and "1 of 2" in asked._prompt.value
    assert progress.events(kind="answer")


def a_grid_is_drawn():
    from labkit import progress
    from labkit.notebook import draw

    drawn = draw("ring-3")
    assert not drawn.check()
    drawn.grid.cells = [list(row) for row in drawn.drawing.answer]
    assert drawn.check()
    outcomes = [each.detail["outcome"] for each in progress.events("ring-3", "drawing")]
    assert outcomes == ["wrong", "passed"]


def a_claim_is_voted_on_and_judged():
    from labkit import progress
    from labkit.interview.court import load_claims
    from labkit.notebook import docket, judge, vote

    vote("gpipe-10-4").choose("misleading")
    assert progress.events("gpipe-10-4", "vote") and "you voted on 1" in repr(docket())
    for key in load_claims():
        assert "What is true." in judge(key).html
    assert "real runs" in repr(judge("ring-8")) and "You voted" in repr(judge("gpipe-10-4"))


def an_interview_is_held_in_its_box():
    from labkit import progress
    from labkit.notebook import mock_interview

    for minutes in (45, 60):
        shown = mock_interview(minutes, "senior", seed=1)
        assert "No exercise and no case" in shown._rules.value
        shown.start()
        while shown.report is None:
            shown.skip()
    assert shown.report.report.markdown.startswith("# Mock interview: senior, 60")
    assert len(progress.events("senior", "mock")) == 2
    assert {each.item.kind for each in shown.interview.taken} == {"story", "question", "drill"}


def a_design_round_is_held_to_its_report():
    from labkit import progress
    from labkit.interview.design.report import html_of
    from labkit.notebook import design_round

    shown = design_round("8b-one-host")
    assert "fits" in shown._propose("dp=8 zero=3 recompute=full")
    shown.report()
    assert "Design round" in shown._report.value and "<h1>" in html_of(shown.round)
    assert progress.events("8b-one-host", "design")


def a_take_home_is_scored():
    from labkit.interview.take_home import best_s
    from labkit.notebook import take_home

    shown = take_home()
    found = shown.score()
    assert found and best_s() == found.seconds and "<svg" in shown._result.value


def the_dashboard_counts_what_was_done():
    from labkit.notebook import dashboard, drill

    shown = dashboard()
    drill("bubble_of_total", seed=3).question.finish()
    assert shown.refresh().streak == 1


USES = [
    a_layout_is_planned_and_its_step_simulated,
    ranks_of_a_mesh_have_coordinates,
    schedules_are_made_validated_simulated_and_drawn,
    a_schedule_that_deadlocks_is_refused_with_the_cell,
    a_puzzle_is_solved_and_remembered,
    a_scheduler_plans_passes_over_pages,
    a_users_waits_are_measured,
    traces_of_a_job_are_read_and_explained,
    drills_of_a_subject_are_imported_first,
    every_drill_is_asked_and_judged,
    every_card_is_read_and_numbers_are_proved_by_formulas,
    a_card_is_answered_and_comes_back,
    claims_are_judged_by_formulas,
    an_interview_is_held_to_its_report,
    progress_is_written_and_read,
]


# With ipywidgets, as a page of the web edition has them: with its own stand-in for IPython.
WIDGETS = [
    a_pipeline_is_chosen_or_written_and_drawn,
    a_puzzle_has_a_field_and_a_picture,
    a_mesh_is_explored,
    a_card_is_answered_in_its_box,
    a_drill_is_answered_in_its_box,
    a_quiz_is_taken,
    a_grid_is_drawn,
    a_claim_is_voted_on_and_judged,
    an_interview_is_held_in_its_box,
    a_design_round_is_held_to_its_report,
    a_take_home_is_scored,
    the_dashboard_counts_what_was_done,
    calculators_of_memory_caches_and_traffic_turn,
    a_layout_of_ones_own_is_planned,
]
WITH_WIDGETS = """
import sys
for name in "torch numpy matplotlib PIL cloudpickle multiprocessing fcntl resource".split():
    sys.modules[name] = None
"""


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_without_torch(use, tmp_path):
    done = ran(WITHOUT, use, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("use", WIDGETS, ids=lambda use: use.__name__)
def test_widgets_without_torch(use, tmp_path):
    done = ran(WITH_WIDGETS, use, tmp_path, ROOT / "book" / "live" / "python")
    assert done.returncode == 0, done.stderr


def ran(hidden, use, home, *first):
    """Run a function in a process of its own; first: folders in which modules are found first."""
    code = f"{hidden}\n{textwrap.dedent(inspect.getsource(use))}\n{use.__name__}()"
    found = os.pathsep.join(map(str, [*first, ROOT]))
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": found, "LABKIT_HOME": str(home)},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
