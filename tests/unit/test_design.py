"""Design rounds: briefings that can be met, numbers that the planner checks, the report."""

import sys

import pytest

from labkit import calc, cli, progress
from labkit.calc.result import amount
from labkit.interview.design import (
    NUMBERS,
    DesignRound,
    UnknownBriefing,
    briefings,
    draw_briefing,
    get_briefing,
)
from labkit.interview.design.report import html_of, markdown_of
from labkit.notebook import design_round
from tests.widget_tree import points, press, words

GOOD = "dp=2 tp=8 pp=4 zero=1 recompute=selective"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


@pytest.fixture
def round_():
    now_s = [0.0]
    return DesignRound(get_briefing("70b-small-cluster"), lambda: now_s[0])


def test_the_book_has_twelve_briefings_and_a_model_answer_to_each_part():
    book = briefings()
    assert len(book) >= 12
    for briefing in book.values():
        assert briefing.story and "{" not in briefing.story
        assert sum(each.matters for each in briefing.questions) >= 5
        assert not all(each.matters for each in briefing.questions)
        assert len(briefing.parts) == 6 and len(briefing.changes) >= 2
        for part in briefing.parts:
            assert len(part.points) >= 4 and len(part.answer.split()) >= 40, part.name


@pytest.mark.parametrize("name", ["8b-one-host", "8b-spot", "70b-small-cluster", "175b-a100"])
def test_the_planners_layout_keeps_the_deadline_with_room(name):
    briefing = get_briefing(name)
    assert 0.5 * briefing.days < briefing.model.time.to("days") <= briefing.days


def test_spot_machines_fail_more_often_and_want_shorter_intervals():
    usual, spot = get_briefing("8b-one-host").job, get_briefing("8b-spot").job
    ratio = usual.machines.gpu_hours_between_interruptions / (
        spot.machines.gpu_hours_between_interruptions
    )
    assert ratio == 12.5
    shortest = get_briefing("405b-spot")
    write_s, mtbf_s = 60.0, shortest.job.machines.mtbf_s
    assert shortest.interval_s == float(calc.checkpoint_interval(write_s, mtbf_s, "daly"))
    assert " 7 min by Daly's formula" in shortest.parts[3].answer
    points = get_briefing("8b-spot").parts
    assert any("notice of two minutes" in p for part in points for p in part.points)


def test_a_thin_network_and_long_sequences_are_in_the_job():
    thin, usual = get_briefing("175b-a100").job.machines, get_briefing("13b-a100").job.machines
    assert thin.slow.bandwidth_bytes_per_s == usual.slow.bandwidth_bytes_per_s / 4
    long = get_briefing("8b-long").job
    assert (long.length, long.global_batch) == (131_072, 512 * 8192 // 131_072)


def test_a_seed_draws_a_briefing_again_also_with_a_config_of_ones_own(tmp_path):
    assert draw_briefing(3).story == draw_briefing(3).story != draw_briefing(4).story
    file = tmp_path / "config.json"
    file.write_text(
        '{"architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192, '
        '"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, '
        '"vocab_size": 128256, "max_position_embeddings": 8192, "model_type": "llama", '
        '"tie_word_embeddings": true}'
    )
    assert draw_briefing(1, str(file)).job.config.layers == 16
    with pytest.raises(UnknownBriefing, match="70b-15t"):
        get_briefing("70b")


def test_a_layout_is_judged_and_its_speed_said_only_after_the_predictions(round_):
    assert round_.propose("dp=64").score == 0 and round_.chosen is None
    assert "64 GPUs" not in round_.propose("dp=2").text and round_.proposals[-1][1].score == 0
    assert round_.predict("step", "30 s").text == "Propose a layout that works first."
    late, good = round_.propose("dp=64 zero=3 recompute=full"), round_.propose(GOOD)
    assert (late.score, good.score) == (0.5, 1.0)
    step = str(round_.chosen.step)
    assert step not in good.text
    assert round_.predict("step", "a while").text.startswith("Not read")
    assert round_.predict("step", step).score == 1
    assert round_.predict("step", "1 s").score == 1, "the first number counts"
    assert round_.predict("days", "1 day").score == 0
    assert step in round_.propose(GOOD).text


def test_asking_what_matters_counts_and_small_talk_costs(round_):
    matter = [n for n, each in enumerate(round_.briefing.questions) if each.matters]
    idle = [n for n, each in enumerate(round_.briefing.questions) if not each.matters]
    before_s = round_.left_s
    for place in matter:
        assert round_.clarify(place) == round_.briefing.questions[place].answer
    assert round_.asking_score == 1 and before_s - round_.left_s == 60 * len(matter)
    round_.clarify(idle[0])
    assert round_.asking_score < 1


def test_a_change_makes_the_step_longer(round_):
    round_.propose(GOOD)
    usual = float(round_.chosen.step)
    for place, change in enumerate(round_.briefing.changes):
        slowed = round_.briefing.slowed(change, round_.chosen)
        assert slowed > usual
        ruling = round_.meet(place, f"{slowed:.4g} s")
        assert ruling.score == 1 and f"Right: {amount(f'{slowed} s')}." in ruling.text
    assert usual * 1.1 < round_.briefing.slowed(round_.briefing.changes[1], round_.chosen)


def test_everything_right_is_a_whole_score_and_the_report_says_what_was_left_out(round_):
    assert round_.score == 0
    round_.tell("data", "Shards with an index.", {1})
    report = markdown_of(round_)
    assert "**left out**" in report and "Shards with an index." in report
    for place, each in enumerate(round_.briefing.questions):
        if each.matters:
            round_.clarify(place)
    round_.propose(GOOD)
    chosen = round_.chosen
    truths = {"step": float(chosen.step), "days": float(chosen.time)}
    truths["interval"] = round_.briefing.interval_s
    for name in NUMBERS:
        round_.predict(name, f"{truths[name]} s")
    for part in round_.briefing.parts:
        round_.tell(part.name, "...", range(1, 1 + len(part.points)))
    for place, change in enumerate(round_.briefing.changes):
        round_.meet(place, f"{round_.briefing.slowed(change, chosen)} s")
    assert round_.finish() == pytest.approx(1.0) == round_.finish()
    assert len(progress.events("70b-small-cluster", "design")) == 1
    page = html_of(round_)
    assert page.count("<img alt=") == 2 and "A model answer" in page


def test_a_round_on_a_page_keeps_what_is_written_and_ends_with_its_report(tmp_path):
    view = design_round("70b-small-cluster", clock=lambda: 0.0)
    page, round_ = view.widget, view.round
    assert "45 minutes left" in words(page)
    press(page, "How fast are the links")
    assert "44 minutes left" in words(page) and "data sheets" in words(page)
    assert view._propose(GOOD).startswith("It fits") and "a step, MFU" not in words(page)
    view._predict("step")("37 s"), view._predict("days")("17 days")
    assert "it keeps the deadline" in words(page)
    press(page, "Points that are listened for: assumptions")
    points(page)[0].value = True
    assert len(round_.written["assumptions"][1]) == 1
    press(page, "End the round")
    assert "left out" in words(page)
    view._file.value = str(tmp_path / "mine.html")
    press(page, "Save"), press(page, "Save")
    assert "File exists" in words(page) and "<img" in (tmp_path / "mine.html").read_text()


def test_a_round_in_a_terminal_ends_with_its_report(tmp_path, monkeypatch, capsys):
    parts = len(get_briefing("70b-small-cluster").parts)
    answered = ["in words", "", "1"]
    typed = ["99", "1 2", "", *answered, GOOD, "", "37 s", "17 days", "", *(answered * 2)]
    lines = iter([*typed, "5 h", *(answered * (parts - 3)), "soon", "40 s", "45 s"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    saved = tmp_path / "report.html"
    words = ["design", "70b-small-cluster", "--save", str(saved)]
    monkeypatch.setattr(sys, "argv", ["labkit", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0 and "99 is not in" in out and "The report is in" in out
    assert "it keeps the deadline" in out and "in words" in saved.read_text()
