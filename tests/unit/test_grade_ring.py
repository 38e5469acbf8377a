"""The grader of ring_all_reduce: what it must accept, and what its parts can tell apart."""

from pathlib import Path

import pytest
import torch

from labkit.grade import check, provenance
from labkit.grade.evidence import Case, CaseEvidence
from labkit.grade.exchange import Record
from labkit.grade.graders.ring_messages import is_within_budget
from labkit.grade.graders.ring_values import wrong_values
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])


def leftwards_with_the_longer_segments_last_and_empty_ones_skipped(x, group):
    """Segment `rank` is complete here after the first phase; nothing empty is sent."""
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    short = n - total.numel() % n
    lengths = [total.numel() // n + (s >= short) for s in range(n)]
    segments = total.split(lengths)

    def exchange(sent, received):
        pendings = [group.isend(sent, left)] if sent.numel() else []
        if received.numel():
            pendings.append(group.irecv(received, right))
        for pending in reversed(pendings):
            pending.wait()

    for step in range(1, n):
        arriving = torch.empty_like(segments[(rank + step + 1) % n])
        exchange(segments[(rank + step) % n], arriving)
        segments[(rank + step + 1) % n].add_(arriving)
    for step in range(n - 1):
        exchange(segments[(rank + step) % n], segments[(rank + step + 1) % n])
    return total.view(x.shape)


def blocking_with_even_ranks_first(x, group):
    n, rank = group.size, group.rank
    left, right = (rank - 1) % n, (rank + 1) % n
    total = x.flatten().clone()
    segments = total.tensor_split(n)
    for step in range(2 * (n - 1)):
        sent = segments[(rank - step + (step >= n - 1) * n) % n]
        ours = segments[(rank - step - 1 + (step >= n - 1) * n) % n]
        buffer = torch.empty_like(ours)
        if rank % 2 == 0:
            group.send(sent, right)
            group.recv(buffer, left)
        else:
            group.recv(buffer, left)
            group.send(sent, right)
        ours.copy_(ours + buffer if step < n - 1 else buffer)
    return total.view(x.shape)


def with_all_receives_posted_first_and_a_region_of_its_own(x, group):
    """Each receive has a buffer of its own; the region has the name that a case might have."""
    n, rank = group.size, group.rank
    total = x.flatten().clone()
    segments = total.tensor_split(n)
    order = [segments[(rank - step - 1) % n] for step in range(2 * (n - 1))]
    incoming = [group.irecv(torch.empty_like(ours), (rank - 1) % n) for ours in order]
    outgoing = []
    with group.region("case 0"):
        for step, ours in enumerate(order):
            outgoing.append(group.isend(segments[(rank - step) % n].clone(), (rank + 1) % n))
            arrived = incoming[step].wait()
            ours.copy_(ours + arrived if step < n - 1 else arrived)
    for pending in outgoing:
        pending.wait()
    return total.view(x.shape)


@pytest.mark.parametrize(
    "program",
    [
        with_all_receives_posted_first_and_a_region_of_its_own,
        leftwards_with_the_longer_segments_last_and_empty_ones_skipped,
        blocking_with_even_ranks_first,
    ],
)
def test_right_answers_of_another_kind_pass(program):
    verdict = check("ring_all_reduce", program, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("numel", [0, 1, 2, 7, 12, 101])
def test_the_ring_of_tensor_split_is_within_budget(n, numel):
    segments = [4 * part.numel() for part in torch.empty(numel).tensor_split(n)]
    for rank in range(n):
        first = [segments[(rank - step) % n] for step in range(n - 1)]
        second = [segments[(rank + 1 - step) % n] for step in range(n - 1)]
        assert is_within_budget(first + second, segments)
        assert is_within_budget([size for size in first + second if size], segments)


@pytest.mark.parametrize(
    ("sizes", "fault"),
    [
        ([3, 3, 3, 3], "padding: 3 is longer than two of the three segments are"),
        ([2, 2, 2], "one message is missing"),
        ([3, 2, 2, 2, 2], "one message too many"),
        ([7, 7, 7, 7], "whole tensors"),
        ([1, 1, 3, 2], "a half"),
    ],
)
def test_other_messages_are_not(sizes, fault):
    assert is_within_budget([3, 2, 2, 3], [3, 2, 2])
    assert not is_within_budget(sizes, [3, 2, 2]), fault


def evidence_of(inputs, outputs):
    case = Case("made up", tuple((x,) for x in inputs), (0.0,) * len(inputs))
    records = [Record(out, "Tensor", [x], False, "", "", "", []) for out, x in zip(outputs, inputs)]
    return CaseEvidence(case, tuple(records), ((),) * len(inputs))


def whole_numbers(n, numel, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-999, 999, (numel,), generator=generator).float() for _ in range(n)]


def test_factors_say_which_ranks_segment_is_where():
    inputs = whole_numbers(3, 3 * provenance.segments_needed(3))
    x0, x1, x2 = (x.tensor_split(3) for x in inputs)
    right = x0[0] + x1[0] + x2[0]
    outputs = [torch.cat([right, 2 * x1[1], x0[0]]) for _ in range(3)]
    factors = provenance.factors(inputs, outputs)
    assert factors[0, 0].tolist() == [[1, 0, 0]] * 3
    assert factors[1, 1].tolist() == [[0, 0, 0], [0, 2, 0], [0, 0, 0]]
    assert factors[2, 2].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_what_is_no_sum_of_segments_has_no_factors():
    inputs = whole_numbers(2, 40)
    assert provenance.factors(inputs, [torch.rand(40)] * 2) is None
    assert provenance.factors(inputs, [torch.full((40,), torch.nan)] * 2) is None
    assert provenance.factors(inputs, [1000 * inputs[0]] * 2) is None
    assert provenance.factors([x[:39] for x in inputs], [x[:39] for x in inputs]) is None


def test_the_first_wrong_element_is_named():
    inputs = whole_numbers(2, 40)
    total = inputs[0] + inputs[1]
    broken = total.clone()
    broken[7] += 0.5
    finding = wrong_values(evidence_of(inputs, [total, broken]))
    assert f"rank 1, index 7: got {total[7] + 0.5:g}, expected {total[7]:g}" in finding.first_seen
    assert wrong_values(evidence_of(inputs, [total, total])) is None
