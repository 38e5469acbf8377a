"""The grader of top_k_error_feedback: what it accepts, what it names, what cannot fool it."""

import os
import random
import tempfile
from pathlib import Path

import pytest
import torch

from labkit.data_parallel.compression import TopK
from labkit.grade import check
from labkit.grade.evidence import CaseEvidence
from labkit.grade.exchange import Record
from labkit.grade.graders.top_k_error_feedback import GRADER
from labkit.grade.graders.top_k_inputs import largest, right_debts
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "top_k_error_feedback"


def compress(gradient, owed, k):
    due = gradient + owed
    indices = due.abs().topk(k).indices
    values = due[indices]
    due[indices] = 0
    return indices, values, due


def exchange(indices, values, numel, group):
    all_indices, all_values = group.all_gather(indices), group.all_gather(values)
    return values.new_zeros(numel).index_add_(0, all_indices, all_values) / group.size


def sorts_and_reuses_the_debt(gradient, owed, k):
    owed.add_(gradient)
    indices = owed.abs().argsort(descending=True)[:k].flip(0).int()
    values = owed[indices].clone()
    owed[indices] = 0
    return [indices, values, owed]


def values_first_and_in_flight(indices, values, numel, group):
    pending = group.all_gather(values, wait=False)
    all_indices = group.all_gather(indices.int())
    total = torch.zeros(numel, dtype=values.dtype)
    pairs = zip(all_indices.split(len(indices)), pending.wait().split(len(indices)))
    for places, mine in pairs:
        total[places] += mine / group.size
    return total


def packed_into_one_message(indices, values, numel, group):
    packed = torch.cat([values.view(torch.uint8), indices.long().view(torch.uint8)])
    total, share = values.new_zeros(numel), 1 / group.size
    for row in group.all_gather(packed).view(group.size, -1):
        mine, places = row.split([values.nbytes, len(row) - values.nbytes])
        total[places.clone().view(torch.int64)] += mine.clone().view(values.dtype) * share
    return total


def packed_as_numbers_of_its_dtype(indices, values, numel, group):
    """Places viewed as float32 are subnormal, and as float64 too: copied, and never added to."""
    packed = torch.cat([indices.long().view(values.dtype), values])
    total = values.new_zeros(numel)
    for row in group.all_gather(packed).view(group.size, -1):
        places, theirs = row.split([len(row) - len(values), len(values)])
        total[places.clone().view(torch.int64)] += theirs
    return total / group.size


def its_own_from_where_it_has_them(indices, values, numel, group):
    rows = zip(
        group.all_gather(indices).view(group.size, -1),
        group.all_gather(values).view(group.size, -1),
    )
    total = values.new_zeros(numel)
    for rank, (places, theirs) in enumerate(rows):
        is_own = rank == group.rank
        total[indices if is_own else places] += values if is_own else theirs
    return total / group.size


def named(name, function):
    function.__name__ = name
    return function


def verdict_on(compressor=compress, exchanger=exchange, **options):
    both = [named("compress", compressor), named("exchange", exchanger)]
    return check(NAME, both, workspace=WORKSPACE, **options)


@pytest.mark.parametrize(
    ("compressor", "exchanger"),
    [
        (sorts_and_reuses_the_debt, values_first_and_in_flight),
        (sorts_and_reuses_the_debt, packed_into_one_message),
        (compress, packed_as_numbers_of_its_dtype),
        (compress, its_own_from_where_it_has_them),
    ],
)
def test_other_right_answers_pass(compressor, exchanger):
    verdict = verdict_on(compressor, exchanger)
    assert verdict, verdict


def all_reduced(indices, values, numel, group):
    total = values.new_zeros(numel).index_add_(0, indices, values)
    return group.all_reduce(total) / group.size


def one_entry_at_a_time(indices, values, numel, group):
    total = values.new_zeros(numel)
    for place, value in zip(indices.split(1), values.split(1)):
        total.index_add_(0, group.all_gather(place), group.all_gather(value))
    return total / group.size


def in_double_precision(indices, values, numel, group):
    return exchange(indices, values.double(), numel, group).to(values.dtype)


def places_as_floats(indices, values, numel, group):
    packed = group.all_gather(torch.cat([indices.to(values.dtype), values]))
    places, theirs = packed.view(group.size, 2, -1).unbind(1)
    total = values.new_zeros(numel).index_add_(0, places.flatten().long(), theirs.flatten())
    return total / group.size


def short_places(indices, values, numel, group):
    return exchange(indices.short().long(), values, numel, group)


def single_precision(indices, values, numel, group):
    return exchange(indices, values.float(), numel, group).to(values.dtype)


def divides_in_place(indices, values, numel, group):
    values /= group.size
    return exchange(indices, values, numel, group) * group.size


def nothing_at_all(indices, values, numel, group):
    return values.new_zeros(numel).index_add_(0, indices, values) / group.size


def gathers_for_show(indices, values, numel, group):
    exchange(indices, values, numel, group)
    return nothing_at_all(indices, values, numel, group)


SHARED = "labkit-test-top-k-"


def through_files_with_gathers_for_show(indices, values, numel, group):
    path = os.path.join(tempfile.gettempdir(), f"{SHARED}{os.getppid()}-")
    torch.save((indices.clone(), values.clone()), f"{path}{group.rank}")
    group.all_gather(indices)  # after which everyone has written
    total = values.new_zeros(numel)
    for rank in range(group.size):
        total.index_add_(0, *torch.load(f"{path}{rank}"))
    group.all_gather(values)  # and after which everyone has read
    return total / group.size


def the_labs_own(indices, values, numel, group):
    sent = values.new_zeros(numel).index_add_(0, indices, values)
    return TopK(len(indices) / numel).exchange(sent, None, group)[0] / group.size


def a_shape_of_its_own(indices, values, numel, group):
    return exchange(indices, values, numel, group)[None]


def only_on_some_ranks(indices, values, numel, group):
    return exchange(indices, values, numel, group) if group.rank else values.new_zeros(numel)


EXCHANGES = {
    all_reduced: "calls another operation than all_gather",
    one_entry_at_a_time: "more collectives than two per step",
    places_as_floats: "loses places that are far out",
    short_places: "loses places that are far out",
    single_precision: "loses digits on the way",
    divides_in_place: "exchange changes what it is given",
    in_double_precision: "sends more than places and values",
    nothing_at_all: "nothing is sent",
    gathers_for_show: "stays on its own rank",
    through_files_with_gathers_for_show: "the result does not come from the collectives",
    the_labs_own: "calls the answer itself",
    a_shape_of_its_own: "returns something else",
    only_on_some_ranks: "a collective that not every rank calls",
}


@pytest.fixture(scope="module", autouse=True)
def no_file_is_left():
    yield
    for path in Path(tempfile.gettempdir()).glob(f"{SHARED}*"):
        path.unlink()


@pytest.mark.parametrize("program", EXCHANGES, ids=lambda program: program.__name__)
def test_each_wrong_exchange_and_each_way_around_has_its_name(program):
    expected = EXCHANGES[program]
    verdict = verdict_on(exchanger=program)
    assert verdict.diagnosis == expected, verdict


def returning(change):
    """`compress` with its results changed."""
    return lambda gradient, owed, k: change(*compress(gradient, owed, k), gradient, owed)


COMPRESSIONS = {
    "wrong sign": (lambda i, v, d, g, o: (i, v, -d), "owes with the wrong sign"),
    "twice": (lambda i, v, d, g, o: (i, v, d + o), "counts old debts twice"),
    "what was sent": (lambda i, v, d, g, o: (i, v, g + o - d), "owes what it has sent"),
    "half": (lambda i, v, d, g, o: (i, v, d / 2), "other owed than those that are due"),
    "nothing": (lambda *_: None, "returns something else"),
    "two of three": (lambda i, v, d, g, o: (i, v), "returns something else"),
    "numbers": (lambda i, v, d, g, o: (i, v, 0.0), "returns something else"),
    "a place twice": (lambda i, v, d, g, o: (0 * i, v, d), "returns something else"),
    "places beyond": (lambda i, v, d, g, o: (i + len(g), v, d), "raises IndexError"),
    "the last k": (lambda i, v, d, g, o: (i.sort().values, v, d), "other values than those"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", COMPRESSIONS)
def test_each_wrong_compression_has_its_name(mistake):
    change, diagnosis = COMPRESSIONS[mistake]
    verdict = verdict_on(returning(change))
    assert verdict.diagnosis.startswith(diagnosis), verdict


def test_one_function_without_the_other_is_not_attempted(tmp_path):
    solution, stub = (path(NAME).read_text() for path in (WORKSPACE.solution, WORKSPACE.exercise))
    file = tmp_path / "mine.py"
    file.write_text(solution.partition("def exchange")[0] + "def exchange(a, b, c, d):\n    ...\n")
    assert "NotImplementedError" in stub
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "a part is still to be written", verdict
    assert "write exchange, too" in verdict.finding.explanation


def evidence_of(case, rule):
    """What ranks would leave whose steps send `rule(due, k)` and owe the rest."""
    owed = [torch.zeros_like(gradients[0]) for gradients, *_ in case.arguments]
    outputs = [[] for _ in owed]
    for step in range(len(case.arguments[0][0])):
        mean, n = torch.zeros_like(owed[0]), len(owed)
        for rank, (gradients, k, _) in enumerate(case.arguments):
            due = gradients[step] + owed[rank]
            places = rule(due, k)
            owed[rank] = due.index_fill(0, places, 0)
            mean = mean + (due - owed[rank]) / n
            outputs[rank] += [places, due[places], owed[rank]]
        for each in outputs:
            each += [mean, *each[-3:-1]]
    records = [
        Record(None, "list", [case.arguments[rank][0]], False, "", "", "", [], False, each)
        for rank, each in enumerate(outputs)
    ]
    return CaseEvidence(case, tuple(records), tuple(([object()],) for _ in records))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_applied_and_what_is_owed_add_up_to_all_gradients(n, seed):
    for case in GRADER.cases(n, random.Random(seed)):
        evidence = evidence_of(case, lambda due, k: largest(due.abs(), k))
        means = [sum(record.outputs[3::6]) for record in evidence.completed]
        owed = sum(record.outputs[-4] for record in evidence.completed)
        gradients = sum(gradients.sum(0) for gradients, *_ in case.arguments)
        assert all(torch.equal(mean * n + owed, gradients) for mean in means), "all exact"


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_inputs_show_every_mistake_in_the_first_case_and_leave_no_choice_in_any(n, seed):
    cases = GRADER.cases(n, random.Random(seed))
    gradients = [each for each, *_ in cases[0].arguments]
    k = cases[0].arguments[0][1]
    chosen = [set(largest(each[0].abs(), k).tolist()) for each in gradients]
    assert any(each[0][list(places)].min() < 0 for each, places in zip(gradients, chosen))
    if n > 1:
        assert k < len(set.union(*chosen)) < n * k, "some places from several ranks, some not"
    for case in cases:
        for each, k, _ in case.arguments:
            for due in right_debts(each, k):
                sizes = due.abs().sort(descending=True).values
                assert k == len(sizes) or sizes[k - 1] > sizes[k]
    assert {case.arguments[0][0].dtype for case in cases} == {torch.float32, torch.float64}
    assert any(k == each.shape[1] for case in cases for each, k, _ in case.arguments)
    altered = [case for case in cases if case.altered]
    assert altered == ([] if n == 1 else cases[-1:])
    for each, k, _ in altered[0].arguments if altered else ():
        # One place further is still a place.
        assert all(largest(due.abs(), k).max() < each.shape[1] - 1 for due in right_debts(each, k))
