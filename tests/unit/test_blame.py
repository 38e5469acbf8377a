"""Whose fault it was: deaths and errors of a rank's own before broken connections."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from labkit.comm import Site
from labkit.doctor.verdict import Stage
from labkit.launch.failure import _blame
from labkit.launch.rank import Raised
from tests.an_operation import an_operation

HERE = Site("cell.py", 1, "f")
DONE = an_operation(at=HERE, done_s=2.0)
BROKEN = replace(DONE, failed=True)
PENDING = replace(DONE, waited_s=None, done_s=None)


def report_of(stage, operations):
    """Return the report of a rank that raised: every failed operation is one that ended it."""
    if stage is not Stage.RAISED:
        return None
    is_broken = any(operation.failed for operation in operations)
    return Raised("RuntimeError", "gone", "", HERE, None, 0.0, is_broken)


def culprit(*ranks):
    supervisor = SimpleNamespace(
        ranks=[
            SimpleNamespace(stage=stage, ended_s=ended_s, report=report_of(stage, operations))
            for stage, ended_s, operations in ranks
        ],
    )
    return min(range(len(ranks)), key=lambda number: _blame(supervisor, number))


@pytest.mark.parametrize(
    "peer",
    [
        (Stage.RAISED, 1.0, [DONE, BROKEN]),
        (Stage.RAISED, 1.0, [BROKEN, PENDING, PENDING]),  # not the one that was posted last
        (Stage.RAISED, 1.0, []),  # outside the Group API: the journal does not know
    ],
)
def test_a_death_is_blamed_though_its_peers_failed_before_it_was_noticed(peer):
    assert culprit(peer, (Stage.DIED, 2.0, [DONE])) == 1
    assert culprit((Stage.DIED, 2.0, [DONE]), peer) == 0


def test_an_error_of_its_own_is_blamed_before_a_broken_communication():
    broken = (Stage.RAISED, 1.0, [BROKEN])
    assert culprit(broken, (Stage.RAISED, 2.0, [DONE])) == 1


def test_of_two_errors_the_earlier_is_blamed():
    assert culprit((Stage.RAISED, 2.0, [DONE]), (Stage.RAISED, 1.0, [DONE])) == 1
