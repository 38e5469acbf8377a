"""A mock interview: its plan, its clock, its report, and `labkit mock`."""

import itertools
import sys
from collections import Counter

import pytest

from labkit import cli, progress
from labkit.grade.catalog import load_catalog
from labkit.grade.verdict import Outcome
from labkit.interview import design
from labkit.interview.cards import load_bank, load_topics
from labkit.interview.case_files import CASES
from labkit.interview.drills import DRILLS
from labkit.interview.mock import LEVELS, Interview, Item, Report, Taken, plan_interview
from labkit.interview.mock import interview as asking

BANK = load_bank()


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


def interview_of(*items, minutes=45):
    """With a clock that is moved by hand: (interview, clock)."""
    clock = [0.0]
    plan = plan_interview(minutes, "senior", 1)
    plan = type(plan)(minutes, "senior", 1, items or plan.items)
    return Interview(plan, lambda: clock[0]), clock


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("minutes", [6, 15, 30, 45, 90, 240])
def test_a_plan_fills_the_time_with_things_of_its_level(minutes, level):
    for seed in range(20):
        plan = plan_interview(minutes, level, seed)
        of_questions, of_exercises = LEVELS[level]
        for item in plan.items:
            if item.kind == "question":
                assert BANK[item.name].difficulty in of_questions
            elif item.kind == "drill":
                assert DRILLS[item.name].difficulty in of_questions
            elif item.kind == "case":
                assert CASES[item.name].difficulty in of_exercises
            elif item.kind == "design":
                assert item.name in design.names()
            elif item.kind == "story":
                assert item.name == "ta-1"
            else:
                assert load_catalog()[item.name].difficulty in of_exercises
        needed = sum(item.minutes for item in plan.items)
        assert needed <= minutes
        kinds = [item.kind for item in plan.items]
        assert len(set(plan.items)) == len(plan.items)
        num = {kind: kinds.count(kind) for kind in ("question", "drill", "exercise")}
        assert kinds.count("case") == (minutes >= 60)
        assert kinds.count("story") == (minutes >= 60) and "story" not in kinds[1:]
        assert kinds.count("design") == (minutes >= 120) and "design" not in kinds[:-1]
        last = kinds[:-1] if minutes >= 120 else kinds
        assert num["exercise"] == (minutes >= 30) and "exercise" not in last[:-1]
        every = sum(card.difficulty in of_questions for card in BANK.values() if card.id != "ta-1")
        every_drill = sum(drill.difficulty in of_questions for drill in DRILLS.values())
        # The time is used, but for a minute or three, unless all of the level is asked.
        assert minutes - needed < 4 or (num["question"], num["drill"]) == (every, every_drill)
        if minutes <= 45:
            assert num["drill"] <= num["question"] <= 2 * num["drill"] + 2


def test_a_kind_that_does_not_fit_or_is_used_up_leaves_the_time_to_the_other():
    shortest = plan_interview(6, "senior", 1)
    assert [item.kind for item in shortest.items] == ["question", "drill"]
    longest = plan_interview(240, "junior", 1)
    drills = [item for item in longest.items if item.kind == "drill"]
    assert len(drills) == sum(drill.difficulty == 1 for drill in DRILLS.values())
    needed = sum(item.minutes for item in longest.items)
    assert needed < 240 and asking.planned(longest).endswith(f": {needed} of the 240 minutes")
    assert asking.planned(shortest) == "1 question, 1 drill"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("minutes", [45, 240])
def test_no_group_comes_twice_before_every_other_that_has_more_has_come_once(minutes, level):
    of_questions, _ = LEVELS[level]
    topics = load_topics()
    every = [each for each in (*BANK.values(), *DRILLS.values()) if each.difficulty in of_questions]
    every = [each for each in every if each is not BANK["ta-1"]]  # the story of the long ones
    for seed in range(50):
        left = Counter(topics[each.topic].group for each in every)
        turns = []
        for item in plan_interview(minutes, level, seed).items:
            if item.kind not in ("question", "drill"):
                continue
            turns = turns or [group for group, count in left.items() if count]
            assert item.group in turns, f"seed {seed}: {item.group} before {turns}"
            turns.remove(item.group)
            left[item.group] -= 1


def test_an_exercise_that_was_passed_is_drawn_only_where_all_were():
    of_level = [e.name for e in load_catalog().values() if e.difficulty in LEVELS["expert"][1]]
    first = plan_interview(30, "expert", 4)
    progress.record("check", first.items[-1].name, outcome="passed")
    second = plan_interview(30, "expert", 4)
    assert second.items[:-1] == first.items[:-1], "only the exercise is another"
    for name in of_level[:-1]:
        progress.record("check", name, outcome="passed")
    drawn = {plan_interview(30, "expert", seed).items[-1].name for seed in range(10)}
    progress.record("check", of_level[-1], outcome="passed")
    assert second.items[-1].name != first.items[-1].name and drawn == {of_level[-1]}
    assert plan_interview(30, "expert", 4).items[-1] == first.items[-1]


def test_a_seed_is_a_plan_and_others_are_others():
    assert plan_interview(45, "senior", 7) == plan_interview(45, "senior", 7)
    assert len({plan_interview(45, "senior", seed).items for seed in range(20)}) > 15
    assert plan_interview().seed != plan_interview().seed or plan_interview().seed >= 0


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"level": "wizard"}, ValueError, "wizard"),
        ({"minutes": 5}, ValueError, "240"),
        ({"minutes": "45"}, TypeError, "minutes='45'"),
        ({"seed": "x"}, TypeError, "seed='x'"),
        ({"seed": 1.5}, TypeError, "seed=1.5"),
    ],
)
def test_what_is_no_interview_is_refused(arguments, error, said):
    with pytest.raises(error, match=said):
        plan_interview(**arguments)


def test_the_clock_ends_it_but_cuts_nobody_off():
    interview, clock = interview_of()
    first = interview.next_item
    clock[0] = 46 * 60  # spoken for 46 minutes
    interview.take(first, 0.5)
    assert interview.next_item is None and interview.left_s == -60
    assert interview.report().seconds == 46 * 60
    assert "Not reached: " in interview.report().markdown


def test_items_are_taken_in_order_with_a_share():
    interview, _ = interview_of()
    with pytest.raises(ValueError, match="is not what comes next"):
        interview.take(interview.plan.items[1], 1)
    for score in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 1"):
            interview.take(interview.plan.items[0], score)
    for item in interview.plan.items:
        interview.take(item, 1)
    with pytest.raises(ValueError, match="is not what comes next"):
        interview.take(item, 1)
    assert interview.report().score == 1


def test_scores_count_by_their_minutes_and_the_weakest_topic_comes_first():
    items = (
        Item("question", "co-8", "Collectives and networks"),
        Item("drill", "bubble_of_total", "Pipeline parallelism"),
        Item("question", "pp-2", "Pipeline parallelism"),
    )
    interview, clock = interview_of(*items)
    for item, score in zip(items, (1.0, 0.0, 0.5), strict=True):
        clock[0] += 61
        interview.take(item, score, ["names the convention"] if score == 0.5 else [])
    report = interview.report()
    assert report.score == pytest.approx((4 * 1 + 2 * 0 + 4 * 0.5) / 10)
    assert list(report.by_group) == ["Pipeline parallelism", "Collectives and networks"]
    assert report.by_group["Pipeline parallelism"] == (pytest.approx(2 / 6), 2)
    text = report.markdown
    assert "| Pipeline parallelism | 2 | 33% |" in text
    assert "missing: names the convention" in text and "1:01" in text
    assert "`labkit drill bubble_of_total`" in text and "`labkit cards pp-2`" in text
    assert "labkit cards co-8" not in text, "what was right need not be repeated"


@pytest.mark.parametrize(
    ("score", "said"), [(1, "strong"), (0.7, "through"), (0.5, "Half"), (0, "early")]
)
def test_the_verdict_follows_the_score(score, said):
    interview, _ = interview_of()
    while interview.next_item is not None:
        interview.take(interview.next_item, score)
    assert said in interview.report().verdict


FOUR = [Item("question", f"pp-{number}", "Pipeline parallelism") for number in (1, 2, 3, 4)]


def test_an_item_that_was_shown_when_it_was_ended_counts_nothing():
    interview, clock = interview_of(*FOUR[:2])
    interview.take(FOUR[0], 1)
    clock[0] = 46 * 60  # also after the time is up
    interview.give_up()
    report = interview.report()
    assert report.score == 0.5 and "1 of 2 items" in report.markdown
    assert "4 of 8 planned" in report.markdown and "given up" in report.markdown
    interview.give_up()
    assert len(interview.taken) == 2, "after the last one there is nothing in hand"


def test_nobody_is_judged_by_less_than_half_of_the_plan():
    interview, _ = interview_of(*FOUR, Item("exercise", "ring_all_reduce", "Collectives"))
    interview.take(FOUR[0], 1)
    interview.give_up()  # shown, and not done
    less = interview.report()
    assert "too little" in less.verdict and "strong" not in less.markdown
    assert "1 of 5 items" in less.markdown and "4 of 31 planned" in less.markdown

    enough, _ = interview_of(*FOUR[:3])
    for item in FOUR[:2]:
        enough.take(item, 1)
    assert "strong" in enough.report().verdict


def test_half_of_the_minutes_is_enough_in_few_items():
    exercise = Item("exercise", "ring_all_reduce", "Collectives")
    interview, _ = interview_of(exercise, *FOUR[:3])
    interview.take(exercise, 1)
    assert "strong" in interview.report().verdict


def test_a_report_is_remembered_once_and_only_if_something_was_answered():
    interview, _ = interview_of()
    interview.report()
    assert progress.events(kind="mock") == []
    interview.take(interview.next_item, 0.5)
    interview.report(), interview.report()
    (event,) = progress.events(kind="mock")
    assert event.subject == "senior" and event.detail["score"] == 0.5


def test_the_page_stands_alone_and_says_the_same():
    taken = (Taken(Item("question", "co-8", "Collectives and networks"), 0.5, ("a <b> c",), 5.0),)
    page = Report(plan_interview(45, "senior", 1), taken, 5.0).html
    assert page.startswith("<!doctype html>") and "<table>" in page
    assert "a &lt;b&gt; c" in page and "src=" not in page and "href=" not in page


def labkit(monkeypatch, capsys, *words, typed=()):
    lines = iter(typed)

    def ask(prompt=""):
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr(sys, "argv", ["labkit", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    return end.value.code, " ".join(out.split()), " ".join(err.split())


def test_a_design_round_in_an_interview_scores_its_parts(monkeypatch):
    plan = plan_interview(120, "senior", 1)
    (item,) = [each for each in plan.items if each.kind == "design"]
    round_ = design.DesignRound(design.get_briefing(item.name), lambda: 0.0)
    round_.tell("data", "...", range(1, 9))
    score, missed = asking.scored_design(round_)
    assert 0 < score < 0.2 and "layout" in missed and "data" not in missed
    report = Report(plan, (Taken(item, score, tuple(missed), 60.0),), 60.0).markdown
    assert f"`labkit design {item.name}`" in report


def coded(item):
    """Lines of an exercise that passes at the second check, and of its follow-ups."""
    if item.kind != "exercise":
        return []
    return ["", "", *([""] * len(load_catalog()[item.name].follow_ups))]


def said_all(item):
    """Lines that answer a question, and its follow-up where there is one."""
    is_chain = item.kind == "question" and BANK[item.name].chain
    return ["", "all"] * (2 if is_chain else 1)


def test_an_interview_in_a_terminal_to_its_end(monkeypatch, capsys, tmp_path):
    plan = plan_interview(30, "senior", 3)
    verdicts = itertools.chain([Outcome.WRONG], itertools.repeat(Outcome.PASSED))

    class Verdict:
        def __init__(self, name):
            self.outcome = next(verdicts)

        def __str__(self):
            return f"it is {self.outcome.value}"

    monkeypatch.setattr("labkit.grade.engine.check", Verdict)
    typed = []
    for item in plan.items:
        typed += {"question": said_all(item), "drill": [""], "exercise": coded(item)}[item.kind]
    saved = [tmp_path / "report.md", tmp_path / "report.html"]
    words = [
        "mock",
        "--minutes",
        "30",
        "--seed",
        "3",
        *(w for f in saved for w in ("--save", str(f))),
    ]
    status, out, err = labkit(monkeypatch, capsys, *words, typed=typed)
    assert (status, err) == (0, "")
    assert "it is wrong" in out and "it is passed" in out and "an exercise" in out
    minutes = {"question": 4, "drill": 0, "exercise": 15}
    score = sum(minutes[i.kind] for i in plan.items) / sum(i.minutes for i in plan.items)
    assert f"{score:.0%} of what was asked" in out
    assert f"**{score:.0%}**" in saved[0].read_text() and "<table>" in saved[1].read_text()
    assert len(progress.events(kind="mock")) == 1


def test_ctrl_d_ends_it_with_the_report_of_what_there_is(monkeypatch, capsys):
    typed = said_all(plan_interview(seed=3).items[0])
    status, out, err = labkit(monkeypatch, capsys, "mock", "--seed", "3", typed=typed)
    assert (status, err) == (0, "") and "1 of 10 items" in out and "Not reached" in out
    assert "given up" in out, "the second one was shown"
    assert "6 questions, 3 drills, 1 exercise" in out, "the plan is shown first"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--level", "wizard"), "wizard"),
        (("--minutes", "3"), "240"),
        (("--save", "report.pdf"), ".md or .html"),
        (("--save", "nowhere/report.md"), "nowhere"),
    ],
)
def test_what_cannot_be_is_said_before_the_interview(monkeypatch, capsys, words, said):
    status, _, err = labkit(monkeypatch, capsys, "mock", *words)
    assert status == 2
    assert said in err.replace("│ ", "").replace(" │", "")


def test_without_torch_there_is_no_exercise_and_no_case_and_the_plan_says_so(monkeypatch):
    whole = plan_interview(60, "senior", seed=1)
    assert {"exercise", "case"} <= {item.kind for item in whole.items}
    assert "No exercise" not in asking.planned(whole)
    monkeypatch.setitem(sys.modules, "torch", None)
    less = plan_interview(60, "senior", seed=1)
    assert {item.kind for item in less.items} == {"story", "question", "drill"}
    assert less.planned_minutes > 58
    assert asking.planned(less).endswith("these are real runs, which need torch")
    assert "No exercise" not in asking.planned(plan_interview(10, "senior", seed=1))
