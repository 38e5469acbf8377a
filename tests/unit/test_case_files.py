"""Case files on made traces: what is drawn, asked, ruled, shown and remembered."""

import sys

import pytest

from labkit import cli, inject, progress
from labkit.inject import Jitter, SlowLoader, SlowRank
from labkit.interview import slow_case
from labkit.interview.case_files import CASES
from labkit.interview.drills import Outcome
from labkit.interview.mock import Item, Plan
from labkit.interview.slow_case import Drawn, case_of, draw, open_case
from labkit.notebook import case
from labkit.notebook.mock import MockInterview
from labkit.profile.bottleneck import FAULTS
from labkit.progress import statistics
from tests.unit.test_profile_changes import training
from tests.widget_tree import buttons, entry, press, words

RIGHT = "straggler, rank 2, 25%"


def a_case(folder, difficulty=2):
    """A step of 96 ms: without a straggler, 72. At difficulty 5 loaders take 10 ms more."""
    loads = {(rank, "data"): 0.01 for rank in range(4) if difficulty == 5}
    faults = (SlowRank(2, 0.4), *([SlowLoader(None, 0.01)] if loads else []))
    slow, without = training(loads | {(2, "compute"): 0.024}), training(loads)
    return case_of(Drawn(difficulty, 7, faults, "ddp"), slow, without, folder)


@pytest.fixture(autouse=True)
def made(tmp_path, monkeypatch):
    """No case runs here: each is made in a folder of the test."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(slow_case, "open_case", lambda difficulty, _: a_case(tmp_path, difficulty))
    return tmp_path


@pytest.mark.parametrize("difficulty", range(1, 6))
def test_a_seed_draws_one_case_of_its_difficulty_and_others_draw_others(difficulty):
    cases = [draw(difficulty, seed) for seed in range(60)]
    assert draw(difficulty, 3) == cases[3]
    assert len({(each.faults[0].cause, each.faults[0].rank) for each in cases}) > 2
    for each in cases:
        asked, *more = each.faults
        assert asked.cause in FAULTS
        assert each.strategy in inject.STRATEGIES
        assert difficulty in (3, 4) or each.strategy == "ddp"
        assert difficulty != 2 or asked.rank is not None
        assert [type(fault) for fault in more if difficulty == 4] == [Jitter] * (difficulty == 4)
        assert len(more) == (difficulty > 3)
        assert all(fault.cause != asked.cause for fault in more)


@pytest.mark.parametrize(
    ("answer", "outcome", "right", "wrong"),
    [
        (RIGHT, Outcome.RIGHT, "", ""),
        ("a Straggler on rank 2: 29.9 percent", Outcome.RIGHT, "", ""),
        ("20.1%, rank 2, straggler", Outcome.RIGHT, "", ""),
        ("straggler, rank 1, 25%", Outcome.WRONG, "cause, gain", "rank"),
        ("straggler, all ranks, 25%", Outcome.WRONG, "cause, gain", "rank"),
        ("straggler, rank 2, 33%", Outcome.WRONG, "cause, rank", "gain"),
        ("straggler, rank 2, 19%", Outcome.WRONG, "cause, rank", "gain"),
        ("input, rank 2, 25%", Outcome.WRONG, "rank, gain", "cause"),
        ("link, rank 3, 70%", Outcome.WRONG, "nothing yet", "cause, rank, gain"),
        ("straggler, 25%", Outcome.UNREADABLE, "", ""),
        ("straggler, rank 2", Outcome.UNREADABLE, "", ""),
        ("rank 2, 25%", Outcome.UNREADABLE, "", ""),
    ],
)
def test_a_ruling_names_the_parts_that_are_right(made, answer, outcome, right, wrong):
    ruling = a_case(made).judge(answer)
    assert ruling.outcome is outcome
    if outcome is Outcome.WRONG:
        assert f"Right: {right}. Not right: {wrong}." in ruling.text


def test_the_easiest_asks_for_no_rank_and_the_hardest_for_what_costs_more(made):
    assert a_case(made, 1).judge("straggler, 25%")
    hardest = a_case(made, 5)
    assert hardest.gains == (pytest.approx(24 / 106), pytest.approx(24 / 106))
    ruling = hardest.judge("input, all ranks, 23%")
    assert ruling.outcome is Outcome.WRONG
    assert "another fault costs more" in ruling.text


def test_the_pages_hide_the_diagnosis_until_the_answer(made):
    case = a_case(made)
    assert (made / "page.html").read_text() == case.exhibit.page
    assert (made / "answer.html").read_text() == case.proof.page
    assert "card fault" not in case.exhibit.page
    assert "96.0" in case.exhibit.text  # a step, in ms, by rank
    assert "card fault" in case.proof.page
    assert "instead of 72.0 ms" in case.proof.page
    assert "+24.0" in case.proof.text
    assert any("the median of the others is 180.0 ms" in step for step in case.steps)
    assert "72 ms" in case.prompt
    assert "72 ms" not in a_case(made, 3).prompt


@pytest.mark.parametrize(("num_unclear", "num_runs"), [(0, 1), (1, 2), (9, 3)])
def test_a_case_that_is_not_clear_runs_again(monkeypatch, num_unclear, num_runs):
    runs = []

    def recorded(folder, drawn, faults):
        folder.mkdir(exist_ok=True)
        runs.append(folder.name)
        is_slow = bool(faults) and runs.count("slow") > num_unclear
        return training({(faults[0].rank, "data"): 0.024} if is_slow else {})

    monkeypatch.setattr(slow_case, "_recorded", recorded)
    loader = next(seed for seed in range(99) if draw(2, seed).faults[0].cause == "input")
    case = open_case(2, loader)
    assert runs == ["slow", "without"] * num_runs
    assert case.is_clear == (slow_case.BUSY not in case.steps) == (num_runs < 3)


def labkit(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["labkit", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("answers", "status", "rating"),
    [([RIGHT], 0, "easy"), (["host, rank 1, 3%", RIGHT], 0, "hard"), (["what?"], 1, "again")],
)
def test_the_command_takes_answers_and_remembers_how_it_went(
    monkeypatch, capsys, answers, status, rating
):
    given = [word for each in answers for word in ("--answer", each)]
    ended, out = labkit(monkeypatch, capsys, "case", "--difficulty", "2", *given)
    assert ended == status
    assert "straggler, rank 2, 25% to 25%" in out
    (event,) = progress.events(kind="answer")
    assert (event.subject, event.detail["rating"]) == ("case/2", rating)
    assert statistics.due_counts(now_s=event.at_s + 1e9)["case"] == 1


def test_the_widget_frames_the_run_and_then_the_run_without_the_fault():
    asking = case(2)
    assert words(asking._widget).count("<iframe title=") == 1
    entry(asking._widget).value = RIGHT
    press(asking._widget, "Submit")
    assert words(asking._widget).count("<iframe title=") == 2
    assert buttons(asking._widget) == ["Another"]
    assert "ms" not in case(2, seed=3)._static  # a stored notebook has nothing that was measured


def test_a_case_is_an_item_of_an_interview():
    item = Item("case", "case_2", "Diagnosis")
    box = MockInterview(Plan(60, "senior", 1, (item,)), lambda: 0.0)
    box.start()
    box.view._question.submit(RIGHT)
    assert box.interview.taken[0].score == 1
    assert CASES["case_2"].title in box.interview.report().markdown
