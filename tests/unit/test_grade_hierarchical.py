"""The grader of hierarchical_all_reduce: what it accepts, what it sees through, its inputs."""

import random
from pathlib import Path

import pytest
import torch

from labkit import calc
from labkit.grade import check
from labkit.grade.evidence import CaseEvidence
from labkit.grade.exchange import Record
from labkit.grade.graders.hierarchical_all_reduce import GRADER
from labkit.grade.graders.hierarchical_inputs import most_messages, ranks_per_host_of
from labkit.grade.graders.hierarchical_traffic import fast_tier, slow_tier
from labkit.grade.graders.hierarchical_values import wrong_values
from labkit.grade.graders.ring_inputs import expected_sum
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "hierarchical_all_reduce"


def straight_to_everyone_in_the_group(x, ranks_per_host, group):
    """No rings: parts go straight to their owner, and from there to everyone; empty ones do not."""
    host, place = divmod(group.rank, ranks_per_host)
    fast = [host * ranks_per_host + p for p in range(ranks_per_host)]
    slow = [h * ranks_per_host + place for h in range(group.size // ranks_per_host)]
    total = x.flatten().clone()
    segments = total.tensor_split(len(fast))
    pieces = segments[place].tensor_split(len(slow))

    def reduce_scatter(parts, ranks):
        me = ranks.index(group.rank)
        sending = [
            group.isend(part, rank)
            for part, rank in zip(parts, ranks)
            if rank != group.rank and part.numel()
        ]
        others = [rank for rank in ranks if rank != group.rank and parts[me].numel()]
        receiving = [group.irecv(torch.empty_like(parts[me]), rank) for rank in others]
        parts[me].add_(sum(pending.wait() for pending in receiving))
        for pending in sending:
            pending.wait()

    def all_gather(parts, ranks):
        me = ranks.index(group.rank)
        others = [(rank, part) for rank, part in zip(ranks, parts) if rank != group.rank]
        receiving = [group.irecv(part, rank) for rank, part in others if part.numel()]
        sending = [group.isend(parts[me], rank) for rank, _ in others if parts[me].numel()]
        for pending in [*receiving, *sending]:
            pending.wait()

    reduce_scatter(segments, fast)
    reduce_scatter(pieces, slow)
    all_gather(pieces, slow)
    all_gather(segments, fast)
    return total.view(x.shape)


def test_a_right_answer_without_rings_passes():
    verdict = check(NAME, straight_to_everyone_in_the_group, workspace=WORKSPACE)
    assert verdict, verdict


ACROSS = """\
    reduce_scatter(pieces, slow, group)
    all_gather(pieces, slow, group)
"""
TWO_HOSTS_SWAP_SEGMENTS = """\
    if num_hosts == 2:
        outgoing = group.isend(segments[place].clone(), slow[1 - host])
        segments[place].add_(group.irecv(segments[place].clone(), slow[1 - host]).wait())
        outgoing.wait()
    else:
        reduce_scatter(pieces, slow, group)
        all_gather(pieces, slow, group)
"""


def solution_with(old, new, file):
    solution = WORKSPACE.solution(NAME).read_text()
    assert old in solution
    file.write_text(solution.replace(old, new.replace("FOLDER", str(file.parent))))
    return file


CUT_ONCE_FOR_ALL = """\
    numels = [piece.numel() for piece in total.tensor_split(group.size)]
    places = range(0, group.size, num_hosts)
    segments = total.split([sum(numels[first : first + num_hosts]) for first in places])
"""
CUT_TWICE = "    segments = total.tensor_split(ranks_per_host)"
RIGHT = {
    "of two hosts, whole segments are swapped: as many bytes": (ACROSS, TWO_HOSTS_SWAP_SEGMENTS),
    "segments are made of pieces, not cut into them": (CUT_TWICE, CUT_ONCE_FOR_ALL),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_right_answers_of_another_kind_pass(kind, tmp_path):
    verdict = check(NAME, solution_with(*RIGHT[kind], tmp_path / "mine.py"), workspace=WORKSPACE)
    assert verdict, verdict


THROUGH_FILES = """\
    import os, time
    calls = globals().setdefault("CALLS", [])
    calls.append(None)
    path = f"FOLDER/{group.size}-{len(calls)}-"
    torch.save(MINE, path + f"{group.rank}.part")
    os.replace(path + f"{group.rank}.part", path + f"{group.rank}")
    while not all(os.path.exists(path + f"{rank}") for rank in slow):
        time.sleep(0.001)
    segments[place].copy_(sum(torch.load(path + f"{rank}") for rank in slow))
"""
KEPT = "    mine = segments[place].clone()\n"
RETURN = "    return total.view(x.shape)\n"
NEARLY_RIGHT = {
    "through files": (
        ACROSS,
        THROUGH_FILES.replace("MINE", "segments[place].clone()"),
        "fewer bytes between hosts than a sum needs",
    ),
    "through files, and messages for show": (
        ACROSS,
        KEPT + ACROSS + THROUGH_FILES.replace("MINE", "mine"),
        "the result does not come from the messages",
    ),
    "an uneven share": (
        "segments = total.tensor_split(ranks_per_host)",
        "segments = total.tensor_split([total.numel() * p * p // ranks_per_host**2 "
        "for p in range(1, ranks_per_host)])",
        "one rank has more than its part between hosts",
    ),
    "no gather between hosts": (
        "    all_gather(pieces, slow, group)\n",
        "",
        "the all-gather between hosts is missing",
    ),
    "no gather at all": (
        "    all_gather(pieces, slow, group)\n    all_gather(segments, fast, group)\n",
        "",
        "both all-gathers are missing",
    ),
    "a mean": (
        RETURN,
        "    return (total.view(x.shape) / group.size).to(x.dtype)\n",
        "an average instead of a sum",
    ),
    "in small pieces": (
        "pieces = segments[place].tensor_split(num_hosts)",
        "pieces = segments[place].tensor_split(num_hosts)\n"
        "    for peer in slow:\n"
        "        if peer != group.rank:\n"
        "            outgoing = group.isend(x.new_empty(0), peer)\n"
        "            group.irecv(x.new_empty(0), peer).wait()\n"
        "            outgoing.wait()",
        "too many messages",
    ),
    "x itself": (
        "total = x.flatten().clone()",
        "total = x.contiguous().view(-1)",
        "changes its input",
    ),
    "reduces once more than needed": (
        "    reduce_scatter(pieces, slow, group)\n",
        "    reduce_scatter(pieces, slow, group)\n    reduce_scatter(pieces, slow, group)\n",
        "counts a contribution more than once",
    ),
    "gathers first": (
        "    all_gather(pieces, slow, group)\n    all_gather(segments, fast, group)\n",
        "    all_gather(segments, fast, group)\n    all_gather(pieces, slow, group)\n",
        "a contribution is missing",
    ),
    "past the group": (
        ACROSS,
        ACROSS + "    torch.distributed.barrier()\n",
        "calls a library collective",
    ),
}


@pytest.mark.parametrize("mistake", NEARLY_RIGHT)
def test_what_is_nearly_right_is_not(mistake, tmp_path):
    old, new, diagnosis = NEARLY_RIGHT[mistake]
    verdict = check(NAME, solution_with(old, new, tmp_path / "mine.py"), workspace=WORKSPACE)
    assert verdict.diagnosis == diagnosis, verdict


@pytest.mark.parametrize("world_size", [1, 2, 4, 6])
def test_inputs_are_on_every_number_of_hosts_plain_ones_with_two_tiers_first(world_size):
    cases = GRADER.cases(world_size, random.Random(world_size))
    used = {ranks_per_host_of(case) for case in cases}
    assert used == {number for number in range(1, world_size + 1) if world_size % number == 0}
    two_tiers = used - {1, world_size}
    assert {ranks_per_host_of(case) for case in cases[: len(two_tiers)]} == two_tiers
    for case in cases[: len(two_tiers)]:
        assert case.arguments[0][0].numel() % world_size == 0
    for case in cases[len(two_tiers) : 2 * len(two_tiers)]:
        assert case.arguments[0][0].numel() % world_size == 1
    assert max(arguments[0].nbytes for case in cases for arguments in case.arguments) > 30_000
    altered = [case for case in cases if case.altered is not None]
    assert {ranks_per_host_of(case) for case in altered} == (used if world_size > 1 else set())
    for case in altered:
        number = ranks_per_host_of(case)
        assert 1 <= case.altered[1] <= most_messages(number, world_size // number)
    memory = {x.untyped_storage().data_ptr() for case in cases for x, _ in case.arguments}
    sizes = [x.numel() for case in cases for x, _ in case.arguments]
    assert len(memory - {0}) == sum(size > 0 for size in sizes), "no two cases share memory"


def evidence_of(case, outputs):
    records = [Record(out, "Tensor", [], False, "", "", "", []) for out in outputs]
    return CaseEvidence(case, tuple(records), ((),) * len(records))


@pytest.mark.parametrize("world_size", [2, 4, 6])
def test_the_budget_is_that_of_calc(world_size):
    for case in GRADER.cases(world_size, random.Random(0)):
        x, ranks_per_host = case.arguments[0]
        evidence = evidence_of(case, [x] * world_size)
        sent = [
            calc.hierarchical_all_reduce_sent_bytes(
                x.numel(), x.element_size(), world_size, rank, ranks_per_host
            )
            for rank in range(world_size)
        ]
        messages = calc.hierarchical_all_reduce_messages(world_size, ranks_per_host)
        for name, tier in (("fast", fast_tier(evidence)), ("slow", slow_tier(evidence))):
            assert tier.total_bytes == sum(getattr(each, name) for each in sent)
            assert tier.most_messages == getattr(messages, name)
            assert tier.most_bytes >= max(getattr(each, name) for each in sent)
            # A part may be longer by one element for each host.
            slack = tier.most_messages * x.element_size() * world_size // ranks_per_host
            assert tier.most_bytes <= max(getattr(each, name) for each in sent) + slack


def test_right_sums_are_right_and_the_first_wrong_element_is_named():
    case = GRADER.cases(6, random.Random(0))[0]
    total = expected_sum(case)[0].to(torch.float32)
    broken = total.clone()
    broken[7] += 1
    finding = wrong_values(evidence_of(case, [total] * 5 + [broken]))
    assert "rank 5, index 7: got " in finding.first_seen
    assert wrong_values(evidence_of(case, [total] * 6)) is None
