"""The grader of reduce_scatter_all_gather: what it accepts, what it names, what cannot fool it."""

import os
import random
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from labkit.collectives import ring_all_reduce
from labkit.grade import check
from labkit.grade.evidence import Case, CaseEvidence
from labkit.grade.exchange import Record
from labkit.grade.graders.reduce_scatter_all_gather import GRADER
from labkit.grade.graders.two_collectives_values import wrong_values
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "reduce_scatter_all_gather"


def in_flight_with_whatever_lies_in_memory_for_padding(x, group):
    if group.size == 1 or not x.numel():
        return x.clone()
    padded = x.new_empty(x.numel() + -x.numel() % group.size)
    padded[: x.numel()] = x.flatten()
    segment = group.reduce_scatter(x=padded, wait=False).wait()
    group.all_gather(segment, out=padded, wait=False).wait()
    return padded[: x.numel()].reshape(x.shape)


def padded_at_the_front_in_rows_of_a_segment(x, group):
    padding = -x.numel() % group.size
    padded = torch.cat([x.new_zeros(padding), x.reshape(-1)]).view(group.size, -1)
    total = group.all_gather(group.reduce_scatter(padded)).flatten()
    return total[padding:].view(x.shape)


def padded_in_each_segment_and_cut_there(x, group):
    parts = x.flatten().tensor_split(group.size)
    length = parts[0].numel()
    padded = [torch.cat([part, part.new_zeros(length - len(part))]) for part in parts]
    total = group.all_gather(group.reduce_scatter(torch.cat(padded))).view(group.size, length)
    kept = [row[: len(part)] for row, part in zip(total, parts, strict=True)]
    return torch.cat(kept).view(x.shape)


def gathers_bytes(x, group):
    padded = torch.cat([x.flatten(), x.new_zeros(-x.numel() % group.size)])
    segment = group.reduce_scatter(padded)
    if not x.numel():
        return x.clone()
    total = group.all_gather(segment.view(torch.uint8)).view(x.dtype)
    return total[: x.numel()].view(x.shape)


def gathers_halves_of_numbers(x, group):
    """As bfloat16, where they may be anything: huge, or NaN."""
    padded = torch.cat([x.flatten(), x.new_zeros(-x.numel() % group.size)])
    segment = group.reduce_scatter(padded)
    if x.numel() and x.element_size() > 1:
        segment = segment.view(torch.bfloat16)
    return group.all_gather(segment).view(x.dtype)[: x.numel()].view(x.shape)


def complex_numbers_as_pairs(x, group):
    padded = torch.cat([x.flatten(), x.new_zeros(-x.numel() % group.size)])
    pairs = torch.view_as_real(padded) if x.is_complex() else padded
    total = group.all_gather(group.reduce_scatter(pairs))
    total = torch.view_as_complex(total) if x.is_complex() else total
    return total[: x.numel()].view(x.shape)


@pytest.mark.parametrize(
    "program",
    [
        in_flight_with_whatever_lies_in_memory_for_padding,
        padded_at_the_front_in_rows_of_a_segment,
        padded_in_each_segment_and_cut_there,
        gathers_bytes,
        gathers_halves_of_numbers,
        complex_numbers_as_pairs,
    ],
)
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def all_reduced(x, group):
    """A right answer, for programs that go wrong in another way."""
    padding = x.new_zeros(-x.numel() % group.size)
    total = group.all_gather(group.reduce_scatter(torch.cat([x.flatten(), padding])))
    return total[: x.numel()].view(x.shape)


def views_x(x, group):
    padding = x.new_zeros(-x.numel() % group.size)
    total = group.all_gather(group.reduce_scatter(torch.cat([x.view(-1), padding])))
    return total[: x.numel()].view(x.shape)


def forgets_the_second_half(x, group):
    return group.reduce_scatter(torch.cat([x.flatten(), x.new_zeros(-x.numel() % group.size)]))


def gathers_its_own_part(x, group):
    padded = torch.cat([x.flatten(), x.new_zeros(-x.numel() % group.size)])
    group.reduce_scatter(padded)
    total = group.all_gather(padded.tensor_split(group.size)[group.rank])
    return total[: x.numel()].view(x.shape)


def a_second_pair_for_the_remainder(x, group):
    flat, n = x.flatten().clone(), group.size
    covered = flat.numel() // n * n
    flat[:covered] = group.all_gather(group.reduce_scatter(flat[:covered]))
    rest = torch.cat([flat[covered:], flat.new_zeros(covered + n - len(flat))])
    flat[covered:] = group.all_gather(group.reduce_scatter(rest))[: len(flat) - covered]
    return flat.view(x.shape)


def in_double_precision(x, group):
    return all_reduced(x.double(), group).to(x.dtype)


def pads_by_its_own_rank(x, group):
    return all_reduced(torch.cat([x.flatten(), x.new_zeros(group.rank * group.size)]), group)


def sums_at_home(x, group):
    """Gathers all of x by the second call, and sends nearly nothing by the first."""
    group.reduce_scatter(x.new_zeros(group.size))
    return group.all_gather(x[None]).sum(0).to(x.dtype)


def through_a_ring(x, group):
    return ring_all_reduce(x, group)


def past_the_group(x, group):
    total = x.clone()
    dist.all_reduce(total)
    return total


def catches_the_refusal(x, group):
    try:
        return group.all_reduce(x)
    except Exception:
        return all_reduced(x, group)


BUFFERS = {}


def keeps_one_buffer(x, group):
    total = BUFFERS.setdefault((x.shape, x.dtype), torch.empty_like(x))
    return total.copy_(all_reduced(x, group))


SHARED = "labkit-test-two-collectives-"


def through_files_with_collectives_for_show(x, group):
    if not x.numel():
        return x.clone()  # collectives without elements do not wait for anybody
    path = os.path.join(tempfile.gettempdir(), f"{SHARED}{os.getppid()}-")
    torch.save(x.clone(), f"{path}{group.rank}")
    padded = torch.cat([x.flatten(), x.new_zeros(-x.numel() % group.size)])
    segment = group.reduce_scatter(padded)  # after which everyone has written
    total = sum(torch.load(f"{path}{rank}") for rank in range(group.size))
    group.all_gather(segment)  # and after which everyone has read
    return total.to(x.dtype)


WRONG = {
    views_x: "crashes where x is not contiguous",
    forgets_the_second_half: "the all-gather is missing",
    gathers_its_own_part: "gathers x, and not the sums",
    a_second_pair_for_the_remainder: "more than one of each",
    in_double_precision: "travels in another dtype",
    pads_by_its_own_rank: "ranks pass different shapes",
    sums_at_home: "gathers more than one nth",
    through_a_ring: "calls another operation than the two",
    past_the_group: "calls another operation than the two",
    catches_the_refusal: "calls another operation than the two",
    keeps_one_buffer: "returns the same memory again",
    through_files_with_collectives_for_show: "the result does not come from the collectives",
}


@pytest.fixture(scope="module", autouse=True)
def no_file_is_left():
    yield
    for path in Path(tempfile.gettempdir()).glob(f"{SHARED}*"):
        path.unlink()


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_each_mistake_and_each_way_around_has_its_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


def test_every_check_has_rows_that_n_does_not_divide_and_changes_one_collective():
    for seed in range(20):
        for n in (2, 3, 4):
            cases = GRADER.cases(n, random.Random(seed))
            shapes = [tuple(case.arguments[0][0].shape) for case in cases]
            assert any(len(shape) == 2 and shape[0] == n + 1 for shape in shapes)
            assert [case for case in cases if case.altered] == cases[-1:]
            rank, number = cases[-1].altered
            assert rank in range(n) and number in (1, 2)


@pytest.mark.parametrize(
    ("result", "diagnosis"),
    [
        ([1, 2, 3, 4, 5, 6, 7], None),
        ([1, 2, 3, 4, 5, 0, 6], "the padding ends up inside the result"),
        ([0, 0, 1, 2, 3, 4, 5], "the padding ends up inside the result"),
        ([1, 2, 3, 4, 5, 7, 0], "the padding ends up inside the result"),
        ([1, 2, 3, 4, 5, 6, 9], "drops the remainder"),
        ([9, 2, 3, 4, 5, 6, 7], "wrong sum"),
    ],
)
def test_a_wrong_sum_tells_where_the_padding_was(result, diagnosis):
    """7 elements on 3 ranks, which are 3, 2 and 2 of them, or 3, 3 and 1."""
    inputs = [torch.arange(1.0, 8.0), torch.zeros(7), torch.zeros(7)]
    case = Case("made up", tuple((x,) for x in inputs), (0.0,) * 3)
    output = torch.tensor(result, dtype=torch.float32)
    records = tuple(Record(output, "Tensor", [x], False, "", "", "", []) for x in inputs)
    finding = wrong_values(CaseEvidence(case, records, ((),) * 3))
    assert (finding and finding.diagnosis) == diagnosis
