"""Case files of reinforcement learning on made figures: rules, rulings, pages, picture."""

import sys
from dataclasses import replace

import pytest

from labkit import cli, progress, viz
from labkit.inject import ROLLOUT_FAULTS, rollout_settings
from labkit.interview import rl_case
from labkit.interview.case_files import CASES, case_of_room
from labkit.interview.drills import Outcome
from labkit.interview.mock import Item, Plan
from labkit.notebook import case
from labkit.notebook.mock import MockInterview
from labkit.profile import name_fault
from labkit.profile.rl_diagnosis import CAUSES
from labkit.rl.figures import Figures
from labkit.rl.language import Trained
from tests.widget_tree import buttons, entry, press, words

STALLED = "update 12 waits for 3 answers. Give an engine fewer"


def healthy(lag=0):
    """Twelve updates. Norms grow by 0.01, and the engines' are summed in another order."""
    return [
        Figures(
            version,
            reward=0.1 * version,
            answers=16,
            tokens=48,
            longest=4,
            ratio=1.0,
            ratio_off=0.1 * min(version, lag),
            effective_sample_size=1.0,
            lag=min(version, lag),
            sent_norm=20 + version / 100,
            sent_version=version,
            served_norm=[(20 + (version - behind) / 100) * (1 + 1e-7) for behind in (0, lag)],
            served_version=[version, version - lag],
            idle_s=[0.3, 0.3, 0.1, 0.2],
            seconds=0.5,
        )
        for version in range(12)
    ]


def with_fault(name):
    """The figures of a job with this fault from version 4 on; stalled."""
    figures = healthy(lag=1)
    for each in figures[4:]:
        version = each.version
        if name == "no sync":
            each.served_version, each.served_norm = [version] * 2, [20.03] * 2
        if name == "sleep" and version % 3 == 0:
            each.served_version, each.served_norm = [version] * 2, [each.sent_norm, 0.0]
        if name == "half update":
            each.served_version, each.served_norm = [version] * 2, [19.9 + version / 200] * 2
        if name == "recomputed":
            each.ratio_off = 0.0
        if name in ("precision", "sampling", "router"):
            off = {
                "precision": (0.04, 0.002, 1.0002),
                "sampling": (0.9, 0.004, 1.2),
                "router": (0.5, 0.0, 1.1),
            }
            each.unchanged_off, each.unchanged_median, each.unchanged_ratio = off[name]
        if name == "long tail":
            each.longest = 36
    return figures, STALLED if name == "overload" else ""


@pytest.mark.parametrize("name", CAUSES)
def test_each_fault_has_its_figures_and_a_healthy_job_has_none(name):
    figures, stalled = with_fault(name)
    named = name_fault(figures, stalled)
    assert named.name == name
    assert named.update == {"sleep": 6, "overload": 12}.get(name, 4)
    assert name_fault(healthy()) is None
    assert name_fault(healthy(lag=1)) is None
    assert name_fault([]) is None


def test_an_engine_that_sleeps_has_no_wrong_norm():
    figures = healthy()
    figures[6].served_version, figures[6].served_norm = [6, -1], [20.06, 0.0]
    assert name_fault(figures) is None


def test_the_faults_have_the_names_of_the_rules():
    assert list(ROLLOUT_FAULTS) == list(CAUSES)
    assert all(cause.url.startswith("https://") for cause in CAUSES.values())


@pytest.mark.parametrize("difficulty", (1, 2, 3))
def test_a_seed_draws_one_case_and_all_faults_are_drawn(difficulty):
    drawn = [rl_case.draw(difficulty, seed) for seed in range(100)]
    assert drawn[3] == rl_case.draw(difficulty, 3)
    assert set(drawn) == set(CAUSES) - ({"recomputed"} if difficulty == 1 else set())
    for seed, name in enumerate(drawn):
        settings = rollout_settings(name, difficulty, seed)
        assert settings.staleness == difficulty - 1
        assert 1 <= settings.start <= settings.num_updates // 2
        assert settings.num_experts in ROLLOUT_FAULTS[name].num_experts


def a_case(folder, name="sleep", difficulty=2):
    trained, without = Trained(*_with(name)), Trained(healthy(1), {})
    return rl_case.case_of(name, difficulty, 7, trained, without, folder)


def _with(name):
    figures, stalled = with_fault(name)
    return figures, {}, stalled


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("sleep", Outcome.RIGHT),
        ("The weights were lost in a Sleep.", Outcome.RIGHT),
        ("no sync", Outcome.WRONG),
        ("NO-SYNC", Outcome.WRONG),
        ("long_tail", Outcome.WRONG),
        ("sleep, or no sync", Outcome.UNREADABLE),
        ("asleep", Outcome.UNREADABLE),
        ("staleness", Outcome.UNREADABLE),
    ],
)
def test_a_ruling_is_on_the_name(tmp_path, answer, outcome):
    ruling = a_case(tmp_path).judge(answer)
    assert ruling.outcome is outcome
    if outcome is Outcome.WRONG:
        assert "would" in ruling.text  # how the named fault would show


@pytest.mark.parametrize("name", CAUSES)
def test_the_fault_is_named_after_the_answer_only(tmp_path, name):
    case = a_case(tmp_path, name)
    assert case.is_clear
    cause = CAUSES[name]
    assert case.exhibit.page == (tmp_path / "page.html").read_text()
    assert cause.url not in case.exhibit.page + case.exhibit.text + case.prompt
    assert all(each in case.prompt for each in CAUSES)
    assert "Give an engine fewer" not in case.exhibit.text  # advice of the verdict
    assert any(cause.url in step for step in case.steps)
    assert any(cause.check in step for step in case.steps)
    assert case.judge(case.answer_text)


def test_a_job_without_an_update_is_a_case_too(tmp_path):
    trained = Trained([], {}, STALLED)
    case = rl_case.case_of("overload", 1, 7, trained, Trained(healthy(), {}), tmp_path)
    assert case.is_clear and "waits for 3 answers" in case.exhibit.text
    assert "<img" not in case.exhibit.page


@pytest.fixture
def made(tmp_path, monkeypatch):
    """No case runs here: each is made in a folder of the test."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(rl_case, "open_case", lambda difficulty, _: a_case(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("answers", "status", "rating"),
    [(["sleep"], 0, "easy"), (["router", "sleep"], 0, "hard"), (["what?"], 1, "again")],
)
def test_the_command_remembers_how_it_went(made, monkeypatch, capsys, answers, status, rating):
    given = [word for each in answers for word in ("--answer", each)]
    monkeypatch.setattr(
        sys, "argv", ["labkit", "case", "--room", "rl", "--difficulty", "2", *given]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == status
    assert "weights are lost in a sleep" in capsys.readouterr().out
    (event,) = progress.events(kind="answer")
    assert (event.subject, event.detail["rating"]) == ("case/rl-2", rating)


def test_an_unknown_room_or_difficulty_is_refused():
    assert case_of_room("slow", 5) is CASES["case_5"]
    with pytest.raises(ValueError, match="difficulty=4: room rl has 1 to 3"):
        case_of_room("rl", 4)
    with pytest.raises(ValueError, match="room='fast': give one of slow, rl"):
        case(1, room="fast")


def test_the_widget_shows_the_figures_and_then_both_runs(made):
    asking = case(2, room="rl")
    assert words(asking._widget).count("<iframe title=") == 1
    entry(asking._widget).value = "sleep"
    press(asking._widget, "Submit")
    assert words(asking._widget).count("<iframe title=") == 2
    assert buttons(asking._widget) == ["Another"]


def test_a_case_of_reinforcement_learning_is_an_item_of_an_interview(made):
    item = Item("case", "rl_case_2", "Reinforcement learning")
    box = MockInterview(Plan(60, "senior", 1, (item,)), lambda: 0.0)
    box.start()
    box.view._question.submit("sleep")
    assert box.interview.taken[0].score == 1


def test_the_picture_has_a_panel_for_each_figure():
    figures = with_fault("no sync")[0]
    picture = viz.rollout_figures(figures, title="a job", beside=healthy(1), since=4)
    assert len(picture.axes) == 9
    by_title = {axes.get_title(loc="left"): axes for axes in picture.axes}
    (norms,) = [axes for title, axes in by_title.items() if title.startswith("norm")]
    served = [line for line in norms.lines if str(line.get_label()).startswith("served")]
    assert [list(line.get_ydata())[5:] for line in served] == [[20.03] * 7] * 2
    (idle,) = [axes for title, axes in by_title.items() if "idle" in title]
    assert [line.get_ydata()[0] for line in idle.lines[-4:]] == [60, 60, 20, 40]
    assert "12 updates" in picture.caption
    with pytest.raises(ValueError, match="no update"):
        viz.rollout_figures([], title="a job")


def test_an_engine_that_sleeps_has_no_dot_and_no_time_is_no_error():
    one = replace(healthy()[0], idle_s=[0.0], seconds=0.0, served_version=[0, -1])
    picture = viz.rollout_figures([one], title="one")
    (norms,) = [axes for axes in picture.axes if axes.get_title(loc="left").startswith("norm")]
    first, second = [line for line in norms.lines if str(line.get_label()).startswith("served")]
    assert first.get_ydata()[0] > 0 and second.get_ydata()[0] != second.get_ydata()[0]  # NaN
    assert picture.png()
