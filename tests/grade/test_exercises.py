"""Every exercise: its stub, its solution, and each mistake of its grader, made by a patch."""

import functools
from pathlib import Path

import pytest

from labkit.grade import engine, findings, observed
from labkit.grade.catalog import load_catalog
from labkit.grade.engine import check, observe
from labkit.grade.grader import OnRanks, functions_of, load_graders, patch
from labkit.grade.observed import Observation
from labkit.grade.stubs import stub_of
from labkit.grade.submission import Submission
from labkit.grade.verdict import Outcome
from labkit.grade.workspace import Workspace
from tests.warm_ranks import WarmRanks

WORKSPACE = Workspace(Path(__file__).parents[2])
EXERCISES = list(load_catalog())
SEEN = [
    pytest.param(name, mistake, patch, id=f"{name}/{mistake.name}" + f" {i}" * (i > 0))
    for name in EXERCISES
    for part in load_graders(name)
    for mistake in part.mistakes
    for i, patch in enumerate(mistake.patches)
    if mistake.predicate
]
SEED = 20261124
# This timeout ends code that loops or hangs. One process that calculates waits for nobody.
TIMEOUT_S, ALONE_S = 4.0, 2.0


@pytest.fixture(autouse=True, scope="module")
def _ranks_stay_for_the_next_attempt():
    ranks = WarmRanks()
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(engine, "launch", ranks.launch)
        yield
    ranks.end()


@pytest.fixture(autouse=True, scope="module")
def _what_all_mistakes_share_is_computed_once():
    with pytest.MonkeyPatch.context() as changed:
        for module, name in (
            (engine, "cases_of"),
            (engine, "observe_mistakes"),
            (observed, "right_result"),
        ):
            changed.setattr(module, name, functools.cache(getattr(module, name)))
        yield


@pytest.fixture
def counts(monkeypatch):
    """In how many cases each mistake holds that was looked for, by its name."""
    found = {}

    def counted(mistake, *cases):
        holds, num_agree = held(mistake, *cases)
        found[mistake.name] = len(holds), num_agree
        return holds, num_agree

    held = findings.held
    monkeypatch.setattr(findings, "held", counted)
    return found


@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_is_not_attempted(name, tmp_path):
    stub = tmp_path / f"{name}.py"
    stub.write_text(stub_of(name, WORKSPACE))
    assert check(name, stub, workspace=WORKSPACE).outcome is Outcome.NOT_ATTEMPTED


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_passes(name):
    verdict = check(name, WORKSPACE.solution(name), workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("name", EXERCISES)
def test_there_are_six_mistakes_with_names_of_their_own(name):
    names = [mistake.name for part in load_graders(name) for mistake in part.mistakes]
    assert len(set(names)) == len(names) >= 6


def questions_of(name):
    """(part of the grader, number of ranks, cases of one function)."""
    for part in load_graders(name):
        for n in part.world_sizes:
            cases = engine.cases_of(part, n, SEED)
            for function in dict.fromkeys(case.function for case in cases):
                yield part, n, tuple(case for case in cases if case.function == function)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_mistake_known_by_its_results_gets_its_own_name_and_no_other(name, counts):
    mistakes = [mistake for part in load_graders(name) for mistake in part.mistakes]
    unnamed = {patch: m.name for m in mistakes if not m.predicate for patch in m.patches}
    solution = WORKSPACE.solution(name).read_text()
    for made_by in unnamed:
        made_by.applied_to(solution)  # raises where a text is not in the solution
    for part, n, cases in questions_of(name):
        mistaken = engine.observe_mistakes(part, solution, cases, n)
        for made_by in set(unnamed) & set(mistaken):
            seen = [observed for observed in mistaken[made_by] if observed.returned]
            assert seen, f"{unnamed[made_by]} ends no case: {mistaken[made_by][0].error}"
            counts.clear()
            answers = {cases[0].function: mistaken}.get
            if finding := findings.first(part, Observation(seen, None, answers)):
                assert_named(finding, unnamed.pop(made_by), Outcome.WRONG, counts)
    assert not unnamed, "these are right in all cases that they end"


def assert_named(finding, name, outcome, counts):
    assert (finding.diagnosis, finding.outcome) == (name, outcome), finding
    assert max(counts, key=counts.get) == name
    assert list(counts.values()).count(counts[name]) == 1, counts


@pytest.mark.parametrize(("name", "mistake", "patch"), SEEN)
def test_a_mistake_with_a_predicate_gets_its_own_name_and_no_other(
    name, mistake, patch, tmp_path, counts
):
    wrong = tmp_path / f"{name}.py"
    wrong.write_text(patch.applied_to(WORKSPACE.solution(name).read_text()))
    code = Submission.read(wrong, name, functions_of(name), WORKSPACE)
    finding = _first_finding(name, code)
    assert finding is not None, f"{mistake.name} passes"
    assert_named(finding, mistake.name, mistake.outcome, counts)


def _first_finding(name, code):
    """As engine._graded, with timeouts of its own."""
    for part in load_graders(name):
        waits = isinstance(part, OnRanks)
        for n in part.world_sizes:
            observation = observe(part, code, n, SEED, TIMEOUT_S if waits else ALONE_S)
            if finding := findings.first(part, observation):
                return finding
    return None


@pytest.mark.parametrize(
    ("name", "diagnosis", "old", "new"),
    [
        (
            "linear_scaling",
            "rounds up in floats",
            "return -(-num_samples // global_batch(setup))",
            "return __import__('math').ceil(num_samples / global_batch(setup))",
        ),
        (
            "linear_scaling",
            "rounds up in floats",
            'return steps_per_epoch(base_steps * setup["base_batch"], setup)',
            "k = global_batch(setup) / setup['base_batch']\n"
            "    return __import__('math').ceil(base_steps / k)",
        ),
        (
            "global_grad_norm",
            "returns another type",
            "return norm",
            "return torch.tensor(norm, dtype=torch.float64)",
        ),
        (
            "ring_attention_step",
            "calls the answer itself",
            "    n, rank = group.size, group.rank\n",
            "    n, rank = group.size, group.rank\n"
            "    torch.nn.functional.scaled_dot_product_attention(q_HtK, k_HtK, v_HtK)\n",
        ),
    ],
)
def test_another_wrong_answer_is_found(name, diagnosis, old, new, tmp_path):
    wrong = tmp_path / f"{name}.py"
    wrong.write_text(patch(old, new).applied_to(WORKSPACE.solution(name).read_text()))
    assert check(name, wrong, workspace=WORKSPACE).diagnosis == diagnosis
