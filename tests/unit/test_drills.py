"""Drills, every one over many seeds: what is asked, what is right, what each trap says."""

import math
import re
from collections import Counter
from functools import cache

import pytest

from labkit.calc.units import UNITS
from labkit.interview.drills import DRILLS, Outcome, drills_of, get_drill, judge
from labkit.interview.drills.catalog import UnknownDrill
from labkit.interview.drills.question import rounded_text

SEEDS = range(40)
EVERY_DRILL = pytest.mark.parametrize("name", DRILLS)


@cache
def questions(name):
    return [DRILLS[name].question(seed) for seed in SEEDS]


def typed(question, value, digits):
    """As a person types it in the question's unit."""
    return question.text_of(value, digits)


def other_units(question):
    """Units of the same dimension in which the answer is a number that a person would write."""
    dimension = question.answer.dimension
    sizes = UNITS[dimension.removesuffix("/s")]
    per_second = "/s" if dimension.endswith("/s") else ""
    for unit, size in sizes.items():
        if unit and 0.01 <= question.answer.value / size < 1e6:
            yield f"{unit}{per_second}", size


@EVERY_DRILL
def test_the_answer_is_finite_and_in_range(name):
    low, high = DRILLS[name].between
    for question in questions(name):
        assert math.isfinite(question.answer.value) and question.answer.value > 0
        assert low <= question.answer.value <= high
        if question.digits is None:
            assert question.answer.value == int(question.answer.value)


@EVERY_DRILL
def test_the_right_answer_passes_with_the_fewest_digits_and_with_more(name):
    for question in questions(name):
        for more in (0, 1, 3):
            digits = None if question.digits is None else question.digits + more
            text = typed(question, question.answer.value, digits)
            assert judge(question, text), (question.prompt, text)
        bare = rounded_text(question.answer.value / question.unit_size, question.digits)
        assert judge(question, bare), (question.prompt, bare)
        assert judge(question, question.answer_text)


@EVERY_DRILL
def test_the_right_answer_passes_in_another_unit(name):
    for question in questions(name)[::5]:
        if question.digits is None:
            continue
        for unit, size in other_units(question):
            text = f"{rounded_text(question.answer.value / size, question.digits)} {unit}"
            assert judge(question, text), (question.prompt, text)


@EVERY_DRILL
def test_every_trap_differs_from_the_answer_and_is_named(name):
    for question in questions(name):
        assert question.traps
        for trap in question.traps:
            text = typed(question, trap.value, question.digits)
            ruling = judge(question, text)
            assert ruling.outcome is Outcome.TRAPPED, (question.prompt, text, trap.name, ruling)
            assert ruling.trap == trap and trap.name in ruling.text and trap.why in ruling.text


@EVERY_DRILL
def test_every_trap_occurs_for_most_seeds(name):
    there, left_out = Counter(), Counter()
    for question in questions(name):
        there.update(trap.name for trap in question.traps)
        left_out.update(question.left_out)
    rare = {trap: there[trap] for trap in there | left_out if there[trap] < len(SEEDS) / 2}
    assert not rare
    assert len(there) >= 2


@EVERY_DRILL
def test_the_prompt_says_every_number_that_the_answer_depends_on(name):
    # The solution is a function of its arguments alone, and each of those is a given.
    drill = DRILLS[name]
    code = drill.solve.__code__
    arguments = set(code.co_varnames[: code.co_argcount])
    assert arguments and arguments <= drill.fields and not code.co_freevars
    for question in questions(name)[::10]:
        assert arguments <= set(question.givens)
        for given in drill.fields:
            text = re.escape(question.givens[given])
            assert re.search(rf"(?<![\d.,]){text}(?![\d])", question.prompt), (given, text)
        assert "{" not in question.prompt


@EVERY_DRILL
def test_one_of_a_thing_is_not_said_in_the_plural(name):
    for question in questions(name)[::10]:
        for text in (question.prompt, *question.steps):
            assert not re.search(r"(?<![\d.,/x-])(?<!x )\b1 [a-z]{3,}s\b", text), text


@EVERY_DRILL
def test_the_same_seed_asks_the_same_and_others_mostly_differ(name):
    drill, asked = DRILLS[name], questions(name)
    for seed in (0, 1, SEEDS[-1]):
        assert drill.question(seed) == asked[seed]
    differ = sum(one.prompt != other.prompt for one, other in zip(asked, asked[1:]))
    assert differ >= 0.9 * (len(asked) - 1)
    assert len({question.answer.value for question in asked}) >= 10


@EVERY_DRILL
def test_the_unit_and_the_way_to_the_answer_are_said(name):
    drill = DRILLS[name]
    for question in questions(name)[::50]:
        assert question.prompt.endswith(("or more.", "Answer with a whole number."))
        assert "Answer, " not in question.prompt
        if question.digits is not None and question.unit not in ("", "x"):
            assert f"in {question.unit}" in question.prompt
        if drill.unit in ("GB", "MB", "KB"):
            assert f"{drill.unit} = 10^" in question.prompt
        assert len(question.steps) >= 2 and all(step.strip() for step in question.steps)
        numbers = " ".join(question.steps)
        assert not re.search(r"\bnan\b|\binf\b|\{|\d{16}", numbers), numbers


@EVERY_DRILL
def test_the_steps_end_at_the_answer(name):
    """Some number in them, read in its unit, is the answer to three digits."""
    for question in questions(name)[::50]:
        found = [
            judge(question, text)
            for step in question.steps
            for text in re.findall(r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?\s?(?:[A-Za-z%]+(?:/s)?)?", step)
        ]
        bare = [
            abs(float(text.replace(",", "")) - question.answer.value / question.unit_size)
            <= 0.006 * question.answer.value / question.unit_size
            for step in question.steps
            for text in re.findall(r"\d[\d,]*\.?\d*(?:e[+-]?\d+)?", step)
            if text.replace(",", "")
        ]
        assert any(found) or any(bare), (question.prompt, question.steps, question.answer_text)


def test_there_are_drills_for_every_group_of_topics_that_is_about_numbers():
    groups = {drill.topic.partition("-")[0] for drill in DRILLS.values()}
    assert groups >= {
        "co",
        "dp",
        "me",
        "ze",
        "tp",
        "sp",
        "cp",
        "pp",
        "mo",
        "hy",
        "ft",
        "in",
        "rl",
        "ec",
    }
    assert len(DRILLS) >= 32
    assert {drill.level for drill in DRILLS.values()} == {"everyone", "senior", "expert"}


def test_a_word_means_a_drill_a_topic_or_a_group():
    assert [drill.name for drill in drills_of("bubble_of_total")] == ["bubble_of_total"]
    assert {drill.topic for drill in drills_of("pp-2")} == {"pp-2"}
    assert {drill.topic.partition("-")[0] for drill in drills_of("pp")} == {"pp"}
    assert len(drills_of()) == len(DRILLS)
    with pytest.raises(UnknownDrill, match="near it: bubble_of_"):
        drills_of("bubble")
    with pytest.raises(UnknownDrill, match="near it: .*in_flight"):
        get_drill("inflight")
    with pytest.raises(UnknownDrill, match="bubble_of_total"):
        drills_of("pipelin")
