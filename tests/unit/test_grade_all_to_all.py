"""The grader of uneven_all_to_all: what it must accept, what it must see through, its inputs."""

import itertools
import random
from pathlib import Path

import pytest
import torch

from labkit.grade import check
from labkit.grade.evidence import CaseEvidence
from labkit.grade.exchange import Record
from labkit.grade.graders.all_to_all_inputs import blocks_of, counts_of
from labkit.grade.graders.all_to_all_messages import is_within_budget
from labkit.grade.graders.all_to_all_values import expected_of, wrong_form, wrong_values
from labkit.grade.graders.uneven_all_to_all import GRADER
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "uneven_all_to_all"


def everything_in_flight_at_once_and_nothing_empty(x, counts, group):
    others = [peer for peer in range(group.size) if peer != group.rank]
    sending = [group.isend(counts[peer].int(), peer) for peer in others]  # half as long will do
    received = counts.int()
    pending = [group.irecv(received[peer], peer) for peer in others]
    for each in [*pending, *sending]:
        each.wait()
    blocks = list(x.split(counts.tolist()))
    result = [x.new_empty(n, *x.shape[1:]) for n in received.tolist()]
    result[group.rank] = blocks[group.rank]
    sending = [group.isend(blocks[peer], peer) for peer in others if blocks[peer].numel()]
    pending = [group.irecv(result[peer], peer) for peer in others if result[peer].numel()]
    for each in [*pending, *sending]:
        each.wait()
    return torch.cat(result)


def blocking_number_and_block_peer_by_peer(x, counts, group):
    """Of two ranks the lower one sends first, and pairs meet in one order everywhere."""
    blocks = list(x.split(counts.tolist()))
    result = list(blocks)
    for low, high in itertools.combinations(range(group.size), 2):
        if group.rank not in (low, high):
            continue
        peer = high if group.rank == low else low
        for is_sending in (True, False) if group.rank == low else (False, True):
            if is_sending:
                group.send(counts[peer], peer)
                group.send(blocks[peer], peer)
            else:
                number = int(group.recv(torch.empty_like(counts[peer]), peer))
                result[peer] = group.recv(x.new_empty(number, *x.shape[1:]), peer)
    return torch.cat(result)


@pytest.mark.parametrize(
    "program",
    [
        everything_in_flight_at_once_and_nothing_empty,
        blocking_number_and_block_peer_by_peer,
    ],
)
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def solution_with(tmp_path, *changes):
    """The solution, changed: (old, new) texts."""
    text = WORKSPACE.solution(NAME).read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    file = tmp_path / "mine.py"
    file.write_text(text)
    return file


EXCHANGE = "    exchange(x.split(counts.tolist()), result.split(receive_counts.tolist()))\n"
RETURN = "    return result\n"
THROUGH_FILES = """\
    import os, time
    calls = globals().setdefault("CALLS", [])
    calls.append(None)
    path = f"FOLDER/{n}-{len(calls)}-"
    torch.save([block.clone() for block in x.split(counts.tolist())], path + f"{rank}.part")
    os.replace(path + f"{rank}.part", path + f"{rank}")
    while not all(os.path.exists(path + f"{other}") for other in range(n)):
        time.sleep(0.001)
    result = torch.cat([torch.load(path + f"{other}")[rank] for other in range(n)])
"""
NEARLY_RIGHT = {
    "through files": (EXCHANGE, THROUGH_FILES, "fewer bytes than rows and counts have"),
    "through files, and messages for show": (
        EXCHANGE,
        EXCHANGE + THROUGH_FILES,
        "the result does not come from the messages",
    ),
    "no copy on one rank": (RETURN, "    return result if n > 1 else x\n", "returns its own input"),
    "writes to x": (RETURN, "    x += 1\n    return result\n", "changes its input"),
    "writes to counts": (RETURN, "    counts += 1\n    return result\n", "changes its input"),
    "float32 throughout": (
        "x.new_empty(int(receive_counts.sum()), *x.shape[1:])",
        "torch.empty(int(receive_counts.sum()), *x.shape[1:])",
        # Which comes first is drawn: a dtype of another size, or one of the same.
        ("receives into a buffer of another size", "ranks pass different dtypes"),
    ),
    "adds up": (RETURN, "    return result.sum(0)\n", "returns another shape"),
    "sorts": (RETURN, "    return result[result.sum(1).argsort()]\n", "rows in the wrong order"),
    "one row twice": (
        RETURN,
        "    return torch.cat([result, result[:1]])\n",
        "a row comes twice",
    ),
    "the last row lost": (RETURN, "    return result[:-1].clone()\n", "rows are missing"),
    "never waits": ("            sending.wait()\n", "", "never waits for an operation"),
    "past the group": (
        EXCHANGE,
        EXCHANGE + "    torch.distributed.barrier()\n",
        "calls a library collective",
    ),
}


@pytest.mark.parametrize("mistake", NEARLY_RIGHT)
def test_what_is_nearly_right_is_not(mistake, tmp_path):
    old, new, diagnosis = NEARLY_RIGHT[mistake]
    solution = WORKSPACE.solution(NAME).read_text()
    assert old in solution
    file = tmp_path / "mine.py"
    file.write_text(solution.replace(old, new.replace("FOLDER", str(tmp_path))))
    verdict = check(NAME, file, workspace=WORKSPACE)
    any_of = (diagnosis,) if isinstance(diagnosis, str) else diagnosis
    assert verdict.diagnosis in any_of, verdict


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_inputs_cover_what_goes_wrong_with_counts(world_size, seed):
    cases = GRADER.cases(world_size, random.Random(seed))
    matrices = [torch.stack([counts for _, counts in case.arguments]) for case in cases]
    for case, matrix in zip(cases, matrices):
        assert [len(x) for x, _ in case.arguments] == matrix.sum(1).tolist()
    off_diagonal = ~torch.eye(world_size, dtype=torch.bool)
    assert len(matrices[0].unique()) == world_size**2, "the first has no two equal counts"
    assert matrices[0].min() > 0 and (matrices[1][off_diagonal] == 0).any(), "zeros come second"
    assert any((matrix.sum(0) == 0).any() and matrix.any() for matrix in matrices), "gets none"
    assert any((matrix.sum(1) == 0).any() and matrix.any() for matrix in matrices), "has none"
    assert any(not matrix.any() for matrix in matrices)
    assert any(not x.is_contiguous() for case in cases for x, _ in case.arguments)
    assert len({case.arguments[0][0].dtype for case in cases}) >= 4
    assert {case.arguments[0][0].dim() for case in cases} == {1, 2, 3}
    assert max(x.nbytes for case in cases for x, _ in case.arguments) > 10_000, "stands out"
    rank, number = cases[-1].altered
    assert 0 <= rank < world_size and 1 <= number < world_size
    assert matrices[-1].min() > 0 and all(case.altered is None for case in cases[:-1])


def evidence_of(case, outputs):
    records = [Record(out, type(out).__name__, [], False, "", "", "", []) for out in outputs]
    return CaseEvidence(case, tuple(records), ((),) * len(records))


def test_the_right_rows_are_those_that_others_have_for_this_rank():
    for case in GRADER.cases(3, random.Random(0)):
        evidence = evidence_of(case, [None] * 3)
        right = expected_of(evidence)
        assert wrong_form(evidence).diagnosis == "returns nothing"
        assert wrong_values(evidence_of(case, right)) is None
        assert wrong_form(evidence_of(case, right)) is None
        blocks, counts = blocks_of(evidence), counts_of(evidence)
        for rank, rows in enumerate(right):
            assert len(rows) == sum(row[rank] for row in counts)
            assert torch.equal(rows[: counts[0][rank]], blocks[0][rank])


def test_what_is_wrong_is_said_with_the_numbers_of_rows():
    case = GRADER.cases(3, random.Random(0))[0]
    right = expected_of(evidence_of(case, [None] * 3))
    finding = wrong_values(evidence_of(case, [right[0], right[1][:-1], right[2]]))
    assert f"rank 1 has {len(right[1]) - 1} rows, expected {len(right[1])}: " in finding.first_seen


@pytest.mark.parametrize(
    ("sizes", "due", "fits"),
    [
        ([8, 40], 40, True),
        ([40, 4], 40, True),
        ([8], 0, True),
        ([8, 0], 0, True),
        ([], 0, True),
        ([8, 8, 40], 40, False),
        ([24, 40], 40, False),
        ([8, 20, 20], 40, False),
        ([8, 36], 40, True),  # as a number and a block: what came is compared elsewhere
        ([8, 30], 40, False),
    ],
)
def test_a_number_and_a_block_fit_the_budget(sizes, due, fits):
    assert is_within_budget(sizes, due) is fits
