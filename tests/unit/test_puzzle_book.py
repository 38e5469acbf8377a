"""The puzzles' budgets are what the search finds; what their stories claim is so."""

import pytest

from labkit.grade.puzzles import PUZZLES, UnknownPuzzle, get_puzzle, judge
from labkit.pipeline import (
    gpipe,
    in_flight,
    interleaved,
    naive,
    one_f_one_b,
    plan,
    simulate,
    text,
    zero_bubble_h1,
)
from tests.least_makespan import least_makespan, least_memory

NAMES = list(PUZZLES)


@pytest.mark.parametrize("name", NAMES)
def test_both_budgets_are_the_optimum_that_a_search_finds(name):
    puzzle = PUZZLES[name]
    best = least_makespan(puzzle.problem, puzzle.memory)
    assert puzzle.makespan == simulate(best, puzzle.problem.costs).makespan
    try:
        tighter = least_makespan(puzzle.problem, puzzle.memory - 1)
    except ValueError:  # with less memory there is no step at all
        assert puzzle.memory == max(least_memory(puzzle.problem))
    else:
        assert simulate(tighter, puzzle.problem.costs).makespan > puzzle.makespan


@pytest.mark.parametrize("name", NAMES)
def test_the_schedule_that_the_search_finds_passes_as_text(name):
    puzzle = PUZZLES[name]
    best = least_makespan(puzzle.problem, puzzle.memory)
    assert judge(puzzle, text(best)) and judge(puzzle, best)


def test_schedules_with_a_name_pass_only_where_they_are_asked_for():
    passing = set()
    for name, puzzle in PUZZLES.items():
        problem = puzzle.problem
        for row in (naive, gpipe, one_f_one_b, zero_bubble_h1, interleaved):
            if row is interleaved and problem.num_microbatches % problem.num_ranks:
                continue
            schedule = plan(row, problem.num_ranks, problem.num_microbatches)
            if judge(puzzle, schedule):
                passing.add((name, row.__name__))
    assert passing == {
        ("two ranks", "gpipe"),
        ("two ranks", "one_f_one_b"),
        ("let go", "one_f_one_b"),
        ("backward in two", "zero_bubble_h1"),
        ("zero bubble", "zero_bubble_h1"),
    }


@pytest.mark.parametrize(
    ("name", "row", "makespan", "held"),
    [
        ("two ranks", naive, 12, None),
        ("let go", gpipe, 15, 4),
        ("slow last stage", one_f_one_b, 30, 3),
        ("two of three", one_f_one_b, None, 3),
        ("backward in two", one_f_one_b, 12, None),
        ("slow first stage", gpipe, 30, None),
        ("slow first stage", one_f_one_b, 26, None),
        ("slow messages", one_f_one_b, 23, None),
        ("virtual stages", interleaved, 27, 5),
        ("all at once", zero_bubble_h1, 26, 3),
    ],
)
def test_what_a_story_says_of_a_schedule_is_so(name, row, makespan, held):
    words = {3: "three", 4: "four", 5: "five"}
    puzzle = PUZZLES[name]
    schedule = plan(row, puzzle.problem.num_ranks, puzzle.problem.num_microbatches)
    took = simulate(schedule, puzzle.problem.costs).makespan
    if makespan is not None:
        assert took == makespan
        assert str(makespan) in puzzle.story or took == puzzle.makespan
    if held is not None:
        assert in_flight(schedule)[0] == held and words[held] in puzzle.story


def test_work_that_a_story_counts_is_so():
    slow, bubble = PUZZLES["slow first stage"].problem, PUZZLES["zero bubble"].problem
    assert slow.num_microbatches * sum(slow.cost(kind, 0) for kind in slow.kinds) == 24
    for stage in range(3):
        assert 4 * sum(bubble.cost(kind, stage) for kind in bubble.kinds) == 12


def test_there_are_ten_or_more_from_easy_to_hard_on_all_that_was_promised():
    difficulties = [puzzle.difficulty for puzzle in PUZZLES.values()]
    problems = [puzzle.problem for puzzle in PUZZLES.values()]
    assert len(PUZZLES) >= 10 and difficulties == sorted(difficulties)
    assert {1, 5} <= set(difficulties)
    assert any(problem.send_cost(0) for problem in problems)  # messages take time
    assert any(problem.num_stages > problem.num_ranks for problem in problems)
    assert any(problem.is_split and problem.num_ranks == 3 for problem in problems)
    assert all(problem.num_ranks <= 3 and problem.num_microbatches <= 4 for problem in problems)


@pytest.mark.parametrize("name", NAMES)
def test_a_puzzle_says_all_that_is_needed(name):
    puzzle = PUZZLES[name]
    shown = str(puzzle)
    assert f"time {puzzle.makespan}, and memory {puzzle.memory} on every rank" in shown
    assert puzzle.story in shown and puzzle.teaches not in shown
    assert len(puzzle.teaches) > 40


def test_a_name_may_be_written_as_a_shell_likes_it():
    assert get_puzzle("two-ranks") is get_puzzle("Two_Ranks") is PUZZLES["two ranks"]


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(UnknownPuzzle, match="'two rnks'. The puzzles are"):
        get_puzzle("two rnks")
    with pytest.raises(UnknownPuzzle, match="there is no puzzle 'x+'"):
        get_puzzle("x" * 100_000)
    with pytest.raises(UnknownPuzzle):
        get_puzzle(None)
