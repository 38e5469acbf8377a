"""The take-home on a page: its fields, its score, and what is no answer."""

import pytest

from labkit import pipeline
from labkit.interview.take_home import BASELINES, best_s, bound_s, score
from labkit.notebook import take_home


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def static():
    return take_home()._repr_mimebundle_()


def test_it_begins_with_the_fastest_of_the_five():
    shown = take_home()
    fastest = min(score(each, keep=False).seconds for each in BASELINES.values())
    assert shown.score().seconds == fastest == best_s()
    assert "It beats" in shown._result.value and "<svg" in shown._result.value
    assert f"Your best so far: {fastest:.3f} s" in shown._table.value


def test_all_three_fields_count_and_rows_may_be_the_schedule():
    shown = take_home()
    shown._layout.value = "dp=2 pp=4 tp=8 zero=1 recompute=selective"
    shown._schedule.value = pipeline.text(pipeline.plan(pipeline.one_f_one_b, 4, 32))
    assert shown.score() == score(BASELINES["1F1B"], keep=False)
    shown._hosts.value = "5, 1 2 3 4 0 6 7"
    answer = BASELINES["1F1B"] | {"hosts": [5, 1, 2, 3, 4, 0, 6, 7]}
    assert shown.score() == score(answer, keep=False)


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("_layout", "dp=2", "2 GPUs, and the cluster 64"),
        ("_layout", "<b>", "&lt;b&gt;"),
        ("_schedule", "2f2b", "give one of gpipe"),
        ("_schedule", "F0 B0\nB0 F0", "rank 1 has B0 before F0"),
        ("_hosts", "0 1 2", "each of 0 to 7 once"),
    ],
)
def test_what_is_no_answer_is_explained_and_not_stored(field, text, said):
    shown = take_home()
    getattr(shown, field).value = text
    assert shown.score() is None and said in shown._result.value
    assert best_s() is None


def test_the_static_form_has_the_task_the_bound_and_the_answers_to_beat(static):
    for form in ("text/plain", "text/html"):
        for word in ("Llama 3 70B", f"{bound_s():.3f} s", *BASELINES):
            assert word in static[form]
    assert "Your best" not in static["text/html"]


def test_the_axis_of_its_picture_is_in_seconds():
    shown = take_home()
    shown.score()
    assert "time (s)" in shown._result.value
