"""The accounts of what was sent, held against each other."""

import functools
from dataclasses import replace

import torch

from labkit import run
from labkit.grade import ledger
from labkit.grade.evidence import Attempt, Case, CaseEvidence


@functools.cache
def ring_evidence(n=2, steps=1):
    """Real journals of a small exchange, as evidence."""

    def exchange(world):
        for _ in range(steps):
            outgoing = world.isend(torch.ones(6), (world.rank + 1) % n)
            world.irecv(torch.ones(6), (world.rank - 1) % n).wait()
            outgoing.wait()

    result = run(exchange, n)
    case = Case("made up", ((torch.ones(6),),) * n, (0.0,) * n)
    operations = tuple(tuple(timeline.operations) for timeline in result.timeline)
    return CaseEvidence(case, (None,) * n, operations), result


def test_journals_that_agree_are_believed():
    evidence, result = ring_evidence()
    assert ledger.disagreement(evidence) is None
    sockets = tuple(traffic.socket_bytes for traffic in result.traffic)
    assert ledger.hidden_bytes(Attempt(2, (evidence,), socket_bytes=sockets)) is None


def test_a_send_that_no_receiver_knows_of_is_found():
    evidence, _ = ring_evidence()
    shorter = replace(evidence, operations=(evidence.operations[0], evidence.operations[1][:1]))
    finding = ledger.disagreement(shorter)
    assert finding.diagnosis == "sender and receiver disagree"


def test_bytes_that_only_the_kernel_knows_of_are_found():
    evidence, _ = ring_evidence()
    attempt = Attempt(2, (evidence,), socket_bytes=(1000, 1_000_000))
    assert "rank 1 sent 1,000,000 bytes" in ledger.hidden_bytes(attempt).explanation
