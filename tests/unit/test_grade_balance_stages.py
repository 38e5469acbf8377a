"""The grader of balance_stages: any best cut passes, and rules of thumb are told apart."""

import itertools
import random
from functools import cache
from pathlib import Path

import pytest

from labkit import pipeline
from labkit.grade import Outcome, check
from labkit.grade.graders import balance_cuts as cuts
from labkit.grade.graders.balance_questions import Layers, draw, one_of_the_best, slowest
from labkit.grade.graders.balance_stages import GRADER
from labkit.grade.graders.balance_theories import THEORIES
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "balance_stages"


def by_program(costs, num_stages):
    """Dynamic programming from the end, with memory: late cuts, and ranges for lists."""

    @cache
    def best(start, p):
        if p == 1:
            return sum(costs[start:]), (len(costs),)
        return min(
            (max(sum(costs[start:at]), best(at, p - 1)[0]), (at, *best(at, p - 1)[1]))
            for at in range(start + 1, len(costs) - p + 2)
        )

    ends = best(0, num_stages)[1]
    return [range(start, stop) for start, stop in itertools.pairwise((0, *ends))]


def judged(cut, seed=0):
    """What comes of cutting all layers by a function of them."""
    questions = draw(random.Random(seed))
    return GRADER.judge(questions, [cut(each.known) for each in questions])


def without(*ends):
    """The best cut, if some layers cost nothing."""

    def cut(layers):
        costs = list(layers.costs)
        for each in ends:
            costs[each] = 0
        return one_of_the_best(costs, layers.num_stages)

    return cut


def fewest_squares(layers):
    """The cut whose stages are most alike."""

    @cache
    def best(start, p):
        if p == 1:
            return sum(layers.costs[start:]) ** 2, (len(layers.costs),)
        stops = range(start + 1, len(layers.costs) - p + 2)
        costs = list(itertools.accumulate(layers.costs[start:]))
        return min(
            (costs[at - start - 1] ** 2 + best(at, p - 1)[0], (at, *best(at, p - 1)[1]))
            for at in stops
        )

    return cuts.stages_between((0, *best(0, layers.num_stages)[1]))


def halving_floats(layers):
    """Until the interval is a thousandth; then stages as full as the limit allows."""
    low, high = max(layers.costs), sum(layers.costs)

    def cut(limit):
        stages, room = [[]], limit
        for layer, cost in enumerate(layers.costs):
            left = layers.num_stages - len(stages)
            if stages[-1] and (cost > room or len(layers.costs) - layer <= left):
                stages.append([])
                room = limit
            stages[-1].append(layer)
            room -= cost
        return stages

    while high - low > high / 1000:
        middle = (low + high) / 2
        low, high = (low, middle) if len(cut(middle)) <= layers.num_stages else (middle, high)
    return cut(high)


RULES = {
    "cuts by the number of layers": [
        lambda layers: [list(each) for each in pipeline.even(len(layers.costs), layers.num_stages)],
    ],
    "leaves out the head": [without(-1)],
    "leaves out embedding and head": [without(0, -1)],
    "fills stages up to the average": [
        lambda layers, full=full, anew=anew: cuts.filled(layers, full, anew)
        for full in (cuts.full_after, cuts.full_before, cuts.full_nearest)
        for anew in (False, True)
    ],
    "cuts the sum into equal parts": [
        lambda layers, way=way: cuts.at_quantiles(layers, way) for way in ("up", "down", "nearest")
    ],
    "halves, and halves again": [cuts.halved],
    "makes the stages alike instead of the slowest one fast": [fewest_squares],
    "stops before the best": [halving_floats],
}


def test_another_right_answer_than_the_solutions_passes():
    verdict = check(NAME, by_program, workspace=WORKSPACE)
    assert verdict, verdict


def test_every_theory_is_tried_by_a_rule():
    assert list(RULES) == [theory.name for theory in THEORIES]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", RULES)
def test_each_rule_of_thumb_is_known_by_its_cuts(name, seed):
    for rule in RULES[name]:
        finding = judged(rule, seed)
        assert finding is not None
        assert finding.diagnosis == name


@pytest.mark.parametrize("seed", range(2))
def test_the_best_is_what_trying_every_cut_finds(seed):
    for question in draw(random.Random(seed)):
        layers = question.known
        if layers.size:
            continue
        inner = itertools.combinations(range(1, len(layers.costs)), layers.num_stages - 1)
        tried = [cuts.stages_between((0, *each, len(layers.costs))) for each in inner]
        assert layers.best == min(slowest(layers.costs, each) for each in tried)
        best = [each for each in tried if slowest(layers.costs, each) == layers.best]
        for stages in best[:20]:  # whichever it is: it passes
            assert GRADER.judge([question], [stages]) is None
        for stages in random.Random(seed).choices(tried, k=10):
            finding = GRADER.judge([question], [stages])
            assert (finding is None) is (slowest(layers.costs, stages) == layers.best)


@pytest.mark.parametrize(
    ("answer", "diagnosis"),
    [
        (None, "returns something else"),
        ([2, 2, 2], "returns something else"),
        ([[0, 1, 2.0], [3, 4], [5]], "returns something else"),
        ([[True, 0], [1, 2], [3, 4, 5]], "returns something else"),
        ([], "another number of stages"),
        ([[0, 1, 2], [3, 4], [5], []], "leaves a stage without layers"),
        ([[0, 1, 2, 3], [4, 5]], "another number of stages"),
        ([[1, 2, 3], [4, 5], [6]], "names a layer that there is not"),
        ([[-1, 0, 1], [2, 3], [4]], "names a layer that there is not"),
        ([[0, 1, 2], [3], [5]], "loses a layer"),
        ([[0, 1, 2], [2, 3, 4], [5]], "gives a layer to two stages"),
        ([[0, 2, 1], [3, 4], [5]], "stages in another order"),
        ([[5], [3, 4], [0, 1, 2]], "stages in another order"),
        ([[0, 5], [1, 2], [3, 4]], "gives a stage layers that are no neighbours"),
        (((0, 1, 2), (3, 4), (5,)), None),
        ([[0, 1, 2], [3, 4], [5]], None),
        ([[0, 1], [2, 3], [4, 5]], "cuts by the number of layers"),
    ],
)
def test_the_form_of_an_answer(answer, diagnosis):
    question = draw(random.Random(0))[0]
    assert question.known == Layers((1, 4, 4, 4, 4, 9), 3) and question.known.best == 9
    finding = GRADER.judge([question], [answer])
    assert (finding and finding.diagnosis) == diagnosis


def test_what_no_rule_explains_says_how_many():
    finding = judged(
        lambda layers: cuts.stages_between((*range(layers.num_stages), len(layers.costs)))
    )
    assert finding.diagnosis == "a slower cut than the best"
    assert "possible" in finding.details


@pytest.mark.parametrize("seed", range(6))
def test_layers_are_fresh_and_have_traps(seed):
    drawn = [each.known for each in draw(random.Random(seed))]
    assert [each.known for each in draw(random.Random(seed + 100))] != drawn
    sizes = {(len(each.costs), each.num_stages) for each in drawn}
    assert {(200, 16), (1, 1), (6, 1), (6, 6)} <= sizes
    assert any(max(each.costs) == 0 for each in drawn)
    assert any(max(each.costs) > 10**12 for each in drawn)
    assert all(sum(each.costs) < 2**53 for each in drawn)
    alone = [each for each in drawn if max(each.costs) == each.best and each.num_stages < 6]
    assert alone, "fewer stages would do"


ENDS = {
    "does not come to an end": "len(costs) == 1",
    "tries every cut": "len(costs) >= 60",
    "too slow for 200 layers": "len(costs) >= 200",
}


@pytest.mark.parametrize("diagnosis", ENDS)
def test_what_does_not_end_is_named_by_where_it_does_not(diagnosis, tmp_path):
    file = tmp_path / "mine.py"
    loop = f"def balance(costs, num_stages):\n    while {ENDS[diagnosis]}:\n        pass\n"
    file.write_text(f"{loop}    return [list(range(len(costs)))]\n")
    verdict = check(NAME, file, workspace=WORKSPACE, timeout_s=1.5)
    assert verdict.diagnosis == diagnosis, verdict
    assert verdict.outcome is Outcome.HUNG


def test_arguments_that_are_changed_and_answers_that_are_looked_up_are_noticed(tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    first = "    # The lowest limit with"
    assert first in solution
    for line, imports, diagnosis in (
        ("costs.append(costs.pop() + 1)", "", "changes what it is given"),
        (
            "try: pipeline.balance(costs, num_stages)\n    except Exception: pass",
            "from labkit import pipeline\n",
            "calls the answer itself",
        ),
    ):
        file = tmp_path / "mine.py"
        file.write_text(imports + solution.replace(first, f"    {line}\n{first}"))
        verdict = check(NAME, file, workspace=WORKSPACE)
        assert verdict.diagnosis == diagnosis, verdict
