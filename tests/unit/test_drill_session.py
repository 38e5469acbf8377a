"""A round of drills, and the command that asks it."""

import sys

import pytest

from labkit import cli, progress
from labkit.interview.drills import DRILLS, drills_of, get_drill
from labkit.interview.drills.session import Round
from labkit.progress import practice


class Clock:
    """A clock that moves when a test says so."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def asked(home):
    clock = Clock()
    asked = Round([get_drill("bubble_of_total")], seed=1, clock=clock).ask()
    return asked, clock


def wrong(asked):
    return asked.question.text_of(asked.question.traps[0].value, asked.question.digits)


@pytest.mark.parametrize(
    ("answers", "seconds", "rating"),
    [
        (["right"], 5, "easy"),
        (["right"], 30, "easy"),
        (["right"], 31, "good"),
        (["?", "right"], 5, "easy"),  # an answer that cannot be read is no try
        (["wrong", "right"], 5, "hard"),
        (["wrong", "wrong"], 5, "again"),
        (["wrong"], 5, "again"),
        ([], 0, "again"),
    ],
)
def test_answers_become_a_rating_that_is_remembered(asked, answers, seconds, rating):
    asked, clock = asked
    texts = {"right": asked.question.answer_text, "wrong": wrong(asked), "?": "three"}
    for word in answers:
        assert not asked.is_over
        clock.now_s += seconds
        asked.answer(texts[word])
    assert asked.is_over == (answers[-1:] == ["right"] or answers.count("wrong") == 2)
    assert asked.finish() == asked.finish() == rating
    (event,) = progress.events("drill/bubble_of_total")
    assert event.detail["rating"] == rating and event.detail["seed"] == asked.question.seed
    assert event.detail["tries"] == len(answers) - answers.count("?")
    assert event.detail["traps"] == [asked.question.traps[0].name] * answers.count("wrong")
    assert practice.state("drill/bubble_of_total") is not None


def test_after_the_last_try_nothing_is_taken(asked):
    asked, _ = asked
    asked.answer(asked.question.answer_text)
    with pytest.raises(ValueError, match="this question is over"):
        asked.answer("1")


def test_the_same_text_again_is_known_and_another_is_not(asked):
    asked, _ = asked
    assert not asked.is_repeated("") and not asked.is_repeated("99")
    asked.answer("99")
    assert asked.is_repeated(" 99 ") and not asked.is_repeated("98")
    asked.answer("three")
    assert asked.is_repeated("three") and not asked.is_repeated("99")


def test_a_terminal_takes_the_same_again_for_no_try(labkit):
    asking = Round(drills_of("pp-2"), seed=5).ask()
    typed = [wrong(asking), wrong(asking), asking.question.answer_text]
    _, out, _ = labkit("drill", "pp-2", "--count", 1, "--seed", 5, typed=typed)
    assert "The same answer again" in out and out.count("A known trap") == 1
    assert "1 of 1 right, 1 of them" in out


def test_a_round_asks_every_drill_once_before_any_again():
    drills = drills_of("pp")
    asking = Round(drills, seed=4)
    names = [asking.ask().drill.name for _ in range(2 * len(drills))]
    assert sorted(names[: len(drills)]) == sorted(each.name for each in drills)
    assert sorted(names[len(drills) :]) == sorted(each.name for each in drills)
    again = Round(drills, seed=4)
    assert [again.ask().question for _ in names] == [each.question for each in asking.asked]
    assert asking.summary == "Nothing answered."
    with pytest.raises(ValueError, match="needs one drill"):
        Round([])


@pytest.fixture
def labkit(home, monkeypatch, capsys):
    """Call `labkit ...` and type these lines: (exit status, stdout, stderr), one line each."""

    def call(*words, typed=()):
        lines = iter(typed)

        def answered(prompt=""):
            line = next(lines, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", answered)
        monkeypatch.setattr(sys, "argv", ["labkit", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code, " ".join(out.split()), " ".join(err.split())

    return call


def test_a_round_is_asked_judged_explained_and_counted(labkit):
    asking = Round(drills_of("pp-2"), seed=5)
    first, second, third = (asking.ask() for _ in range(3))
    typed = [first.question.answer_text, wrong(second), second.question.answer_text, ""]
    status, out, err = labkit("drill", "pp-2", "--count", 3, "--seed", 5, typed=typed)
    assert (status, err) == (0, "")
    assert "Question 1 of 3: " in out and "Right." in out
    assert f"A known trap: {second.question.traps[0].name}." in out
    for asked in (first, second, third):
        assert f"Answer: {asked.question.answer_text}" in out
        assert " ".join(asked.question.steps[-1].split()) in out
    trap = second.question.traps[0].name
    assert "2 of 3 right, 1 of them" in out and out.endswith(f"{trap}.")
    ratings = [event.detail["rating"] for event in progress.events(kind="answer")]
    assert ratings == ["easy", "hard", "again"]


@pytest.mark.parametrize(("end", "expected"), [(EOFError(), 0), (KeyboardInterrupt(), 130)])
def test_the_end_of_input_ends_it_with_what_there_is(labkit, end, expected):
    right = Round(drills_of("co"), seed=2).ask().question.answer_text
    status, out, _ = labkit("drill", "co", "--seed", 2, typed=[right, end])
    assert status == expected and out.endswith("1 of 1 right.")
    status, out, _ = labkit("drill", "co", typed=[end])
    assert status == expected and out.endswith("Nothing answered.")


def test_the_list_and_words_that_are_none(labkit):
    status, out, _ = labkit("drill", "--list")
    assert status == 0 and "bubble_of_total" in out and f"of {len(DRILLS)} drills" in out
    status, out, _ = labkit("drill", "in", "--list")
    assert "requests_that_fit" in out and "bubble" not in out
    status, _, err = labkit("drill", "bubble_share")
    assert status == 2 and "near it: " in err and "bubble_of_ideal" in err
