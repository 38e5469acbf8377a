"""A case on real ranks: its trace shows the fault, and the run without it is shorter."""

import pytest

from labkit import profile
from labkit.interview.slow_case import draw, open_case

pytestmark = pytest.mark.clock


def test_a_case_is_solved_by_its_trace(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    case = open_case(2, seed=4)
    (fault,) = draw(2, 4).faults
    (folder,) = tmp_path.glob("labkit-case-*")
    first = profile.diagnose(profile.read([folder / "slow"]))[0]
    assert (first.cause, first.rank) == (fault.cause, fault.rank)
    assert case.judge(f"{first.cause}, rank {first.rank}, {100 * first.share:.0f}%")
    assert case.answer.value > 0.05
    assert (folder / "page.html").exists()
